//! The probe of a shared directory's locks: whether what one node has locked (flock(2)) is locked for the others.
//!
//! ```text
//! <directory>/.nodes/<random id>   locked by the agent of a node, which writes to it every few seconds
//! ```
//!
//! Who gets the lock of another node's file, and sees that file written while it has the lock, has proof that the lock is none.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::cache_home::is_at;
use super::node_identity::host_name;
use super::{Volumes, shared_root, try_lock};
use crate::context::Context;
use crate::random;

/// The directory of the nodes' files. No tenant's name has a dot.
const NODES_DIRECTORY: &str = ".nodes";
/// The interval at which a node writes to its file, and looks at others'.
const BEAT_INTERVAL: Duration = Duration::from_secs(5);
/// The number of looks at another's file while this node has its lock: a living node has written meanwhile.
const HELD_LOOKS: u32 = 3;
/// The age at which the file of an agent that is gone is removed; one that lives makes another.
const GONE_AGE: Duration = Duration::from_secs(60 * 60);

/// The content that a node writes to its file.
#[derive(Debug, Serialize, Deserialize)]
struct NodeBeat {
    /// The name of its machine.
    host: String,
    beat: u64,
}

/// The probe of one node.
#[derive(Debug)]
struct FlockProbe {
    /// The shared directory.
    shared: PathBuf,
    /// The directory of the nodes' files.
    nodes: PathBuf,
    /// The name of this node's file.
    name: String,
    /// The same, once it is locked.
    own: Option<File>,
    beats: u64,
    /// The file that was looked at last.
    last: PathBuf,
    held: Option<HeldFile>,
}

/// The file of another node, whose lock this one got.
#[derive(Debug)]
struct HeldFile {
    path: PathBuf,
    lock: File,
    /// The content of it when the lock was there.
    content: Vec<u8>,
    /// The number of looks at it since.
    looks: u32,
}

/// Probes the locks of the shared directory of `volumes`, if there is one, as long as it is polled. What is wrong with them is told
/// to those who [wait for it](Volumes::await_flock_fault).
pub async fn watch(volumes: Arc<Volumes>) {
    let Some(shared) = volumes.shared_directory().map(Path::to_owned) else { return };
    let probe = match FlockProbe::new(&shared) {
        Ok(probe) => Arc::new(Mutex::new(probe)),
        Err(error) => return tracing::warn!("cannot probe the locks on {}: {error}", shared.display()),
    };
    let mut last = None;
    loop {
        let probe = Arc::clone(&probe);
        let found = blocking(move || probe.lock().look()).await;
        let message = match found {
            Ok(None) => None,
            Ok(Some(host)) => {
                let fault = fault(&shared, &host);
                volumes.flock_fault.send_replace(Some(fault.clone()));
                Some(fault)
            }
            Err(error) => Some(format!("cannot probe the locks on {}: {error}", shared.display())),
        };
        if message.is_some() && message != last {
            tracing::warn!("{}", message.as_deref().unwrap_or_default());
            last = message;
        }
        sleep(BEAT_INTERVAL).await;
    }
}

/// Describes the fault where this node got the lock that the node `host` has.
fn fault(shared: &Path, host: &str) -> String {
    format!(
        "locks (flock) on {} do not hold between nodes: this one got a lock that {host} has; programs that rely on them, such as \
         huggingface_hub, damage files that several nodes write. Mount it with such locks (Lustre: -o flock; NFS: without nolock \
         and local_lock)",
        shared.display()
    )
}

impl FlockProbe {
    fn new(shared: &Path) -> Result<Self> {
        let name = random::id()?;
        let (shared, nodes) = (shared.to_owned(), shared.join(NODES_DIRECTORY));
        Ok(Self { shared, nodes, name, own: None, beats: 0, last: PathBuf::new(), held: None })
    }

    /// Writes to the file of this node, and looks at one of the others. Returns the host of another node that has a lock which this
    /// one has, too.
    fn look(&mut self) -> Result<Option<String>> {
        let nodes = self.nodes.clone();
        let failed = || format!("cannot use {}", nodes.display());
        shared_root::check(&self.shared).with_context(failed)?;
        shared_root::create_private(&self.nodes).with_context(failed)?;
        let own = nodes.join(&self.name);
        let looked = self.write_beat(&own).and_then(|()| self.look_at_another(&own));
        if looked.is_err() {
            // After a failure nobody knows whether the locks are still there: both are taken anew.
            (self.own, self.held) = (None, None);
        }
        looked.with_context(failed)
    }

