//! A cache with room for so many bytes: what the queue of admissions asks, over the engine's own leases.

use std::sync::Arc;

use bdnfs::blob::Key;
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::leases::{LeaseGroup, LeaseSet, LeaseTable};

/// A model of the cache, with room for `bytes`.
#[derive(Debug)]
pub struct ModelCache {
    bytes: u64,
    leases: Arc<LeaseTable>,
    admitting: Mutex<()>,
}

/// One blob that is to have room.
#[derive(Debug)]
pub struct RoomSnapshot {
    room: Arc<ModelCache>,
    name: String,
    bytes: u64,
    held: Mutex<Option<LeaseSet>>,
}

impl ModelCache {
    /// A cache for `bytes`.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes, leases: Arc::default(), admitting: Mutex::default() })
    }

    /// A snapshot of `bytes` called `name`.
    pub fn snapshot(self: &Arc<Self>, name: &str, bytes: u64) -> Arc<RoomSnapshot> {
        let (room, name) = (self.clone(), name.to_owned());
        Arc::new(RoomSnapshot { room, name, bytes, held: Mutex::default() })
    }

    /// The bytes that are leased.
    pub fn leased(&self) -> u64 {
        self.leases.bytes_with(&[])
    }
}

impl RoomSnapshot {
    fn group(&self) -> LeaseGroup {
        let key = Key::Content(Digest::of(self.name.as_bytes()));
        LeaseGroup::new(self.name.clone(), [(key, self.bytes)].into_iter())
    }

    /// Whether `snapshots` would have room if there were no leases.
    pub fn could_be_admitted(snapshots: &[&Self]) -> Result<()> {
        let bytes: u64 = snapshots.iter().map(|snapshot| snapshot.bytes).sum();
        let fits = snapshots.iter().all(|snapshot| bytes <= snapshot.room.bytes);
        fits.then_some(()).ok_or_else(|| Error::new(Kind::NoSpace, "too large"))
    }

    /// Leases all `snapshots`, or none.
    pub fn admit_all(snapshots: &[&Self]) -> Result<()> {
        let Some(first) = snapshots.first() else { return Ok(()) };
        let room = &first.room;
        // Serialized, so that the second caller sees the first one's leases.
        let _one = room.admitting.lock();
        let groups: Vec<_> = snapshots.iter().map(|snapshot| snapshot.group()).collect();
        if room.leases.bytes_with(&groups) > room.bytes {
            return Err(Error::new(Kind::NoSpace, "no room now"));
        }
        for (snapshot, group) in snapshots.iter().zip(groups) {
            *snapshot.held.lock() = Some(room.leases.lease_all(group));
        }
        Ok(())
    }

    /// Leases it, whatever there is.
    pub fn hold(&self) -> Result<()> {
        *self.held.lock() = Some(self.room.leases.lease_all(self.group()));
        Ok(())
    }
}

/// What `bytes` of content occupy: no more.
pub fn on_disk(bytes: u64) -> u64 {
    bytes
}

/// Runs `work` at once: who asks is alone on its thread.
pub async fn blocking<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    work()
}
