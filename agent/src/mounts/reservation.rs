//! The reservation of a mount point while a mount is being made at it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::error::Kind;

use super::manager::MountManager;
use crate::api::{ApiResult, Failure};
use crate::lifecycle::KeepAlive;

/// Keeps a mount point from being used twice, and the agent from ending.
pub struct MountpointReservation {
    manager: Arc<MountManager>,
    mountpoint: PathBuf,
    _alive: KeepAlive,
}

impl MountpointReservation {
    /// Reserves `mountpoint`.
    ///
    /// # Errors
    /// [`Kind::Busy`] where it is reserved; [`Failure::CLOSING`].
    pub fn new(manager: &Arc<MountManager>, mountpoint: &Path) -> ApiResult<Self> {
        let alive = manager.lifecycle.begin()?;
        // The mount itself fails where something is mounted already.
        if !manager.table().reserved.insert(mountpoint.to_owned()) {
            let text = format!("another mount is being made at {}", mountpoint.display());
            return Err(Failure::new(Kind::Busy, text));
        }
        Ok(Self { manager: Arc::clone(manager), mountpoint: mountpoint.to_owned(), _alive: alive })
    }
}

impl Drop for MountpointReservation {
    fn drop(&mut self) {
        self.manager.table().reserved.remove(&self.mountpoint);
    }
}
