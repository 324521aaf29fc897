//! Parts: blobs of which the cache has some blocks.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::SystemTime;

use bytes::Bytes;
use memmap2::Mmap;
use parking_lot::{Mutex, RwLock};
use rustix::fs::FallocateFlags;
use zerocopy::{FromBytes, IntoBytes};

use crate::blob::Key;
use crate::block::{self, Arrival, BLOCK, Check, Verified};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

use super::direct_io::DirectFile;
use super::disk_writer::DiskWriter;
use super::io;
use super::layout::{BlobFile, Layout};
use super::presence::{self, BlockState, Presence};
use super::space::{Reservation, TenantSpace};

/// A blob of which some blocks are here. Blocks can be put and read from many threads at once.
#[derive(Debug)]
pub struct PartialBlob {
    layout: Arc<Layout>,
    space: Arc<TenantSpace>,
    writer: Arc<DiskWriter>,
    key: Key,
    size: u64,
    file: File,
    /// The way for whole blocks; none for blobs without one, and where the file system has none.
    direct: Option<DirectFile>,
    /// A blob of one block has no map: it is there or not.
    map: Option<Mutex<File>>,
    presence: Presence,
    /// Held by who stores or verifies a block, and alone by who punches a hole.
    punching: RwLock<()>,
    holes: AtomicU64,
    /// Whether its file had the blocks of a whole blob from the beginning: one that was damaged.
    occupied: bool,
    /// Since when all of its blocks were verified; `None` where an earlier process left some.
    verified_since: Option<SystemTime>,
}

impl PartialBlob {
    /// Opens or makes the part of the blob with this key and size at the time `now`.
    pub(super) fn open(
        layout: Arc<Layout>,
        space: Arc<TenantSpace>,
        writer: Arc<DiskWriter>,
        (key, size): (Key, u64),
        now: SystemTime,
    ) -> Result<Self> {
        if size > MAX_CACHED_BLOB_BYTES {
            let text =
                format!("blob {key} of {size} bytes is larger than a cache can hold, and is read without it");
            return Err(Error::new(Kind::NoSpace, text));
        }
        let blocks = block::count(size);
        let file = layout.create_blob(&key, BlobFile::Part)?;
        let metadata = file.metadata().map_err(|e| layout.fault("stat", &key, e))?;
        let length = metadata.len();
        let (map, presence) = if blocks > 1 {
            let (map, presence) = open_map(&layout, &key, size, length == size)?;
            (Some(Mutex::new(map)), presence)
        } else {
            (None, Presence::none(blocks))
        };
        file.set_len(size).map_err(|e| layout.fault("size", &key, e))?;
        let direct = if size >= BLOCK { DirectFile::open(&layout, &key, BlobFile::Part) } else { None };
        let verified_since = (presence.missing() == blocks).then_some(now);
        // stat(2) counts in 512 bytes.
        let occupied = length == size && metadata.blocks() * 512 >= size;
        let (punching, holes) = Default::default();
        Ok(Self {
            layout,
            space,
            writer,
            key,
            size,
            file,
            direct,
            map,
            presence,
            punching,
            holes,
            occupied,
            verified_since,
        })
    }

    /// Since when all of its blocks were verified, each as it arrived; `None` where an earlier process left some.
    pub(super) fn verified_since(&self) -> Option<SystemTime> {
        self.verified_since
    }

    /// The layout of the directory that holds it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The key of the blob that this is a part of.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The size of the whole blob, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it still lies under its name: it was neither made whole, nor discarded, nor evicted.
    pub(super) fn is_current(&self) -> bool {
        let named = self.layout.stat(&self.key, BlobFile::Part);
        rustix::fs::fstat(&self.file).is_ok_and(|own| named.is_some_and(|named| named.st_ino == own.st_ino))
    }

    /// The presence of its blocks.
    pub fn presence(&self) -> &Presence {
        &self.presence
    }

    /// Stores a block. Putting one again is harmless.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when neither the limits nor eviction leave room; [`Kind::Disk`]; [`Kind::Busy`] while the disk does not
    /// answer.
    pub fn put(self: &Arc<Self>, verified: &Verified) -> Result<()> {
        if self.presence.state(verified.index()) == BlockState::Present {
            return Ok(());
        }
        let needed =
            (!self.occupied).then(|| self.space.reserve(verified.bytes().len() as u64)).transpose()?;
        let (part, verified) = (self.clone(), verified.clone());
        self.writer.run(move || part.store(&verified))?;
        needed.into_iter().for_each(Reservation::written);
        Ok(())
    }

    fn store(&self, verified: &Verified) -> Result<()> {
        let (index, bytes) = (verified.index(), verified.bytes());
        let _punching = self.punching.read();
        self.write(index * BLOCK, bytes)
            .and_then(|()| self.record(index, verified.check()))
            .map_err(|e| self.layout.fault("write", &self.key, e))
    }

    fn write(&self, offset: u64, bytes: &Bytes) -> std::io::Result<()> {
        let done = self.direct.as_ref().map_or(Ok(false), |direct| direct.write(offset, bytes))?;
        if done { Ok(()) } else { io::write(&self.file, offset, bytes) }
    }