    /// Writes to the file of this node, if it has the lock.
    fn write_beat(&mut self, path: &Path) -> io::Result<()> {
        // Another node removes it where this one was away for long.
        if self.own.as_ref().is_some_and(|own| !is_at(own, path).unwrap_or(false)) {
            self.own = None;
        }
        if self.own.is_none() {
            let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
            self.own = match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Another node may have removed it in between.
                Ok(()) => is_at(&file, path)?.then_some(file),
                // Another node looks at it.
                Err(error) if error == Errno::WOULDBLOCK => None,
                Err(error) => return Err(error.into()),
            };
        }
        let Some(mut file) = self.own.as_ref() else { return Ok(()) };
        self.beats += 1;
        let content = serde_json::to_vec(&NodeBeat { host: host_name(), beat: self.beats })?;
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&content)?;
        file.sync_data()
    }

    /// Takes the lock of another node's file, and looks whether that node writes to it all the same.
    fn look_at_another(&mut self, own: &Path) -> io::Result<Option<String>> {
        if let Some(mut held) = self.held.take() {
            held.looks += 1;
            let content = fs::read(&held.path)?;
            let beat = serde_json::from_slice::<NodeBeat>(&content).ok();
            // One that is being written says nothing yet.
            if let Some(beat) = beat.filter(|_| content != held.content) {
                return Ok(Some(beat.host));
            }
            if held.looks < HELD_LOOKS {
                self.held = Some(held);
            } else if held.is_gone() {
                fs::remove_file(&held.path)?;
            }
            return Ok(None);
        }
        let entries = fs::read_dir(&self.nodes)?.map(|entry| entry.map(|entry| entry.path()));
        let mut others = entries.collect::<io::Result<BTreeSet<_>>>()?;
        others.remove(own);
        let next = others.range::<Path, _>((Bound::Excluded(self.last.as_path()), Bound::Unbounded)).next();
        let Some(path) = next.or(others.first()).cloned() else { return Ok(None) };
        self.last.clone_from(&path);
        self.held = match try_lock(&path, FlockOperation::NonBlockingLockExclusive) {
            // Another node may have removed it in between, and its own may have made it anew.
            Ok(lock) if !is_at(&lock, &path)? => None,
            // There is nothing to compare with what comes before its node has written.
            Ok(lock) => {
                let content = fs::read(&path)?;
                let is_beat = serde_json::from_slice::<NodeBeat>(&content).is_ok();
                is_beat.then_some(HeldFile { content, path, lock, looks: 0 })
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            // Removed by another node.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(None)
    }
}

impl HeldFile {
    /// Whether its node was away for long.
    fn is_gone(&self) -> bool {
        let written = self.lock.metadata().and_then(|found| found.modified());
        written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > GONE_AGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_of_locks_that_hold_finds_nothing_and_removes_nodes_that_are_gone() {
        let shared = tempfile::tempdir().unwrap();
        let probe = || FlockProbe::new(shared.path()).unwrap();
        let files = || fs::read_dir(shared.path().join(NODES_DIRECTORY)).unwrap().count();
        let (mut one, mut other) = (probe(), probe());
        let look = |probes: &mut [&mut FlockProbe]| {
            for _ in 0..4 * HELD_LOOKS {
                for probe in &mut *probes {
                    assert_eq!(probe.look().unwrap(), None);
                }
            }
        };
        look(&mut [&mut one, &mut other]);
        assert!(files() == 2 && one.own.is_some() && other.own.is_some());
        let path = other.nodes.join(&other.name);
        drop(other);
        look(&mut [&mut one]);
        assert_eq!(files(), 2, "it may just be slow");
        File::open(&path).unwrap().set_modified(std::time::SystemTime::now() - GONE_AGE * 2).unwrap();
        look(&mut [&mut one]);
        assert_eq!(files(), 1);
        // Its own file was removed.
        fs::remove_file(one.nodes.join(&one.name)).unwrap();
        look(&mut [&mut one]);
        assert_eq!(files(), 1);
    }

    #[test]
    fn probe_without_the_shared_directory_fails_and_makes_none() {
        let parent = tempfile::tempdir().unwrap();
        let shared = parent.path().join("shared");
        assert!(FlockProbe::new(&shared).unwrap().look().is_err());
        assert!(!shared.exists());
    }
}
