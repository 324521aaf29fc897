//! The training cache of a project or a team, for containers: the same directory that its jobs on this node have.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::slice;
use std::sync::Arc;

use bdnfs::error::Result;

use super::ContainerVolumes;
use super::checkpoint_volume::SHARED_MODE;
use super::container_volume::ContainerVolume;
use crate::api::MirrorRequest;
use crate::context::Context;
use crate::deploy::home_use::{self, HomeUser};
use crate::volumes::Volumes;
use crate::volumes::cache_home::CacheHome;

/// The part of a mode that is its permissions.
const PERMISSION_BITS: u32 = 0o7777;

/// The use of a home by the containers of a volume.
#[derive(Clone, Debug)]
pub struct CacheUse {
    /// All volumes of the agent.
    pub volumes: Arc<ContainerVolumes>,
    /// The volume whose directory is the home.
    pub volume: Arc<ContainerVolume>,
}

impl HomeUser for CacheUse {
    fn volumes(&self) -> &Volumes {
        &self.volumes.volumes
    }

    fn is_first(&self) -> bool {
        true
    }

    fn mirror(&self) -> Result<Option<MirrorRequest>> {
        self.volumes.mirror(&self.volume.tenant)
    }

    fn note(&self, text: String) {
        tracing::info!("volume {}: {text}", self.volume.key);
    }

    fn warn(&self, text: String) {
        tracing::warn!("volume {}: {text}", self.volume.key);
    }
}

impl CacheUse {
    /// Creates the `home`, unless it exists, pulls what other nodes saved unless others on this node use it, and notes that it is
    /// written in this boot. The files keep it from being removed. Without the mirror it is as this node has it.
    ///
    /// # Errors
    /// [`Kind::Busy`](bdnfs::error::Kind::Busy) while it is removed; [`Kind::Disk`](bdnfs::error::Kind::Disk),
    /// [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace).
    pub async fn begin(&self, home: &CacheHome) -> Result<Vec<File>> {
        let locks = home_use::begin(self, home, false).await?;
        let prepare = |home: &CacheHome| {
            let failed = || format!("cannot prepare {home}");
            let mode = fs::metadata(home.tree()).with_context(failed)?.permissions().mode();
            // It would count as a change.
            if mode & PERMISSION_BITS != SHARED_MODE {
                fs::set_permissions(home.tree(), Permissions::from_mode(SHARED_MODE)).with_context(failed)?;
            }
            Ok(locks)
        };
        self.volumes().on_disk_of(home, prepare).await
    }

    /// Saves the `home` at the interval of the configuration, as jobs do, until the volume is `unused`, and then once more, unless
    /// others on this node use it. What can't be saved stays, and the next one that uses it saves it.
    pub async fn save(&self, home: &CacheHome, unused: impl Future<Output = ()>) {
        let homes = slice::from_ref(home);
        let save = async {
            tokio::select! {
                () = unused => {}
                never = home_use::save_regularly(self, homes) => match never {},
            }
            self.volume.release();
            home_use::save(self, home).await;
        };
        tokio::select! {
            () = save => {}
            never = home_use::announce_regularly(self, homes) => match never {},
            never = home_use::warn_of_flock(self, homes) => match never {},
        }
    }
}
