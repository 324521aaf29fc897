//! Mount records: what makes a mount again after its agent has ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::{Kind, Result};
use bdnfs::snapshot::Snapshot;
use bdnfs::source::Uri;
use bdnfs::task::blocking;
use bdnfs_fs::mounts;
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
    /// The description of the mount for clients.
    pub lost: LostMount,
    /// The record of the mount, unless that is what can't be read.
    pub record: Option<MountRecord>,
    /// Keeps the lease.
    _snapshot: Option<Arc<Snapshot>>,
}

impl FailedMount {
    /// The mount of `record`, which can't be restored for the reason `why`.
    pub fn new(record: MountRecord, why: Failure, snapshot: Option<Arc<Snapshot>>) -> Self {
        let weights = &record.request.weights;
        // As a URI it is shown without credentials.
        let source = weights.source.expose().parse().map(|uri: Uri| uri.to_string());
        let (source, mountpoint) =
            (source.unwrap_or_else(|_| "its source".to_owned()), weights.mountpoint.clone());
        let lost = LostMount { id: record.id, source, mountpoint, why };
        Self { lost, record: Some(record), _snapshot: snapshot }
    }

    /// The mount at `mountpoint` whose record is `unreadable`. Where the mount point is not known, either, the file of the record
    /// stands for it.
    pub fn unreadable(unreadable: UnreadableRecord, mountpoint: Option<PathBuf>) -> Self {
        let UnreadableRecord { id, path, error } = unreadable;
        let mountpoint = mountpoint.unwrap_or_else(|| path.clone());
        let text = format!(
            "the record {} of the mount cannot be read: {error}; `bdnfs umount {}` forgets it",
            path.display(),
            mountpoint.display()
        );
        let lost = LostMount {
            id,
            source: "a source".to_owned(),
            mountpoint,
            why: Failure::new(Kind::Corrupt, text),
        };
        Self { lost, record: None, _snapshot: None }
    }
}

/// A record that can't be read.
#[derive(Debug)]
pub(super) struct UnreadableRecord {
    /// The id of the mount.
    pub id: u64,
    /// The file.
    pub path: PathBuf,
    /// The error of reading it.
    pub error: io::Error,
}

/// The time to wait when the disk does not list the records.
const RECORDS_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The kind of the records of mounts that the next agent restores.
const MOUNT_RECORD_KIND: &str = "mounts";
/// The kind of the records of mounts that end with their agent. They say whose a dead mount is.
const ON_DEMAND_RECORD_KIND: &str = "on-demand-mounts";

/// The mount points of all mounts that the cache directory `cache` has records of, for who does not hold its lock. Reads the disk.
pub fn recorded_mountpoints(cache: &Path) -> Vec<PathBuf> {
    let kinds = [MOUNT_RECORD_KIND, ON_DEMAND_RECORD_KIND];
    let records = kinds.into_iter().flat_map(|kind| Records::<MountRecord>::peek(cache, kind));
    records
        .filter(|record| record.lease_until.is_none())
        .map(|record| record.request.weights.mountpoint)
        .collect()
}

/// The records of all mounts of an agent. All but [`all`](Self::all) block on the local disk.
#[derive(Clone, Debug)]
pub struct MountRecords {
    records: Arc<Records<MountRecord>>,
    /// Whether the next agent restores the mounts.
    persistent: bool,
}

impl MountRecords {
    /// The records in the cache directory `cache`, whose lock the caller holds.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn open(cache: &Path, persistent: bool) -> Result<Self> {
        let kind = if persistent { MOUNT_RECORD_KIND } else { ON_DEMAND_RECORD_KIND };
        let this = Self { records: Arc::new(Records::open(cache, kind)?), persistent };
        if !persistent {
            this.remove_unmounted()?;
        }
        Ok(this)
    }

    /// Removes what killed agents left of mounts that are gone by now.
    fn remove_unmounted(&self) -> Result<()> {
        let records = self.records.all()?;
        let mounts = if records.is_empty() { Vec::new() } else { mounts::list()? };
        for (name, record) in records {
            if mounts.iter().all(|mounted| mounted.mountpoint != record.request.weights.mountpoint) {
                self.records.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The name of the record of the mount `id`. Several agents may have left some that end with them.
    fn name(&self, id: u64) -> String {
        if self.persistent { id.to_string() } else { format!("{}-{id}", std::process::id()) }
    }

    /// Writes a record. One that nothing is restored from may be missing, which is logged.
    ///
    /// # Errors
    /// Those of [`Records::put`].
    pub fn put(&self, record: &MountRecord) -> Result<()> {
        let name = self.name(record.id);
        if self.persistent {
            return self.records.put(&name, record);
        }
        if let Err(error) = self.records.put_until_reboot(&name, record) {
            tracing::warn!("mount {} is not recorded: {error}", record.id);
        }
        Ok(())
    }

    /// Removes the record of the mount `id`. A failure is logged.
    pub fn remove(&self, id: u64) {
        if let Err(error) = self.records.remove(&self.name(id)) {
            tracing::warn!("mount {id} is still recorded: {error}");
        }
    }

    /// The records of the mounts to restore, oldest first, and those that can't be read. Waits until the disk lists them: mounts
    /// without a record are ended.
    pub(super) async fn all(&self) -> (Vec<MountRecord>, Vec<UnreadableRecord>) {
        let (mut records, mut unreadable) = (Vec::new(), Vec::new());
        if !self.persistent {
            return (records, unreadable);
        }
        let found = loop {
            let reader = Arc::clone(&self.records);
            match blocking(move || reader.read_all()).await {
                Ok(found) => break found,
                Err(error) => {
                    tracing::error!("cannot restore the mounts of the last run, trying again: {error}")
                }
            }
            tokio::time::sleep(RECORDS_RETRY_INTERVAL).await;
        };
        for (name, record) in found {
            match (record, name.parse()) {
                (Ok(record), _) => records.push(record),
                (Err(error), Ok(id)) => {
                    unreadable.push(UnreadableRecord { id, path: self.records.path(&name), error });
                }
                (Err(error), Err(_)) => tracing::warn!("{name} is no record of a mount: {error}"),
            }
        }
        records.sort_by_key(|record| record.id);
        (records, unreadable)
    }
}