    /// Records that block `index` is here, in memory and in the map.
    fn record(&self, index: u64, check: &Check) -> std::io::Result<()> {
        let Some(map) = &self.map else {
            self.presence.set_present(index, true);
            return Ok(());
        };
        // One writer at a time: an older value of a shared word must not overwrite a newer one.
        let map = map.lock();
        io::write(&map, presence::check_at(self.presence.blocks(), index), check.as_bytes())?;
        self.presence.set_present(index, true);
        let (at, pair) = self.presence.pair(index);
        io::write(&map, at, &pair)
    }

    /// Doubts all that is here, since the disk has failed to keep some of it. What has no check beside it is forgotten.
    pub(super) fn doubt_all(&self) {
        let _punching = self.punching.write();
        let map = self.map.as_ref().map(Mutex::lock);
        (0..self.presence.blocks()).for_each(|index| self.presence.doubt(index));
        let noted = match &map {
            Some(map) => io::write(map, presence::MAP_HEADER_BYTES, &self.presence.pairs()),
            None => {
                self.presence.set_present(0, false);
                // Readers that have found it here look again when they have read.
                self.punch_hole(0);
                Ok(())
            }
        };
        if let Err(error) = noted {
            tracing::debug!(key = %self.key, %error, "cannot record that a part is doubted");
        }
        // Last, for until then readers of what has checks have the right bytes from them.
        io::forget_pages(&self.file);
    }

    /// Punches a hole in the place of a block: ext4 writes a page that it has failed to write before without converting its
    /// unwritten extent, and so to no effect, and the kernel drops no page that is in use, such as by what compacts memory. Not in
    /// a file that was whole: who has it mapped would see the hole.
    fn punch_hole(&self, index: u64) {
        if self.occupied || !self.is_current() {
            return;
        }
        self.holes.fetch_add(1, SeqCst);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Beyond the end of the file, too: of a page that is not whole, only the bytes would go.
        if let Err(error) = rustix::fs::fallocate(&self.file, hole, index * BLOCK, BLOCK) {
            tracing::debug!(key = %self.key, index, %error, "a block that the disk has failed to keep stays there");
        }
    }

    /// Returns the number of holes that were punched into the file: what was read meanwhile may be of one.
    pub fn holes(&self) -> u64 {
        self.holes.load(SeqCst)
    }

    /// Verifies a block that is said to be here, and forgets it when it is damaged. True where nothing wrong
    /// was found: it may stay doubted, where the disk does not answer.
    pub fn recheck(self: &Arc<Self>, index: u64) -> bool {
        self.presence.doubt(index);
        self.verify_doubted(index, None);
        self.presence.state(index) != BlockState::Absent
    }

    /// Verifies a doubted block by its check, `known` or as the map has it. Afterwards it is present or
    /// absent, or still doubted where the disk does not answer.
    pub fn verify_doubted(self: &Arc<Self>, index: u64, known: Option<&Check>) {
        let (part, known) = (self.clone(), known.copied());
        let resolve = move || {
            part.resolve(index, known.as_ref());
            Ok(())
        };
        if let Err(error) = self.writer.run(resolve) {
            tracing::debug!(key = %self.key, index, %error, "cannot verify a doubted block");
        }
    }

    /// Whether a block is what its check says, as the map has it.
    pub fn is_block_right(&self, index: u64) -> bool {
        self.verify(index, None).is_ok()
    }

    fn verify(&self, index: u64, known: Option<&Check>) -> Result<()> {
        let noted = self.check(index)?;
        let expected = known.unwrap_or(&noted);
        let bytes = self.read_past_pages(index, io::read_anew)?;
        Arrival { size: self.size, index, bytes }.verify(Some(expected)).map(drop)
    }

    fn resolve(&self, index: u64, known: Option<&Check>) {
        // What is verified is no hole before that is noted.
        let punching = self.punching.read();
        let verified = self.verify(index, known);
        let Some(map) = &self.map else { return };
        let Err(error) = verified else { return self.settle(index, true, &map.lock()) };
        tracing::debug!(key = %self.key, index, %error, "a block did not survive an unclean stop");
        drop(punching);
        let (_punching, map) = (self.punching.write(), map.lock());
        // Else it was stored again meanwhile.
        if self.presence.state(index) != BlockState::Present {
            self.punch_hole(index);
            self.settle(index, false, &map);
        }
    }

    /// Records whether a doubted block is here, in memory and in the map.
    fn settle(&self, index: u64, is_here: bool, map: &File) {
        self.presence.set_present(index, is_here);
        let (at, pair) = self.presence.pair(index);
        if let Err(error) = io::write(map, at, &pair) {
            // The doubt stays in the map, and is settled again after the next restart.
            tracing::debug!(key = %self.key, index, %error, "cannot record that a doubted block was verified");
        }
    }

    /// The check of a block, as the map has it.
    fn check(&self, index: u64) -> Result<Check> {
        let Some(map) = &self.map else {
            return Err(Error::new(Kind::Corrupt, "no map"));
        };
        let map = map.lock();
        let bytes = io::read(&map, presence::check_at(self.presence.blocks(), index), 32)
            .map_err(|e| self.layout.fault("read the map of", &self.key, e))?;
        Check::read_from_bytes(&bytes)
            .map_err(|_| Error::new(Kind::Corrupt, "the map is truncated within a block's check"))
    }

