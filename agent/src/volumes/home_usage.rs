//! The usage of a home that nodes share: one of them counts it, and leaves the sum to the others.

use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::cache_home::CacheHome;
use super::{measure_pause, occupied};
use crate::durable::write_json;

/// The file in a home with the last count.
const USAGE_FILE: &str = "usage.json";

/// A count of what a home occupies.
#[derive(Debug, Serialize, Deserialize)]
struct CountedUsage {
    bytes: u64,
    /// The time that the count took, in seconds.
    seconds: f64,
}

impl CacheHome {
    /// Returns the bytes that a shared home occupies. A recent count of any node is used; else they are counted now, or, while
    /// another node counts, the count before is used. `None` where they were never counted. Touches its disk.
    pub fn shared_usage(&self) -> Option<u64> {
        let last = self.last_usage();
        if let Some((bytes, true)) = last {
            return Some(bytes);
        }
        let Ok(Some(_lock)) = self.try_usage_lock() else { return last.map(|(bytes, _)| bytes) };
        let begin = Instant::now();
        let bytes = occupied(&self.tree());
        let counted = CountedUsage { bytes, seconds: begin.elapsed().as_secs_f64() };
        if let Err(error) = write_json(self.path(), USAGE_FILE, &counted) {
            tracing::warn!("cannot write {}: {error}", self.path().join(USAGE_FILE).display());
        }
        Some(bytes)
    }

    /// The last count, and whether it is recent. A clock that is behind the file system's makes it due again.
    fn last_usage(&self) -> Option<(u64, bool)> {
        let mut file = File::open(self.path().join(USAGE_FILE)).ok()?;
        // That of the file that is read, which another may take the place of.
        let written = file.metadata().and_then(|found| found.modified()).ok()?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).ok()?;
        let counted: CountedUsage = serde_json::from_slice(&text).ok()?;
        let took = Duration::try_from_secs_f64(counted.seconds).ok()?;
        Some((counted.bytes, written.elapsed().is_ok_and(|age| age < measure_pause(took))))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::volumes::cache_home::CacheScope;

    #[test]
    fn shared_usage_is_counted_by_one_node_until_it_is_due_again() {
        let directory = tempfile::tempdir().unwrap();
        let of = || CacheHome::new(directory.path(), "t", CacheScope::Project, "p").on_shared_file_system();
        of().create().unwrap();
        let usage = || of().shared_usage().unwrap();
        let counting = of().try_usage_lock().unwrap().unwrap();
        assert_eq!(of().shared_usage(), None, "another node counts");
        drop(counting);
        let empty = usage();
        fs::write(of().tree().join("file"), vec![1; 1 << 20]).unwrap();
        fs::File::open(of().tree().join("file")).unwrap().sync_all().unwrap();
        // However long that has taken: a busy disk takes longer than the pause after a count.
        let note = fs::File::open(of().path().join(USAGE_FILE)).unwrap();
        note.set_modified(std::time::SystemTime::now()).unwrap();
        assert_eq!(usage(), empty, "the first count is recent");
        // Due however long the count took.
        note.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let counting = of().try_usage_lock().unwrap().unwrap();
        assert_eq!(usage(), empty, "another node counts");
        drop(counting);
        let grown = usage() - empty;
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&grown), "{grown}");
        // One that nobody can read is none.
        fs::write(of().path().join(USAGE_FILE), "[").unwrap();
        assert_eq!(usage() - empty, grown);
    }
}
