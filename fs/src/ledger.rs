//! The ledger: the open handles and registered backing files of a mount, in memory that outlives this process.
//!
//! The next process that serves the mount must know them: the kernel insists on the mode and on the backing file that a
//! node has been opened with ([`open_table`](crate::open_table)). So each handle, and each registered backing file, has a slot in a
//! memory file, of which another process may hold a descriptor. A slot is written before the kernel learns of what it
//! records, and cleared after the kernel has let that go: so the ledger never has less than the kernel, whenever the
//! process is killed. The cost is a few stores an open.

mod shared_memory;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use bdnfs::error::{Error, Kind, Result};
use parking_lot::Mutex;

use shared_memory::SharedMemory;

/// The magic number and version of the layout: "bdnfs" and a number. To be raised with every change of what expected
/// below, and of the limits that the kernel is told at the beginning (`session`): a mount keeps to those it began with.
const MAGIC: u64 = 0x0062_646e_6673_0001;
/// Words before the first slot: the magic, the features, the device number, how many slots were ever used; some in reserve.
const HEADER_WORDS: usize = 8;
/// Words of a slot: number, node, request, item.
const SLOT_WORDS: usize = 4;
/// The number of bits of a number that say which slot it is; the others count, so that no number comes twice.
const SLOT_BITS: u32 = 20;
/// The number of slots: a million files may be open on a mount. Those unused take no memory.
const SLOT_COUNT: u32 = 1 << SLOT_BITS;
/// All words of the ledger.
const LEDGER_WORDS: usize = HEADER_WORDS + SLOT_WORDS * SLOT_COUNT as usize;

/// Features that were negotiated when the mount was made, and hold until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountFeatures {
    /// The kernel takes backing files.
    pub(crate) passthrough: bool,
    /// The mount is stateless: the kernel sends neither OPEN nor RELEASE.
    pub(crate) stateless: bool,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerItem {
    /// A handle that the agent serves.
    Cached,
    /// A handle that the kernel serves from the backing file with this number.
    Passthrough(u32),
    /// A registered backing file.
    BackingFile(u32),
    /// A file whose lookups lead to this node or its twin, since what its earlier nodes read was wrong. Kept until the mount ends.
    /// Versions that don't know it take the slot for a vacant one.
    Moved,
    /// The backing file with this number was not right, and has open handles of a node that stays. Versions that don't know it
    /// take the slot for a vacant one.
    Damaged(u32),
}

impl LedgerItem {
    fn word(self) -> u64 {
        let (kind, id) = match self {
            Self::Cached => (1, 0),
            Self::Passthrough(id) => (2, id),
            Self::BackingFile(id) => (3, id),
            Self::Moved => (4, 0),
            Self::Damaged(id) => (5, id),
        };
        kind << 32 | u64::from(id)
    }

    fn of(word: u64) -> Option<Self> {
        let id = word as u32;
        match word >> 32 {
            1 => Some(Self::Cached),
            2 => Some(Self::Passthrough(id)),
            3 => Some(Self::BackingFile(id)),
            4 => Some(Self::Moved),
            5 => Some(Self::Damaged(id)),
            _ => None,
        }
    }
}

/// A slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerEntry {
    /// The number: for a handle, the one that the kernel knows it by.
    pub(crate) number: u64,
    /// The node that it belongs to.
    pub(crate) node: u64,
    /// The OPEN request that it came from; 0 for what came from none.
    pub(crate) unique: u64,
    /// The recorded item.
    pub(crate) item: LedgerItem,
}

/// The ledger of one mount.
#[derive(Debug)]
pub(crate) struct Ledger {
    memory: SharedMemory,
    slots: Mutex<Slots>,
}

/// The free slots.
#[derive(Debug)]
struct Slots {
    vacant: Vec<u32>,
    /// The first slot that was never used.
    unused: u32,
    /// The number of numbers that were given out, by previous processes, too.
    serial: u64,
}

impl Ledger {
    /// An empty ledger.
    pub(crate) fn new(features: MountFeatures) -> Result<Self> {
        let memory = SharedMemory::new(LEDGER_WORDS).map_err(fault)?;
        let ledger = Self { memory, slots: Mutex::new(Slots { vacant: Vec::new(), unused: 0, serial: 0 }) };
        ledger.words()[1]
            .store(u64::from(features.passthrough) | u64::from(features.stateless) << 1, Ordering::Relaxed);
        ledger.words()[0].store(MAGIC, Ordering::Release);
        Ok(ledger)
    }

    /// The ledger in `file`, which the previous process wrote, and its entries.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when it is not a ledger of this version.
    pub(crate) fn open(file: OwnedFd) -> Result<(Self, Vec<LedgerEntry>)> {
        let foreign = || {
            Error::new(Kind::Unsupported, "cannot resume the mount: it was made by another version of bdnfs")
        };
        let memory = SharedMemory::open(file, LEDGER_WORDS).map_err(fault)?.ok_or_else(foreign)?;
        let slots = Slots { vacant: Vec::new(), unused: 0, serial: 0 };
        let mut ledger = Self { memory, slots: Mutex::new(slots) };
        if ledger.words()[0].load(Ordering::Acquire) != MAGIC {
            return Err(foreign());
        }
        let (slots, entries) = ledger.read();
        ledger.slots = Mutex::new(slots);
        Ok((ledger, entries))
    }

