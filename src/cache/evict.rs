//! Evict: keeping the cache within its limits by removing what was not used for longest, whose ever it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{Error, Kind, Result};

use super::Limits;
use super::layout::Root;
use super::lease::{Group, LeaseSet, together};
use super::relief::Reliefs;
use super::share::Share;

/// One pass frees at least this share of the capacity, so that passes, each of which looks at every blob, stay rare.
const SHARE: u64 = 50;

/// How long who needs room waits while all is held. Not for ever: whoever comes back may need the very thread that waits.
const HELD: Duration = Duration::from_secs(10);

/// How many bytes are written between two looks at the file system's own free space, which others use too.
const LOOK: i64 = 64 << 20;

/// What all tenants of a node have together, and the way to make room for more.
#[derive(Debug)]
pub struct Evictor {
    root: Arc<Root>,
    limits: Limits,
    shares: Mutex<Vec<Arc<Share>>>,
    counted: AtomicBool,
    /// Bytes that may still be written before the file system is asked again.
    credit: AtomicI64,
    evicted: AtomicU64,
    one_pass: Mutex<()>,
    admitting: Mutex<()>,
    /// How many keep everything from being evicted.
    holds: Mutex<usize>,
    released: Condvar,
    reliefs: Reliefs,
}

/// Keeps everything in the cache until it is dropped: who needs room waits. For a start, when those who will lease what
/// is there are not back yet.
#[derive(Debug)]
pub struct Hold(Arc<Evictor>);

impl Drop for Hold {
    fn drop(&mut self) {
        *self.0.holds.lock() -= 1;
        self.0.released.notify_all();
    }
}

impl Evictor {
    /// For the cache in `root`, which has no tenants yet.
    pub fn new(root: Arc<Root>, limits: Limits) -> Self {
        Self {
            root,
            limits,
            shares: Mutex::default(),
            counted: AtomicBool::new(false),
            credit: AtomicI64::new(0),
            evicted: AtomicU64::new(0),
            one_pass: Mutex::new(()),
            admitting: Mutex::new(()),
            holds: Mutex::new(0),
            released: Condvar::new(),
            reliefs: Reliefs::default(),
        }
    }

    /// Watches over one more share.
    pub fn add(&self, share: Arc<Share>) {
        self.shares_mut().push(share);
    }

    /// The shares of all tenants.
    pub fn shares(&self) -> Vec<Arc<Share>> {
        self.shares_mut().clone()
    }

