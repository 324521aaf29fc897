//! Homes: which nodes have a training cache, and since when each may have changes of it that are not saved.
//!
//! Each node writes a report of its own, at `homes/<key of the cache's ref>/<node>`: before a job writes to the cache, and after it
//! is saved.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::keys::ObjectKind;
use super::{Mirror, checked_json};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The version of a report. One of a newer version is refused.
const REPORT_VERSION: u32 = 1;

/// The report of a node on its home of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeReport {
    /// The id of the node, which no other has.
    pub node: String,
    /// The node's name for people.
    pub host: String,
    /// The snapshot that the home was last equal to: its manifest's digest, in hexadecimal.
    pub manifest: Option<String>,
    /// When all of it was last saved.
    pub saved: Option<DateTime<Utc>>,
    /// Since when it may have changes that are not saved.
    pub unsaved_since: Option<DateTime<Utc>>,
    /// Whether a job used it.
    pub in_use: bool,
    /// Whether a job was about to use it and had written nothing: one that is `in_use`, too, goes on, and another gives way to
    /// nodes that are about to do the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beginning: bool,
    /// When the node reported this, by its clock.
    pub reported: DateTime<Utc>,
}

/// The content of a report's object.
#[derive(Serialize, Deserialize)]
struct VersionedReport {
    version: u32,
    #[serde(flatten)]
    report: HomeReport,
}

impl Mirror {
    /// Writes the report of a node on its home of the cache whose ref has this key, in place of the one before.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_home_report(&self, cache: &Digest, report: &HomeReport) -> Result<()> {
        let key = self.report_key(cache, &report.node);
        let text = checked_json::write(&VersionedReport { version: REPORT_VERSION, report: report.clone() })
            .map_err(|e| Error::with(Kind::Invalid, format!("cannot write {}", self.url_of(&key)), e))?;
        self.put(&key, text.into()).await
    }

    /// The reports of all nodes on their homes of a cache, by the ids of the nodes.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] where one is damaged, [`Kind::Unsupported`] where a newer version wrote one; those of the store.
    pub async fn home_reports(&self, cache: &Digest) -> Result<Vec<HomeReport>> {
        let mut listed = self.list(self.key(ObjectKind::Homes, cache));
        let mut reports = Vec::new();
        while let Some(meta) = listed.try_next().await? {
            let Some(got) = self.get(&meta.location).await? else { continue };
            let read: VersionedReport = checked_json::read(&got.bytes, |_| false).map_err(|how| {
                let text = format!("{} is damaged ({how}); remove it", self.url_of(&meta.location));
                Error::new(Kind::Corrupt, text)
            })?;
            if read.version != REPORT_VERSION {
                let (url, version) = (self.url_of(&meta.location), read.version);
                let text = format!(
                    "{url} has version {version}; this bdnfs reads version {REPORT_VERSION}: update bdnfs"
                );
                return Err(Error::new(Kind::Unsupported, text));
            }
            reports.push(read.report);
        }
        reports.sort_by(|a, b| (&a.host, &a.node).cmp(&(&b.host, &b.node)));
        Ok(reports)
    }

    /// Removes the report of the node with the id `node`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn remove_home_report(&self, cache: &Digest, node: &str) -> Result<()> {
        self.delete(&self.report_key(cache, node)).await
    }

    fn report_key(&self, cache: &Digest, node: &str) -> Path {
        self.key(ObjectKind::Homes, cache).join(node)
    }
}