    /// The memory that holds it.
    pub(crate) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    fn read(&self) -> (Slots, Vec<LedgerEntry>) {
        let unused = (self.words()[3].load(Ordering::Acquire) as u32).min(SLOT_COUNT);
        let (mut vacant, mut entries, mut serial) = (Vec::new(), Vec::new(), 0);
        for slot in 0..unused {
            let [number, node, unique, item] = self.slot(slot);
            let number = number.load(Ordering::Acquire);
            serial = serial.max(number >> SLOT_BITS);
            match LedgerItem::of(item.load(Ordering::Acquire)) {
                Some(item) => {
                    let (node, unique) = (node.load(Ordering::Relaxed), unique.load(Ordering::Relaxed));
                    entries.push(LedgerEntry { number, node, unique, item });
                }
                None => vacant.push(slot),
            }
        }
        (Slots { vacant, unused, serial }, entries)
    }

    /// The features that were negotiated when the mount was made.
    pub(crate) fn features(&self) -> MountFeatures {
        let word = self.words()[1].load(Ordering::Relaxed);
        MountFeatures { passthrough: word & 1 != 0, stateless: word & 2 != 0 }
    }

    /// The mount's device number.
    pub(crate) fn device(&self) -> (u32, u32) {
        let word = self.words()[2].load(Ordering::Relaxed);
        ((word >> 32) as u32, word as u32)
    }

    /// Records the mount's device number.
    pub(crate) fn set_device(&self, (major, minor): (u32, u32)) {
        self.words()[2].store(u64::from(major) << 32 | u64::from(minor), Ordering::Relaxed);
    }

    /// Records `item` of `node`, which the request `unique` made. Returns its number; `None`: no slot is left.
    pub(crate) fn insert(&self, node: u64, unique: u64, item: LedgerItem) -> Option<u64> {
        let mut slots = self.slots.lock();
        let slot = match slots.vacant.pop() {
            Some(slot) => slot,
            None if slots.unused < SLOT_COUNT => {
                slots.unused += 1;
                self.words()[3].store(slots.unused.into(), Ordering::Release);
                slots.unused - 1
            }
            None => return None,
        };
        slots.serial += 1;
        let number = slots.serial << SLOT_BITS | u64::from(slot);
        drop(slots);
        let words = self.slot(slot);
        words[0].store(number, Ordering::Relaxed);
        words[1].store(node, Ordering::Relaxed);
        words[2].store(unique, Ordering::Relaxed);
        // Last: until then the slot is vacant.
        words[3].store(item.word(), Ordering::Release);
        Some(number)
    }

    /// Removes the entry with this `number`, unless that was done.
    pub(crate) fn remove(&self, number: u64) {
        let slot = (number & u64::from(SLOT_COUNT - 1)) as u32;
        let words = self.slot(slot);
        if words[0].load(Ordering::Relaxed) == number && words[3].swap(0, Ordering::AcqRel) != 0 {
            self.slots.lock().vacant.push(slot);
        }
    }

    fn slot(&self, slot: u32) -> &[AtomicU64; SLOT_WORDS] {
        &self.words()[HEADER_WORDS..].as_chunks().0[slot as usize]
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }
}

fn fault(error: impl Into<io::Error>) -> Error {
    Error::disk("cannot use the ledger of a mount (memfd)", error.into())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    const FEATURES: MountFeatures = MountFeatures { passthrough: true, stateless: false };

    fn reopen(ledger: &Ledger) -> (Ledger, Vec<LedgerEntry>) {
        Ledger::open(ledger.memory.as_fd().try_clone_to_owned().expect("a descriptor")).expect("a ledger")
    }

    #[test]
    fn ledger_reopened_has_the_features() {
        let ledger = Ledger::new(FEATURES).expect("a ledger");
        ledger.set_device((3, u32::MAX));
        let (reopened, entries) = reopen(&ledger);
        assert_eq!((reopened.features(), reopened.device(), entries), (FEATURES, (3, u32::MAX), Vec::new()));
    }

    #[test]
    fn ledger_of_another_format_is_refused() {
        let kind = |file: OwnedFd| Ledger::open(file).expect_err("no ledger").kind();
        assert_eq!(kind(tempfile::tempfile().expect("a file").into()), Kind::Unsupported);
        let other = Ledger::new(FEATURES).expect("a ledger");
        other.words()[0].store(MAGIC + 1, Ordering::Relaxed);
        assert_eq!(kind(other.memory.as_fd().try_clone_to_owned().expect("a descriptor")), Kind::Unsupported);
    }

    proptest! {
        #[test]
        fn ledger_any_sequence_survives_reopening_and_never_repeats_a_number(
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>(), any::<u32>()), 0..200),
        ) {
            let mut ledger = Ledger::new(FEATURES).expect("a ledger");
            let (mut expected, mut given) = (HashMap::new(), Vec::new());
            for (step, which, node) in steps {
                match step {
                    0 | 1 => {
                        let item = [LedgerItem::Cached, LedgerItem::Passthrough(node), LedgerItem::BackingFile(node), LedgerItem::Damaged(node)][which.index(4)];
                        let (node, unique) = (node.into(), u64::from(node) * 2);
                        let number = ledger.insert(node, unique, item).expect("a slot");
                        prop_assert!(!given.contains(&number));
                        given.push(number);
                        expected.insert(number, LedgerEntry { number, node, unique, item });
                    }
                    2 if !given.is_empty() => {
                        // Perhaps for the second time, and the slot has another number by now.
                        let number = given[which.index(given.len())];
                        ledger.remove(number);
                        expected.remove(&number);
                    }
                    _ => {
                        let (next, entries) = reopen(&ledger);
                        prop_assert_eq!(entries.len(), expected.len());
                        prop_assert!(entries.iter().all(|entry| expected.get(&entry.number) == Some(entry)));
                        ledger = next;
                    }
                }
            }
        }
    }
}