    fn shares_mut(&self) -> MutexGuard<'_, Vec<Arc<Share>>> {
        self.shares.lock()
    }

    /// Has nothing evicted until the answer is dropped.
    pub fn hold(self: &Arc<Self>) -> Hold {
        *self.holds.lock() += 1;
        Hold(self.clone())
    }

    /// Begins to count what the cache already holds, on a thread of its own: a million blobs take seconds.
    pub fn count_in_background(self: &Arc<Self>) {
        let evictor = self.clone();
        let counting = std::thread::Builder::new().name("bdnfs-count".into()).spawn(move || {
            for share in evictor.shares() {
                share.note(&share.look());
            }
            evictor.counted.store(true, Relaxed);
            for share in evictor.shares() {
                if let Err(error) = evictor.make_room(&share, 0) {
                    tracing::warn!(%error, "the cache is over its limit");
                }
            }
        });
        if let Err(error) = counting {
            tracing::warn!(%error, "cannot count what the cache holds: only free space limits it");
        }
    }

    /// Who is asked to let go before a claim is refused.
    pub fn reliefs(&self) -> &Reliefs {
        &self.reliefs
    }

    /// What bounds the cache.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether what the cache held at the start has been counted.
    pub fn is_counted(&self) -> bool {
        self.counted.load(Relaxed)
    }

    /// Bytes that all blobs occupy; `None` until they have been counted.
    pub fn used(&self) -> Option<u64> {
        self.is_counted().then(|| self.shares_mut().iter().map(|share| share.used()).sum())
    }

    /// Bytes evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Bytes free on the file system.
    pub fn free(&self) -> u64 {
        rustix::fs::statvfs(self.root.path()).map_or(0, |s| s.f_bavail * s.f_frsize)
    }

    /// Makes room for `bytes` more, which `share` has [claimed](Share::claim) already, evicting for them where need be.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the limits leave no room and what is there is leased.
    pub fn make_room(&self, share: &Share, bytes: u64) -> Result<()> {
        self.credit.fetch_sub(bytes as i64, Relaxed);
        if self.lacking() == 0 && self.over_quota(share) == 0 {
            return Ok(());
        }
        let mut holds = self.holds.lock();
        if self.released.wait_while_for(&mut holds, |holds| *holds > 0, HELD).timed_out() {
            let text = "the cache is full, and nothing is evicted before what was mounted is back";
            return Err(Error::new(Kind::NoSpace, text));
        }
        drop(holds);
        let _one_pass = self.one_pass.lock();
        // Somebody else's pass may have made the room meanwhile.
        let over = self.over_quota(share);
        self.free_up(over, share.quota, |other| std::ptr::eq(other, share), || self.full_quota(share))?;
        self.free_up(self.lacking(), self.limits.capacity, |_| true, || self.full())
    }

    /// Leases all of `groups` for `share`, if all that is leased has room beside each other; else none.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], with what is needed, what there is and who holds it.
    pub fn admit(&self, share: &Share, groups: Vec<Group>) -> Result<Vec<LeaseSet>> {
        // Who comes second sees the lease of who comes first.
        let _one = self.admitting.lock();
        let own = share.leases.bytes_with(&groups);
        let others: u64 = self
            .shares()
            .iter()
            .filter(|other| !std::ptr::eq(other.as_ref(), share))
            .map(|other| other.leases.bytes_with(&[]))
            .sum();
        let most = self.most();
        match share.quota {
            // Others are no reason then.
            Some(quota) if own > quota => return Err(self.refused(share, &groups, most.min(quota), 0)),
            _ if own + others > most => return Err(self.refused(share, &groups, most, others)),
            _ => {}
        }
        Ok(groups.into_iter().map(|group| share.leases.lease_all(group)).collect())
    }

    /// Makes sure that all of `groups` would have room if nobody held anything else.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], as [`admit`](Self::admit).
    pub fn holds(&self, share: &Share, groups: &[Group]) -> Result<()> {
        let most = self.most().min(share.quota.unwrap_or(u64::MAX));
        if together(groups.iter()) > most { Err(self.refused(share, groups, most, 0)) } else { Ok(()) }
    }

    /// The most bytes that can be leased. Until it is counted what can go from the disk is not known; then claims find out.
    fn most(&self) -> u64 {
        let disk =
            self.used().map_or(u64::MAX, |used| (used + self.free()).saturating_sub(self.limits.reserve));
        disk.min(self.limits.capacity.unwrap_or(u64::MAX))
    }

    fn refused(&self, share: &Share, groups: &[Group], most: u64, others: u64) -> Error {
        let mut holders: Vec<_> =
            share.leases.groups().iter().map(|held| (held.what().to_owned(), held.bytes())).collect();
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
        let what = groups.iter().map(Group::what).collect::<Vec<_>>().join(", ");
        let (need, root) = (together(groups.iter()), self.root.path().display());
        let text = format!(
            "{what} needs {need} bytes and the cache {root} has room for {most}{held}: unmount something, give it more \
             with --cache-size, another disk with --cache-dir, or choose fewer files with --allow"
        );
        Error::new(Kind::NoSpace, text)
    }

    /// How many bytes must go before what is claimed can come.
    fn lacking(&self) -> u64 {
        if self.credit.load(Relaxed) < 0 {
            let spare = self.free() as i64 - self.limits.reserve as i64;
            let pending: u64 = self.shares_mut().iter().map(|share| share.pending()).sum();
            self.credit.store((spare - pending as i64).min(LOOK), Relaxed);
        }
        let over_reserve = (-self.credit.load(Relaxed)).max(0) as u64;
        let over_capacity = match (self.limits.capacity, self.used()) {
            (Some(capacity), Some(used)) => used.saturating_sub(capacity),
            _ => 0,
        };
        over_reserve.max(over_capacity)
    }

    /// How many bytes of this tenant must go before what it has claimed can come.
    fn over_quota(&self, share: &Share) -> u64 {
        match share.quota {
            Some(quota) if self.is_counted() => share.used().saturating_sub(quota),
            _ => 0,
        }
    }

    /// Frees `lacking` bytes of the shares that `choose` takes, and some of their `limit` besides.
    fn free_up(
        &self,
        lacking: u64,
        limit: Option<u64>,
        choose: impl Fn(&Share) -> bool,
        full: impl FnOnce() -> String,
    ) -> Result<()> {
        if lacking == 0 {
            return Ok(());
        }
        let goal = lacking.max(limit.unwrap_or(0) / SHARE);
        let mut freed = self.pass(goal, &choose);
        if freed < lacking {
            self.reliefs.ask();
            freed += self.pass(goal - freed, &choose);
        }
        self.credit.store(0, Relaxed);
        if freed >= lacking {
            return Ok(());
        }
        let (root, short) = (self.root.path().display(), lacking - freed);
        let text = format!(
            "the cache {root} is full: with {} it lacks {short} bytes, and all it holds is in use; give it more with \
             --cache-size, or unmount something",
            full()
        );
        Err(Error::new(Kind::NoSpace, text))
    }

    /// Evicts what nobody holds until `goal` bytes are freed, and answers with how many were.
    fn pass(&self, goal: u64, choose: impl Fn(&Share) -> bool) -> u64 {
        let shares: Vec<_> = self.shares().into_iter().filter(|share| choose(share)).collect();
        let mut candidates = Vec::new();
        for share in &shares {
            let found = share.look();
            share.note(&found);
            candidates.extend(found.into_iter().map(|found| (share, found)));
        }
        candidates.sort_unstable_by_key(|(_, found)| found.used_at);
        let mut freed = 0;
        for (share, found) in candidates {
            if freed >= goal {
                break;
            }
            if share.remove(&found) {
                freed += found.bytes;
            }
        }
        self.evicted.fetch_add(freed, Relaxed);
        freed
    }

    fn full(&self) -> String {
        match self.limits.capacity {
            Some(capacity) => format!("a limit of {capacity} bytes"),
            None => format!("{} bytes to be kept free", self.limits.reserve),
        }
    }

    fn full_quota(&self, share: &Share) -> String {
        format!("{} bytes for the tenant {}", share.quota.unwrap_or_default(), share.layout.tenant())
    }
}