    /// Reads bytes whose blocks are all present.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn read(&self, offset: u64, len: usize) -> Result<Bytes> {
        io::read(&self.file, offset, len).map_err(|e| self.layout.fault("read", &self.key, e))
    }

    /// Reads block `index`, which is present, without a trace in the page cache where that can be.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn read_once(&self, index: u64) -> Result<Bytes> {
        self.read_past_pages(index, io::read)
    }

    /// Reads block `index`, which is present, past the page cache, and by `read` where that cannot be.
    fn read_past_pages(
        &self,
        index: u64,
        read: fn(&File, u64, usize) -> std::io::Result<Bytes>,
    ) -> Result<Bytes> {
        let (offset, len) = (index * BLOCK, block::len(self.size, index));
        let fault = |e| self.layout.fault("read", &self.key, e);
        let done = self.direct.as_ref().map_or(Ok(None), |direct| direct.read(offset, len as usize));
        match done.map_err(fault)? {
            Some(bytes) => Ok(bytes.freeze()),
            None => read(&self.file, offset, len as usize).map_err(fault),
        }
    }

    /// Runs `work` while all blocks are here, and none can be found damaged meanwhile.
    ///
    /// # Errors
    /// Those of `work`; [`Kind::Corrupt`] where a block is not here any more.
    pub(super) fn while_complete<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _map = self.map.as_ref().map(Mutex::lock);
        if self.presence.missing() > 0 {
            let text = format!("a block of blob {} was found damaged before it was whole", self.key);
            return Err(Error::new(Kind::Corrupt, text));
        }
        work()
    }

    /// The digest of the whole content, when all blocks are here; `None` when the map can't tell it.
    pub(super) fn digest(&self) -> Option<Digest> {
        match (&self.key, &self.map) {
            (Key::Content(digest), _) => Some(*digest),
            (_, None) => Some(Digest::of(&self.read(0, self.size as usize).ok()?)),
            (_, Some(map)) => {
                let map = map.lock();
                // SAFETY: the file is this cache's own, under its lock; it is only written under the mutex that is
                // held here, and never cut shorter, so the mapped bytes neither change nor vanish.
                let bytes = unsafe { Mmap::map(&*map) }.ok()?;
                let blocks = self.presence.blocks();
                let (start, end) = (presence::check_at(blocks, 0), presence::check_at(blocks, blocks));
                let checks = bytes.get(start as usize..end as usize)?;
                Check::combine(self.size, <[Check]>::ref_from_bytes(checks).ok()?).ok()
            }
        }
    }

    /// The file that holds the blocks.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Forgets all blocks, on the disk too: what they add up to is not what the origin publishes.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn discard(&self) -> Result<()> {
        self.layout.remove(&self.key, BlobFile::Map)?;
        self.layout.remove(&self.key, BlobFile::Part)?;
        self.space.release(self.stored_bytes());
        Ok(())
    }

    /// The bytes that it takes on the disk, as far as they were reserved.
    fn stored_bytes(&self) -> u64 {
        if self.occupied {
            return self.size;
        }
        let stored = (0..self.presence.blocks()).filter(|i| self.presence.state(*i) != BlockState::Absent);
        stored.map(|index| block::len(self.size, index)).sum()
    }
}

/// The largest blob that is cached, in bytes: 128 TiB, whose map takes 32 MiB of memory. An origin may claim any size.
const MAX_CACHED_BLOB_BYTES: u64 = 1 << 47;

/// Opens the map of a part, or makes one where there is none that fits. `sound` says that the part itself fits.
fn open_map(layout: &Layout, key: &Key, size: u64, sound: bool) -> Result<(File, Presence)> {
    let blocks = block::count(size);
    let map = layout.create_blob(key, BlobFile::Map)?;
    let fault = |e| layout.fault("open the map of", key, e);
    let head = (presence::MAP_HEADER_BYTES + presence::bits_len(blocks)) as usize;
    let known = io::read(&map, 0, head).ok().and_then(|b| presence::read(&b, size, layout.stamp()));
    let presence = match known {
        Some(presence) if sound => presence,
        _ => {
            map.set_len(0).map_err(fault)?;
            Presence::none(blocks)
        }
    };
    map.set_len(presence::check_at(blocks, blocks)).map_err(fault)?;
    for first in (0..blocks).step_by(64).filter(|first| presence.pair(*first).1 != [0; 16]) {
        let len = 32 * (blocks - first).min(64) as usize;
        let checks = io::read(&map, presence::check_at(blocks, first), len).map_err(fault)?;
        presence.forget_unchecked(first, &checks);
    }
    // The words first, then the stamp that vouches for those among them that say "present".
    io::write(&map, presence::MAP_HEADER_BYTES, &presence.pairs()).map_err(fault)?;
    io::write(&map, 0, &presence::header(size, layout.stamp())).map_err(fault)?;
    Ok((map, presence))
}
