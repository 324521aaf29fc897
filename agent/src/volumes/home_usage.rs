//! The usage of a home that nodes share: one of them counts it, and leaves the sum to the others.

use std::fs;
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
    /// How long the count took.
    seconds: f64,
}

impl CacheHome {
    /// The bytes that a home occupies which nodes share: as one of them counted lately, else counted now. Touches its disk.
    pub fn shared_usage(&self) -> u64 {
        if let Some(bytes) = self.recent_usage() {
            return bytes;
        }
        let begin = Instant::now();
        let bytes = occupied(&self.tree());
        let counted = CountedUsage { bytes, seconds: begin.elapsed().as_secs_f64() };
        if let Err(error) = write_json(self.path(), USAGE_FILE, &counted) {
            tracing::warn!("cannot write {}: {error}", self.path().join(USAGE_FILE).display());
        }
        bytes
    }

    /// The last count, unless it is due again. A clock that is behind the file system's makes it due.
    fn recent_usage(&self) -> Option<u64> {
        let path = self.path().join(USAGE_FILE);
        let age = fs::metadata(&path).and_then(|found| found.modified()).ok()?.elapsed().ok()?;
        let counted: CountedUsage = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let took = Duration::try_from_secs_f64(counted.seconds).ok()?;
        (age < measure_pause(took)).then_some(counted.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::cache_home::CacheScope;

    #[test]
    fn shared_usage_is_counted_by_one_node_until_it_is_due_again() {
        let directory = tempfile::tempdir().unwrap();
        let home = || CacheHome::new(directory.path(), "t", CacheScope::Project, "p").on_shared_file_system();
        home().create().unwrap();
        let empty = home().shared_usage();
        fs::write(home().tree().join("file"), vec![1; 1 << 20]).unwrap();
        fs::File::open(home().tree().join("file")).unwrap().sync_all().unwrap();
        assert_eq!(home().shared_usage(), empty, "the first count is recent");
        let note = fs::File::open(home().path().join(USAGE_FILE)).unwrap();
        note.set_modified(std::time::SystemTime::now() - measure_pause(Duration::ZERO)).unwrap();
        let grown = home().shared_usage() - empty;
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&grown), "{grown}");
        // One that nobody can read is none.
        fs::write(home().path().join(USAGE_FILE), "[").unwrap();
        assert_eq!(home().shared_usage() - empty, grown);
    }
}
