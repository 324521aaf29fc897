//! Eviction: keeps the cache within its limits by removing the least recently used blobs of all tenants.

mod volume_claims;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Kind, Result};

use super::Limits;
use super::disk_writer::DiskWriter;
use super::layout::CacheRoot;
use super::leases::{LeaseGroup, LeaseSet, union_bytes};
use super::partition::Partition;
use super::pressure::PressureListeners;

pub use volume_claims::{VolumeClaim, VolumeClaims};

/// One pass frees at least this share of the capacity, so that passes, each of which looks at every blob, stay rare.
const EVICTION_PASS_FRACTION: u64 = 50;

/// The time that a caller that needs room waits while eviction is paused. Not for ever: a lease holder that comes back may need the
/// waiting thread.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of bytes written between two checks of the file system's own free space, which others use too.
const FREE_SPACE_CHECK_BYTES: i64 = 64 << 20;

/// Accounts for the space of all tenants, and makes room for more.
#[derive(Debug)]
pub struct Evictor {
    root: Arc<CacheRoot>,
    writer: Arc<DiskWriter>,
    limits: Limits,
    partitions: Mutex<Vec<Arc<Partition>>>,
    counted: AtomicBool,
    /// Bytes that may still be written before the file system is asked again.
    credit: AtomicI64,
    evicted: AtomicU64,
    pass_lock: Mutex<()>,
    admission_lock: Mutex<()>,
    /// The number of [`EvictionPause`]s.
    pauses: Mutex<usize>,
    released: Condvar,
    pressure_listeners: PressureListeners,
    volume_claims: VolumeClaims,
}

/// Pauses eviction until it is dropped: callers that need room wait. It is for a start, when the
/// lease holders of the previous run are not back yet.
#[derive(Debug)]
pub struct EvictionPause(Arc<Evictor>);

impl Drop for EvictionPause {
    fn drop(&mut self) {
        *self.0.pauses.lock() -= 1;
        self.0.released.notify_all();
    }
}

impl Evictor {
    /// An evictor for the cache in `root`, whose disk `writer` writes to. It has no tenants yet.
    pub fn new(root: Arc<CacheRoot>, writer: Arc<DiskWriter>, limits: Limits) -> Self {
        Self {
            root,
            writer,
            limits,
            partitions: Mutex::default(),
            counted: AtomicBool::new(false),
            credit: AtomicI64::new(0),
            evicted: AtomicU64::new(0),
            pass_lock: Mutex::new(()),
            admission_lock: Mutex::new(()),
            pauses: Mutex::new(0),
            released: Condvar::new(),
            pressure_listeners: PressureListeners::default(),
            volume_claims: VolumeClaims::default(),
        }
    }

    /// Adds the partition of a tenant.
    pub fn add(&self, partition: Arc<Partition>) {
        self.lock_partitions().push(partition);
    }

    /// The partitions of all tenants.
    pub fn partitions(&self) -> Vec<Arc<Partition>> {
        self.lock_partitions().clone()
    }

