//! Mount records: what makes a mount again after its agent has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::Uri;
use bdnfs::task::blocking;
use serde::{Deserialize, Serialize};

use crate::api::{Failure, LostMount, MountRequest};
use crate::records::Records;

/// The name of a request's secrets in messages.
pub const REQUEST_SECRETS: &str = "the secrets of the request";

/// The record of a mount. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountRecord {
    /// The id of the mount.
    pub id: u64,
    /// When it was mounted, in seconds since 1970.
    pub since: u64,
    /// The request that made the mount, without its secrets.
    pub request: MountRequest,
    /// Whether the request had secrets, which the record lacks: without them its origin can't be read.
    #[serde(rename = "bereft")]
    pub lacks_secrets: bool,
    /// The snapshot's id, in hexadecimal.
    pub snapshot: String,
    /// The revision that the source was resolved to, as its origin names it.
    pub resolved: String,
    /// Whether all of it is to be staged.
    pub staged: bool,
    /// Until when only its snapshot is leased, in seconds since 1970: it is not mounted any more, and likely to be asked for again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_until: Option<u64>,
}

/// A mount of the last run that could not be restored.
#[derive(Debug)]
pub(super) struct FailedMount {
    /// The record of the mount.
    pub record: MountRecord,
    /// Why it could not be restored.
    pub why: Failure,
    /// Keeps the lease.
    pub _snapshot: Option<Arc<Snapshot>>,
}

impl FailedMount {
    /// The description of the mount for clients.
    pub fn info(&self) -> LostMount {
        let weights = &self.record.request.weights;
        // As a URI it is shown without credentials.
        let source = weights.source.expose().parse().map(|uri: Uri| uri.to_string());
        let (source, mountpoint) =
            (source.unwrap_or_else(|_| "its source".to_owned()), weights.mountpoint.clone());
        LostMount { id: self.record.id, source, mountpoint, why: self.why.clone() }
    }
}

/// The kind of their records.
const MOUNT_RECORD_KIND: &str = "mounts";

/// The mount points of a persistent agent with the cache directory `cache`, whether or not it runs. Reads the local disk.
pub fn recorded_mountpoints(cache: &Path) -> Vec<PathBuf> {
    let records = Records::<MountRecord>::peek(cache, MOUNT_RECORD_KIND);
    records
        .into_iter()
        .filter(|record| record.lease_until.is_none())
        .map(|record| record.request.weights.mountpoint)
        .collect()
}

/// The records of all mounts of a persistent agent; another one keeps none. All but [`all`](Self::all) block on the local
/// disk.
#[derive(Clone, Debug)]
pub struct MountRecords(Option<Arc<Records<MountRecord>>>);

impl MountRecords {
    /// The records in the cache directory `cache`, whose lock the caller holds.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn open(cache: &Path, persistent: bool) -> Result<Self> {
        let records = persistent.then(|| Records::open(cache, MOUNT_RECORD_KIND).map(Arc::new));
        records.transpose().map(Self)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Those of [`Records::put`].
    pub fn put(&self, record: &MountRecord) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |records| records.put(&record.id.to_string(), record))
    }

    /// Removes the record of the mount `id`. A failure is logged.
    pub fn remove(&self, id: u64) {
        if let Some(records) = &self.0
            && let Err(error) = records.remove(&id.to_string())
        {
            tracing::warn!("mount {id} will be mounted again at the next start: {error}");
        }
    }

    /// All records, oldest first. What can't be read is logged.
    pub async fn all(&self) -> Vec<MountRecord> {
        let Some(records) = self.0.clone() else { return Vec::new() };
        let mut records = match blocking(move || records.all()).await {
            Ok(records) => records.into_iter().map(|(_, record)| record).collect::<Vec<_>>(),
            Err(error) => {
                tracing::error!("cannot restore the mounts of the last run: {error}");
                Vec::new()
            }
        };
        records.sort_by_key(|record| record.id);
        records
    }
}
