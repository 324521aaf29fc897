//! Eviction of cache homes: where room is short, those that are saved and not in use go, the least recently used first.

use std::fmt;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::volume::VolumeDirectory;

use super::cache_home::CacheHome;
use super::cache_sync::SyncState;
use super::home_mirrors::EvictionCandidate;
use super::{Volumes, occupied};
use crate::text;

/// The outcome of evicting homes.
#[derive(Debug, Default)]
pub struct HomeEvictions {
    evicted: Vec<EvictedHome>,
    /// The reasons why homes stay whose mirror did not confirm that it has them, where that is new.
    spared: Vec<String>,
}

/// A home that was evicted.
#[derive(Debug)]
struct EvictedHome {
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

impl HomeEvictions {
    /// Whether any home was evicted.
    pub fn has_evicted(&self) -> bool {
        !self.evicted.is_empty()
    }

    /// Returns the evictions, and the reasons why homes stay, for people.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.evicted.iter().map(ToString::to_string).chain(self.spared.iter().cloned())
    }
}

impl Volumes {
    /// Has the cache make way for what volumes have come to occupy, and then evicts homes as long as less than a part of the
    /// cache's reserve is free. Touches the local disk, and waits for mirrors as [`evict_homes`](Self::evict_homes) does.
    pub fn make_room(&self) -> HomeEvictions {
        self.space.make_way();
        self.evict_homes(|_| self.space.is_short())
    }

    /// Evicts homes of all tenants as long as `is_short` says so, which is told how many bytes were freed. Their mirrors are asked
    /// first, which have a few seconds: a home stays whose snapshot is not there. Waits until their space is free. Touches the
    /// local disk; call it on a blocking thread of a runtime.
    pub fn evict_homes(&self, is_short: impl Fn(u64) -> bool) -> HomeEvictions {
        if !is_short(0) {
            return HomeEvictions::default();
        }
        let saved = self.own_homes().into_iter().filter_map(|(tenant, home)| {
            let state = home.sync_state().ok().filter(SyncState::is_saved)?;
            Some(EvictionCandidate { tenant, home, state })
        });
        let (confirmed, spared) = self.mirrors.confirm(saved.collect());
        spared.iter().for_each(|why| tracing::warn!("{why}"));
        let (mut evicted, mut freed) = (Vec::new(), 0);
        // One after the other: the second caller sees the room that the first one made.
        let _eviction = self.eviction.lock();
        let idle = |one: EvictionCandidate| (one.home.synced_ago().unwrap_or_default(), one);
        let mut homes: Vec<_> = confirmed.into_iter().map(idle).collect();
        homes.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        for (idle, EvictionCandidate { home, state, .. }) in homes {
            if !is_short(freed) {
                break;
            }
            match home.evict(&state) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    freed += bytes;
                    evicted.push(EvictedHome { home, bytes, idle });
                }
                Err(error) => tracing::warn!("cannot evict {home}: {error}"),
            }
        }
        HomeEvictions { evicted, spared }
    }
}