    fn lock_partitions(&self) -> MutexGuard<'_, Vec<Arc<Partition>>> {
        self.partitions.lock()
    }

    /// Pauses eviction until the result is dropped.
    pub fn pause(self: &Arc<Self>) -> EvictionPause {
        *self.pauses.lock() += 1;
        EvictionPause(self.clone())
    }

    /// Begins to count what the cache already holds, on a thread of its own: a million blobs take seconds.
    ///
    /// # Errors
    /// [`Kind::Disk`] when no thread can be made.
    pub fn count_in_background(self: &Arc<Self>) -> Result<()> {
        let evictor = self.clone();
        let counting = std::thread::Builder::new().name("bdnfs-count".into()).spawn(move || evictor.count());
        let cannot =
            |e| Error::with(Kind::Disk, "cannot start the thread that counts what the cache holds", e);
        counting.map(drop).map_err(cannot)
    }

    fn count(&self) {
        for partition in self.partitions() {
            partition.recount(&partition.scan());
        }
        // What waits for this sees what was counted.
        self.counted.store(true, Release);
        for partition in self.partitions() {
            if let Err(error) = self.make_room(&partition, 0) {
                tracing::warn!(%error, "the cache is over its limit");
            }
        }
    }

    /// The listeners that may release blobs before a reservation is refused.
    pub fn pressure_listeners(&self) -> &PressureListeners {
        &self.pressure_listeners
    }

    /// The limits of the cache.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether what the cache held at the start has been counted.
    pub fn is_counted(&self) -> bool {
        self.counted.load(Acquire)
    }

    /// Bytes that all blobs occupy; `None` until they have been counted.
    pub fn used(&self) -> Option<u64> {
        self.is_counted().then(|| self.lock_partitions().iter().map(|partition| partition.used()).sum())
    }

    /// Bytes evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Bytes free on the file system.
    pub fn free(&self) -> u64 {
        rustix::fs::statvfs(self.root.path()).map_or(0, |s| s.f_bavail * s.f_frsize)
    }

    /// Makes room for `bytes` more, which `partition` has [reserved](Partition::reserve) already, evicting for them where need be.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the limits leave no room and what is there is leased.
    pub fn make_room(&self, partition: &Partition, bytes: u64) -> Result<()> {
        self.credit.fetch_sub(bytes as i64, Relaxed);
        if self.shortfall() == 0 && self.quota_excess(partition) == 0 {
            return Ok(());
        }
        let mut pauses = self.pauses.lock();
        if self.released.wait_while_for(&mut pauses, |pauses| *pauses > 0, PAUSE_TIMEOUT).timed_out() {
            let text = "the cache is full, and nothing is evicted before the previous mounts are restored";
            return Err(Error::new(Kind::NoSpace, text));
        }
        drop(pauses);
        let _pass = self.pass_lock.lock();
        // Another pass may have made the room meanwhile.
        let over = self.quota_excess(partition);
        self.evict_bytes(
            over,
            partition.quota,
            |other| std::ptr::eq(other, partition),
            || self.quota_full(partition),
        )?;
        self.evict_bytes(self.shortfall(), self.limits.capacity, |_| true, || self.cache_full())
    }

    /// Leases all of `groups` for `partition`, if they fit beside all other leases; else none.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], with what is needed, what there is and who holds it.
    pub fn admit(&self, partition: &Partition, groups: Vec<LeaseGroup>) -> Result<Vec<LeaseSet>> {
        // Serialized, so that the second caller sees the first one's leases.
        let _admission = self.admission_lock.lock();
        let own = partition.leases.bytes_with(&groups);
        let others: u64 = self
            .partitions()
            .iter()
            .filter(|other| !std::ptr::eq(other.as_ref(), partition))
            .map(|other| other.leases.bytes_with(&[]))
            .sum();
        let most = self.max_leasable();
        match partition.quota {
            // Over its own quota: other tenants' leases do not matter.
            Some(quota) if own > quota => {
                return Err(self.no_room(partition, &groups, most.min(quota), 0));
            }
            _ if own + others > most => return Err(self.no_room(partition, &groups, most, others)),
            _ => {}
        }
        Ok(groups.into_iter().map(|group| partition.leases.lease_all(group)).collect())
    }

    /// Makes sure that all of `groups` would have room if nothing else was leased, and there was no volume.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], as [`admit`](Self::admit).
    pub fn ensure_fits(&self, partition: &Partition, groups: &[LeaseGroup]) -> Result<()> {
        let disk = self.disk_bytes().saturating_add(self.volume_claims.occupied());
        let most = [self.limits.capacity, partition.quota].into_iter().flatten().fold(disk, u64::min);
        if union_bytes(groups.iter()) > most { Err(self.no_room(partition, groups, most, 0)) } else { Ok(()) }
    }

    /// The most bytes that can be leased.
    fn max_leasable(&self) -> u64 {
        let disk = self.disk_bytes().saturating_sub(self.volume_claims.outstanding());
        disk.min(self.limits.capacity.unwrap_or(u64::MAX))
    }

    /// The bytes of the disk that blobs may occupy, and volumes come to. Before the cache is counted the limit is unknown, and
    /// reservations fail later.
    fn disk_bytes(&self) -> u64 {
        self.used().map_or(u64::MAX, |used| (used + self.free()).saturating_sub(self.limits.reserve))
    }

    fn no_room(&self, partition: &Partition, groups: &[LeaseGroup], most: u64, others: u64) -> Error {
        let mut holders: Vec<_> =
            partition.leases.groups().iter().map(|held| (held.label().to_owned(), held.bytes())).collect();
        holders.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        holders.dedup();
        if others > 0 {
            holders.push(("other tenants".to_owned(), others));
        }
        let held: Vec<_> = holders.iter().map(|(what, bytes)| format!("{what} ({bytes} bytes)")).collect();
        let held = if held.is_empty() {
            String::new()
        } else {
            format!(", of which is held by {}", held.join(", "))
        };
        let what = groups.iter().map(LeaseGroup::label).collect::<Vec<_>>().join(", ");
        let (need, root) = (union_bytes(groups.iter()), self.root.path().display());
        let limit = match most {
            _ if self.limits.capacity == Some(most) => "give it more with --cache-size",
            _ if partition.quota == Some(most) => "raise the tenant's quota",
            _ => "leave less of its disk free with --cache-reserve",
        };
        let held = match self.volume_claims.outstanding() {
            0 => held,
            claimed => format!("{held}, while jobs may still write {claimed} bytes"),
        };
        let text = format!(
            "{what} needs {need} bytes and the cache {root} has room for {most}{held}: unmount something, {limit}, \
             name another disk with --cache-dir, or choose fewer files with --allow"
        );
        Error::new(Kind::NoSpace, text)
    }

    /// The bytes to evict before those that are reserved fit.
    fn shortfall(&self) -> u64 {
        if self.credit.load(Relaxed) < 0 {
            let spare = self.free() as i64 - self.limits.reserve as i64;
            let pending: u64 = self.lock_partitions().iter().map(|partition| partition.pending()).sum();
            self.credit.store((spare - pending as i64).min(FREE_SPACE_CHECK_BYTES), Relaxed);
        }
        let over_reserve = (-self.credit.load(Relaxed)).max(0) as u64;
        let over_capacity = match (self.limits.capacity, self.used()) {
            (Some(capacity), Some(used)) => used.saturating_sub(capacity),
            _ => 0,
        };
        over_reserve.max(over_capacity)
    }

    /// The bytes of this tenant to evict before those that it has reserved fit.
    fn quota_excess(&self, partition: &Partition) -> u64 {
        match partition.quota {
            Some(quota) if self.is_counted() => partition.used().saturating_sub(quota),
            _ => 0,
        }
    }

    /// Evicts `shortfall` bytes of the partitions that `choose` selects, and some of their `limit` besides.
    fn evict_bytes(
        &self,
        shortfall: u64,
        limit: Option<u64>,
        choose: impl Fn(&Partition) -> bool,
        full: impl FnOnce() -> String,
    ) -> Result<()> {
        if shortfall == 0 {
            return Ok(());
        }
        // Blobs are removed under a lock that readers need, too: not on a disk that does not answer.
        let root = self.root.clone();
        self.writer.run(move || {
            root.touch();
            Ok(())
        })?;
        let goal = shortfall.max(limit.unwrap_or(0) / EVICTION_PASS_FRACTION);
        let mut freed = self.evict_pass(goal, &choose);
        if freed < shortfall {
            self.pressure_listeners.notify();
            freed += self.evict_pass(goal - freed, &choose);
        }
        // Others may wait with more, and what was removed may be open still: the disk is asked anew.
        self.credit.store(-1, Relaxed);
        if freed >= shortfall {
            return Ok(());
        }
        let (root, short) = (self.root.path().display(), shortfall - freed);
        let text = format!(
            "the cache {root} is full: with {} it lacks {short} bytes, and all it holds is in use; give it more with \
             --cache-size, or unmount something",
            full()
        );
        Err(Error::new(Kind::NoSpace, text))
    }

    /// Evicts unleased blobs until `goal` bytes are freed, and returns how many were.
    fn evict_pass(&self, goal: u64, choose: impl Fn(&Partition) -> bool) -> u64 {
        let partitions: Vec<_> =
            self.partitions().into_iter().filter(|partition| choose(partition)).collect();
        let (mut candidates, mut evicted) = (Vec::new(), Vec::new());
        for partition in &partitions {
            let found = partition.scan();
            partition.recount(&found);
            candidates.extend(found.into_iter().map(|found| (evicted.len(), found)));
            evicted.push((partition, HashSet::new()));
        }
        candidates.sort_unstable_by_key(|(_, found)| found.used_at);
        let mut freed = 0;
        for (number, found) in candidates {
            if freed >= goal {
                break;
            }
            let (partition, keys) = &mut evicted[number];
            if partition.remove(&found) {
                freed += found.bytes;
                keys.insert(found.key);
            }
        }
        for (partition, keys) in evicted {
            partition.removal_listeners.notify_evicted(&keys);
        }
        self.evicted.fetch_add(freed, Relaxed);
        freed
    }

    fn cache_full(&self) -> String {
        match self.limits.capacity {
            Some(capacity) => format!("a limit of {capacity} bytes"),
            None => format!("{} bytes to be kept free", self.limits.reserve),
        }
    }

    fn quota_full(&self, partition: &Partition) -> String {
        format!("{} bytes for the tenant {}", partition.quota.unwrap_or_default(), partition.layout.tenant())
    }
}
