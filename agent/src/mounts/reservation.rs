//! The reservation of a mount point while a mount is being made at it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::error::Kind;
use parking_lot::Mutex;

use crate::api::{ApiResult, Failure};
use crate::lifecycle::KeepAlive;

/// The mount points that a mount is being made at.
#[derive(Debug, Default)]
pub struct MountpointReservations(Arc<Mutex<HashSet<PathBuf>>>);

/// Keeps a mount point from being used twice, and the agent from ending.
pub struct MountpointReservation {
    reserved: Arc<Mutex<HashSet<PathBuf>>>,
    mountpoint: PathBuf,
    _alive: KeepAlive,
}

impl MountpointReservations {
    /// Reserves `mountpoint`. That something is mounted there already is found by the mount itself.
    ///
    /// # Errors
    /// [`Kind::Busy`] where it is reserved.
    pub fn reserve(&self, mountpoint: &Path, alive: KeepAlive) -> ApiResult<MountpointReservation> {
        if !self.0.lock().insert(mountpoint.to_owned()) {
            let text = format!("another mount is being made at {}", mountpoint.display());
            return Err(Failure::new(Kind::Busy, text));
        }
        let (reserved, mountpoint) = (Arc::clone(&self.0), mountpoint.to_owned());
        Ok(MountpointReservation { reserved, mountpoint, _alive: alive })
    }
}

impl Drop for MountpointReservation {
    fn drop(&mut self) {
        self.reserved.lock().remove(&self.mountpoint);
    }
}
