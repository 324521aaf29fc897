//! Eviction of cache homes: where room is short, those that are saved and not in use go, the least recently used first.

use std::fmt;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::volume::VolumeDirectory;

use super::cache_home::CacheHome;
use super::{Volumes, occupied};
use crate::text;

/// A home that was evicted.
#[derive(Debug)]
pub struct EvictedHome {
    home: CacheHome,
    bytes: u64,
    idle: Duration,
}

impl fmt::Display for EvictedHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (home, bytes, hours) = (&self.home, text::size(self.bytes), self.idle.as_secs() / 3600);
        write!(
            f,
            "removed {home} from this node to make room: it is saved, was not used for {hours} h, and occupied {bytes}"
        )
    }
}

impl Volumes {
    /// Has the cache make way for what volumes have come to occupy, and then evicts homes as long as less than a part of the
    /// cache's reserve is free. Touches the local disk.
    pub fn make_room(&self) -> Vec<EvictedHome> {
        self.space.make_way();
        self.evict_homes(|_| self.space.is_short())
    }

    /// Evicts homes of all tenants as long as `is_short` says so, which is told how many bytes were freed. Waits until their space
    /// is free. Touches the local disk.
    pub fn evict_homes(&self, is_short: impl Fn(u64) -> bool) -> Vec<EvictedHome> {
        // One after the other: the second caller sees the room that the first one made.
        let _eviction = self.eviction.lock();
        let (mut evicted, mut freed) = (Vec::new(), 0);
        if !is_short(freed) {
            return evicted;
        }
        let homes = self.own_homes().into_iter();
        let mut homes: Vec<_> =
            homes.map(|(_, home)| (home.synced_ago().unwrap_or_default(), home)).collect();
        homes.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        for (idle, home) in homes {
            match home.evict() {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    freed += bytes;
                    evicted.push(EvictedHome { home, bytes, idle });
                    if !is_short(freed) {
                        break;
                    }
                }
                Err(error) => tracing::warn!("cannot evict {home}: {error}"),
            }
        }
        evicted
    }
}

impl CacheHome {
    /// Removes the home if nothing is lost with it, and waits until its space is free; the result is how many bytes it occupied.
    fn evict(&self) -> Result<Option<u64>> {
        let (Some(_use_lock), Some(_lock)) = (self.try_use_lock()?, self.try_idle_sync_lock()?) else {
            return Ok(None);
        };
        let state = self.sync_state()?;
        // Whether it is in use takes longer to find out.
        if !state.is_saved() || self.is_in_use() {
            return Ok(None);
        }
        let scan = VolumeDirectory::open(&self.tree())?.walk()?;
        // Changed by no job, such as by hand, of a kind that can't be saved, or emptied, which is saved with the next file.
        if scan.is_touched_since(state.since) || !scan.skipped.is_empty() || scan.files.is_empty() {
            return Ok(None);
        }
        let bytes = occupied(&self.tree());
        self.remove()?;
        self.empty_trash();
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::volumes::cache_home::CacheScope;
    use crate::volumes::cache_sync::SyncState;
    use crate::volumes::tests::volumes;

    /// A home with a file, as a job of a while ago left it, with these changes to what is known of it.
    fn home(volumes: &Volumes, name: &str, idle: Duration, change: impl FnOnce(&mut SyncState)) -> CacheHome {
        let home = volumes.cache_home("t", CacheScope::Project, name);
        home.create().unwrap();
        fs::write(home.tree().join("file"), name).unwrap();
        let lock = home.try_sync_lock().unwrap().unwrap();
        lock.set_modified(std::time::SystemTime::now() - idle).unwrap();
        let mut state =
            SyncState { manifest: Some("snapshot".into()), since: i64::MAX, ..SyncState::default() };
        change(&mut state);
        fs::write(home.path().join("sync.json"), serde_json::to_vec(&state).unwrap()).unwrap();
        home
    }

    #[test]
    fn evict_homes_removes_saved_unused_homes_the_least_recently_used_first() {
        let directory = tempfile::tempdir().unwrap();
        let volumes = volumes(directory.path());
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let new = home(&volumes, "new", hours(1), |_| ());
        let old = home(&volumes, "old", hours(2), |_| ());
        let middle = home(&volumes, "middle", hours(1) + Duration::from_secs(9), |_| ());
        let others = [
            home(&volumes, "never saved", hours(9), |state| state.manifest = None),
            home(&volumes, "unsaved", hours(9), |state| state.unsaved_since = Some(1)),
            home(&volumes, "torn", hours(9), |state| state.boot = Some("another".into())),
            home(&volumes, "touched", hours(9), |state| state.since = 1),
            home(&volumes, "used", hours(9), |_| ()),
        ];
        let pipe = home(&volumes, "pipe", hours(9), |_| ());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            pipe.tree().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let _use = others[4].create().unwrap();

        assert!(volumes.evict_homes(|_| false).is_empty());
        let evicted = volumes.evict_homes(|freed| freed == 0);
        let text = evicted.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            text,
            [
                "removed the cache of the project old from this node to make room: it is saved, was not used for 2 h, and \
              occupied 4.1 kB"
            ]
        );
        assert!(!old.exists() && new.exists());
        assert_eq!(fs::read_dir(directory.path().join("volumes/t/trash")).unwrap().count(), 0);
        assert_eq!(volumes.evict_homes(|_| true).len(), 2);
        assert!(!middle.exists() && !new.exists());
        assert!(others.iter().chain([&pipe]).all(CacheHome::exists));
    }
}