impl CacheHome {
    /// Removes the home if nothing is lost with it, and waits until its space is free; the result is how many bytes it occupied. It
    /// must still be as it was when its mirror had all of it, in `confirmed`.
    fn evict(&self, confirmed: &SyncState) -> Result<Option<u64>> {
        let (Some(_use_lock), Some(_lock)) = (self.try_use_lock()?, self.try_idle_sync_lock()?) else {
            return Ok(None);
        };
        let state = self.sync_state()?;
        // Whether it is in use takes longer to find out.
        if state != *confirmed || self.is_in_use() {
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
    use std::path::Path;
    use std::sync::Arc;
    use std::time::{Instant, SystemTime};

    use bdnfs::mirror::Mirror;
    use bdnfs::mirroring::{MirrorConfig, MirrorProgress};
    use bdnfs::source::{Access, S3Access, Secret, Uri};
    use bdnfs::task::blocking;

    use super::*;
    use crate::api::MirrorRequest;
    use crate::volumes::NamedMirror;
    use crate::volumes::cache_home::CacheScope;
    use crate::volumes::cache_sync::CacheSync;
    use crate::volumes::tests::volumes;

    /// Volumes in a directory, and the mirror beside them, which is the agent's own.
    async fn saved_volumes(directory: &Path) -> (Arc<Volumes>, Mirror) {
        let uri = Uri::File(directory.join("mirror"));
        let mirror = Mirror::open(&uri, &Access::default(), "t", directory.to_owned()).unwrap();
        mirror.init().await.unwrap();
        let (volumes, own) = (Arc::new(volumes(directory)), mirror.clone());
        volumes.set_own_mirror(Box::new(move |_| Ok(Some(own.clone()))));
        (volumes, mirror)
    }

    /// A home with a file, saved in `mirror`, as a job of a while ago left it, with these changes to what is known of it.
    async fn home(
        (volumes, mirror): &(Arc<Volumes>, Mirror),
        name: &str,
        hours: u64,
        change: impl FnOnce(&mut SyncState),
    ) -> CacheHome {
        let home = volumes.cache_home("t", CacheScope::Project, name);
        home.create().unwrap();
        fs::write(home.tree().join("file"), name).unwrap();
        let lock = Arc::new(home.try_sync_lock().unwrap().unwrap());
        let sync = CacheSync::new(home.clone(), mirror.clone(), Arc::clone(&lock));
        let config = MirrorConfig { memory: 16 << 20 };
        sync.save(config, &MirrorProgress::default()).await.unwrap();
        lock.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
        let mut state = home.sync_state().unwrap();
        change(&mut state);
        fs::write(home.path().join("sync.json"), serde_json::to_vec(&state).unwrap()).unwrap();
        home
    }

    /// Evicts homes as long as `is_short`, and returns what became of them.
    async fn evict(volumes: &Arc<Volumes>, is_short: fn(u64) -> bool) -> Vec<String> {
        let volumes = Arc::clone(volumes);
        blocking(move || Ok(volumes.evict_homes(is_short).notes().collect())).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn evict_homes_removes_saved_unused_homes_the_least_recently_used_first() {
        let directory = tempfile::tempdir().unwrap();
        let saved = saved_volumes(directory.path()).await;
        let new = home(&saved, "new", 1, |_| ()).await;
        let old = home(&saved, "old", 3, |_| ()).await;
        let middle = home(&saved, "middle", 2, |_| ()).await;
        let others = [
            home(&saved, "never saved", 9, |state| state.manifest = None).await,
            home(&saved, "unsaved", 9, |state| state.unsaved_since = Some(1)).await,
            home(&saved, "torn", 9, |state| state.boot = Some("another".into())).await,
            home(&saved, "touched", 9, |state| state.since = 1).await,
            home(&saved, "used", 9, |_| ()).await,
            home(&saved, "pipe", 9, |_| ()).await,
        ];
        let (root, mode) = (rustix::fs::CWD, rustix::fs::Mode::RWXU);
        rustix::fs::mkfifoat(root, others[5].tree().join("pipe"), mode).unwrap();
        let _use = others[4].create().unwrap();

        let volumes = &saved.0;
        assert!(evict(volumes, |_| false).await.is_empty());
        assert_eq!(
            evict(volumes, |freed| freed == 0).await,
            [
                "removed the cache of the project old from this node to make room: it is saved, was not used for 3 h, and \
              occupied 4.1 kB"
            ]
        );
        assert!(!old.exists() && new.exists());
        assert_eq!(fs::read_dir(directory.path().join("volumes/t/trash")).unwrap().count(), 0);
        assert_eq!(evict(volumes, |_| true).await.len(), 2);
        assert!(!middle.exists() && !new.exists());
        assert!(others.iter().all(CacheHome::exists));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn evict_homes_spares_those_that_their_mirror_lost_and_says_so_once() {
        let directory = tempfile::tempdir().unwrap();
        let saved = saved_volumes(directory.path()).await;
        let (volumes, mirror) = &saved;
        let objects = directory.path().join("mirror/tenants/t");
        let without_ref = home(&saved, "without ref", 9, |_| ()).await;
        fs::remove_dir_all(objects.join("refs").join(without_ref.key().to_string())).unwrap();
        let without_manifest = home(&saved, "without manifest", 8, |_| ()).await;
        fs::remove_dir_all(objects.join("manifests")).unwrap();
        // Another node saved, which knew what this one had.
        let former = |generation| {
            move |state: &mut SyncState| {
                (state.manifest, state.generation) = (Some("former".into()), generation);
            }
        };
        let merged = home(&saved, "merged", 7, former(0)).await;
        // The bucket was emptied, and another node saved what it had.
        let anew = home(&saved, "anew", 6, former(5)).await;
        let elsewhere = home(&saved, "elsewhere", 5, |state| state.mirror = Some("s3://theirs".into())).await;
        let name = mirror.name();
        let mut notes = evict(volumes, |_| true).await;
        notes.sort();
        let stays = |name: &str, why: &str| {
            format!("the cache of the project {name} is not removed from this node to make room: {why}")
        };
        assert!(notes.remove(0).starts_with("removed the cache of the project merged"), "{notes:?}");
        let expected = [
            stays("anew", &format!("the mirror {name} lacks its snapshot")),
            stays("elsewhere", "a job named its mirror, which this agent does not know any more"),
            stays("without manifest", &format!("the mirror {name} lacks the manifest of its snapshot")),
            stays("without ref", &format!("the mirror {name} lacks its snapshot")),
        ];
        assert_eq!(notes, expected);
        assert!(!merged.exists());
        assert!([&without_ref, &without_manifest, &anew, &elsewhere].into_iter().all(CacheHome::exists));
        assert!(evict(volumes, |_| true).await.is_empty(), "it was told");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn evict_homes_waits_seconds_for_mirrors_that_do_not_answer() {
        let directory = tempfile::tempdir().unwrap();
        let saved = saved_volumes(directory.path()).await;
        let mut homes = Vec::new();
        for number in 0..20 {
            homes.push(home(&saved, &number.to_string(), 9, |state| state.mirror = None).await);
        }
        // It takes connections, and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Some(format!("http://{}", silent.local_addr().unwrap()));
        let s3 = S3Access { endpoint, anonymous: true, ..S3Access::default() };
        let (uri, access) = ("s3://bucket".parse().unwrap(), Access { s3: Some(s3), ..Access::default() });
        let mirror = Mirror::open(&uri, &access, "t", directory.path().to_owned()).unwrap();
        let request = MirrorRequest { url: Secret::new("s3://bucket"), tenant: "t".into(), access };
        let named = NamedMirror { mirror, request };
        homes.iter().for_each(|home| saved.0.note_mirror(home, named.clone()));
        silent.set_nonblocking(true).unwrap();
        let asked = || std::iter::from_fn(|| silent.accept().ok()).count();
        let begin = Instant::now();
        let notes = evict(&saved.0, |_| true).await;
        // One after the other they take five seconds each.
        assert!(begin.elapsed() < Duration::from_secs(50), "{:?}", begin.elapsed());
        assert!(asked() > 0);
        assert!(notes.len() == 20 && notes.iter().all(|note| note.contains("did not answer")), "{notes:?}");
        assert!(homes.iter().all(CacheHome::exists));
        assert!(evict(&saved.0, |_| true).await.is_empty());
        assert_eq!(asked(), 0, "they are not asked again so soon");
    }
}
