//! Removal marks: which damaged content was removed, until all who served it have dropped what was read of it.
//!
//! A mark is an empty file `removals/<blob>`. An agent that ends while the kernel still caches what it removed leaves the mark to
//! the next, which [tells](super::NodeCache::repeat_removals) the mounts again. Marks are not made durable: no page cache outlives
//! the machine, either.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, OFlags};

use crate::blob::Key;

use super::directory::CacheDirectory;

/// The marks of one tenant.
#[derive(Debug)]
pub(super) struct RemovalMarks {
    directory: CacheDirectory,
    /// The removals that this process knows of.
    live: Mutex<HashMap<Key, Weak<Mark>>>,
    /// Whether this process serves all mounts that there are: its listeners are all that have to be told.
    serves_all: AtomicBool,
    /// The number of [`InvalidationGuard`]s.
    invalidations: Mutex<usize>,
    invalidated: Condvar,
}

/// A removal of damaged content, which is marked on the disk until the last clone of this is dropped.
#[derive(Clone, Debug)]
pub struct Removal(Arc<Mark>);

impl Removal {
    /// The blob that it was content of.
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// Begins to drop what the kernel caches of the content, for one mount; until the guard is dropped.
    pub fn begin_invalidation(&self) -> InvalidationGuard {
        *self.0.marks.invalidations.lock() += 1;
        InvalidationGuard(Arc::clone(&self.0.marks))
    }

    /// Leaves the mark to the next process: not all who served the content can be told.
    pub fn leave_mark(&self) {
        self.0.is_left.store(true, Relaxed);
    }
}

/// The kernel is dropping what it caches of removed content.
#[derive(Debug)]
pub struct InvalidationGuard(Arc<RemovalMarks>);

impl Drop for InvalidationGuard {
    fn drop(&mut self) {
        *self.0.invalidations.lock() -= 1;
        self.0.invalidated.notify_all();
    }
}

#[derive(Debug)]
struct Mark {
    marks: Arc<RemovalMarks>,
    key: Key,
    /// Whether it stays when the removal has been seen to its end.
    is_left: AtomicBool,
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut live = self.marks.live.lock();
        let is_removed_again = live.get(&self.key).is_none_or(|mark| mark.strong_count() > 0);
        if !is_removed_again {
            live.remove(&self.key);
            if self.marks.serves_all.load(Relaxed) && !self.is_left.load(Relaxed) {
                let name = self.key.to_string();
                let _ = rustix::fs::unlinkat(self.marks.directory.descriptor(), name, AtFlags::empty());
            }
        }
    }
}

impl RemovalMarks {
    /// The marks in `directory`.
    pub(super) fn new(directory: CacheDirectory) -> Arc<Self> {
        Arc::new(Self {
            directory,
            live: Mutex::default(),
            serves_all: AtomicBool::new(false),
            invalidations: Mutex::default(),
            invalidated: Condvar::new(),
        })
    }

    /// Blocks until no invalidation is under way, or for `limit`.
    pub(super) fn await_invalidations(&self, limit: Duration) {
        let mut under_way = self.invalidations.lock();
        self.invalidated.wait_while_for(&mut under_way, |under_way| *under_way > 0, limit);
    }

    /// Marks that damaged content of `key` is about to be removed. Without room for the mark, a warning is logged.
    pub(super) fn mark(self: &Arc<Self>, key: &Key) -> Removal {
        let mut live = self.live.lock();
        if let Err(error) = self.directory.file(key.to_string(), OFlags::WRONLY | OFlags::CREATE) {
            tracing::warn!(%key, %error, "cannot note that damaged data is removed: a crash would forget it");
        }
        if let Some(mark) = live.get(key).and_then(Weak::upgrade) {
            return Removal(mark);
        }
        let (marks, key, is_left) = (Arc::clone(self), *key, AtomicBool::new(false));
        let mark = Arc::new(Mark { marks, key, is_left });
        live.insert(key, Arc::downgrade(&mark));
        Removal(mark)
    }

    /// The removals that are marked. From now on a mark goes when the last who was told is done.
    pub(super) fn serve_all(self: &Arc<Self>) -> io::Result<Vec<Removal>> {
        self.serves_all.store(true, Relaxed);
        let names = std::fs::read_dir(self.directory.path())?.collect::<io::Result<Vec<_>>>()?;
        let keys = names.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(keys.map(|key: Key| self.mark(&key)).collect())
    }

    /// Leaves the marks that there are to the next process: the tasks that they wait for are about to be cancelled.
    pub(super) fn leave(&self) {
        self.serves_all.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;
    use crate::digest::Digest;

    fn marks(home: &Path) -> Arc<RemovalMarks> {
        RemovalMarks::new(CacheDirectory::open(home).expect("a directory"))
    }

    #[test]
    fn invalidations_under_way_are_awaited_for_a_while() {
        let home = tempfile::tempdir().expect("a directory");
        let marks = marks(home.path());
        let removal = marks.mark(&Key::Origin(Digest::of(b"1")));
        let (moment, long) = (Duration::from_millis(20), Duration::from_secs(100));
        marks.await_invalidations(long);
        let under_way = removal.begin_invalidation();
        let begin = std::time::Instant::now();
        marks.await_invalidations(moment);
        assert!(begin.elapsed() >= moment);
        let ending = std::thread::spawn(move || {
            std::thread::sleep(moment);
            drop(under_way);
        });
        marks.await_invalidations(long);
        assert!((moment * 2..long).contains(&begin.elapsed()));
        ending.join().expect("ended");
    }

    #[test]
    fn removal_that_nobody_saw_to_the_end_is_found_by_the_next_process() {
        let home = tempfile::tempdir().expect("a directory");
        let files = || std::fs::read_dir(home.path()).expect("a directory").count();
        let (one, other) = (Key::Origin(Digest::of(b"1")), Key::Content(Digest::of(b"2")));
        let first = marks(home.path());
        drop((first.mark(&one), first.mark(&other)));
        assert_eq!(files(), 2, "mounts that others serve were not told");
        let next = marks(home.path());
        let found = next.serve_all().expect("a directory");
        assert_eq!(found.iter().map(|removal| *removal.key()).collect::<HashSet<_>>(), [one, other].into());
        let again = next.mark(&one);
        drop(found);
        assert_eq!(files(), 1, "it was removed again meanwhile");
        drop(again);
        assert_eq!(files(), 0);
        let unheard = next.mark(&one);
        unheard.leave_mark();
        drop(unheard);
        assert_eq!(files(), 1, "not all could be told");
        let cancelled = next.mark(&one);
        next.leave();
        drop(cancelled);
        assert_eq!(files(), 1, "nobody saw it to its end");
    }
}
