//! Source history: the snapshots that a source was mounted as. One that is whole in the cache can be mounted without a network.
//!
//! A record for each source, tenant and set of patterns, in `state/sources`. It holds no secret, and outlives its agent: a machine
//! that comes up without a network finds there what it had.

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;

use bdnfs::digest::Digest;
use bdnfs::error::Result;
use bdnfs::task::blocking;
use serde::{Deserialize, Serialize};

use crate::records::Records;

/// The number of snapshots of a source that are remembered: the newest may only have been begun.
const SNAPSHOTS_KEPT: usize = 8;

/// The number of sources that are remembered from one agent to the next, each with a file of some hundred bytes: authors of pods
/// choose sources and patterns, as many as they like.
const MAX_SOURCES: usize = 10_000;

/// A snapshot that a source was mounted as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastSnapshot {
    /// The snapshot's id, in hexadecimal.
    pub snapshot: String,
    /// The revision that the source was resolved to, as its origin names it.
    pub resolved: String,
    /// When the source was listed in that state, in seconds since 1970.
    pub listed: i64,
}

/// The past snapshots of all sources, by tenant and source.
#[derive(Clone, Debug)]
pub struct SourceHistory(Arc<Records<Vec<PastSnapshot>>>);

impl SourceHistory {
    /// The history in the cache directory `cache`, whose lock the caller holds. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn open(cache: &Path) -> Result<Self> {
        let records = Records::open(cache, "sources")?;
        keep_newest(&records, MAX_SOURCES)?;
        Ok(Self(Arc::new(records)))
    }

    /// Makes sure that the disk accepts writes.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk). It waits with a disk that is frozen.
    pub async fn touch(&self) -> Result<()> {
        let records = Arc::clone(&self.0);
        blocking(move || records.touch()).await
    }

    /// The snapshots that the source with `key` was mounted as, the newest first.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub async fn of(&self, tenant: &str, key: &Digest) -> Result<Vec<PastSnapshot>> {
        let (records, name) = (Arc::clone(&self.0), name(tenant, key));
        blocking(move || Ok(records.get(&name)?.unwrap_or_default())).await
    }

    /// Remembers that the source with `key` is `now`. A failure is logged: it costs nothing before the network is away.
    pub async fn remember(&self, tenant: &str, key: &Digest, now: PastSnapshot) {
        let (records, name) = (Arc::clone(&self.0), name(tenant, key));
        let remembered = blocking(move || {
            let mut snapshots = records.get(&name)?.unwrap_or_default();
            snapshots.retain(|past| past.snapshot != now.snapshot);
            snapshots.insert(0, now);
            snapshots.truncate(SNAPSHOTS_KEPT);
            records.put(&name, &snapshots)
        });
        if let Err(error) = remembered.await {
            tracing::warn!("a source cannot be mounted from the cache alone: {error}");
        }
    }
}

/// Removes the records of the sources that were mounted longest ago, but for `most`.
fn keep_newest(records: &Records<Vec<PastSnapshot>>, most: usize) -> Result<()> {
    // Else the start of an agent would wait until thousands of small files are read.
    if records.names()?.len() <= most {
        return Ok(());
    }
    let mut all = records.all()?;
    all.sort_by_key(|(_, snapshots)| Reverse(snapshots.first().map(|newest| newest.listed)));
    all.iter().skip(most).try_for_each(|(name, _)| records.remove(name))
}

fn name(tenant: &str, key: &Digest) -> String {
    format!("{tenant}-{key}")
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;
    use std::time::UNIX_EPOCH;

    use super::*;

    #[tokio::test]
    async fn history_keeps_the_newest_snapshots_of_each_source_and_tenant() {
        let cache = tempfile::tempdir().expect("a directory");
        let history = SourceHistory::open(cache.path()).expect("a cache");
        let key = Digest::of(b"source");
        let past = |number: i64| PastSnapshot {
            snapshot: format!("{}", number % 20),
            resolved: "s3://b".to_owned(),
            listed: number,
        };
        for number in 0..30 {
            history.remember("a", &key, past(number)).await;
        }
        let again = SourceHistory::open(cache.path()).expect("a cache");
        let listed: Vec<_> =
            again.of("a", &key).await.expect("read").iter().map(|past| past.listed).collect();
        assert_eq!(listed, [29, 28, 27, 26, 25, 24, 23, 22]);
        history.remember("a", &key, past(45)).await;
        let newest = &history.of("a", &key).await.expect("read")[..2];
        assert_eq!(newest, [past(45), past(29)], "a snapshot is there once");
        assert_eq!(history.of("b", &key).await.expect("read"), [], "another tenant's is none of its own");
    }

    #[tokio::test]
    async fn history_of_few_sources_is_opened_without_reading_them() {
        let cache = tempfile::tempdir().expect("a directory");
        let history = SourceHistory::open(cache.path()).expect("a cache");
        let past = PastSnapshot { snapshot: "s".to_owned(), resolved: "r".to_owned(), listed: 1 };
        let key = Digest::of(b"source");
        history.remember("a", &key, past).await;
        // Older than the modification, so that the next read is noted where any is.
        let record = history.0.path(&name("a", &key));
        let file = std::fs::File::open(&record).expect("there");
        file.set_times(FileTimes::new().set_accessed(UNIX_EPOCH)).expect("its own");
        let accessed = || std::fs::metadata(&record).and_then(|record| record.accessed()).expect("known");
        SourceHistory::open(cache.path()).expect("a cache");
        assert_eq!(accessed(), UNIX_EPOCH);
        assert_eq!(history.of("a", &key).await.expect("read").len(), 1);
    }

    #[tokio::test]
    async fn history_of_too_many_sources_keeps_those_that_were_mounted_last() {
        let cache = tempfile::tempdir().expect("a directory");
        let history = SourceHistory::open(cache.path()).expect("a cache");
        let keys = [5, 9, 7].map(|listed| (Digest::of(&[listed]), i64::from(listed)));
        for (key, listed) in keys {
            let past = PastSnapshot { snapshot: "s".to_owned(), resolved: "r".to_owned(), listed };
            history.remember("a", &key, past).await;
        }
        keep_newest(&history.0, 2).expect("removed");
        let mut kept = Vec::new();
        for (key, listed) in keys {
            if !history.of("a", &key).await.expect("read").is_empty() {
                kept.push(listed);
            }
        }
        assert_eq!(kept, [9, 7]);
    }
}
