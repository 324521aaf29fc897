//! The space that volumes may come to occupy: a job that limits its volume has all of that.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::cache::eviction::{Evictor, VolumeClaim, VolumeClaims};
use bdnfs::cache::node::NodeCache;
use bdnfs::error::{Error, Kind, Result};
use rustix::fs::StatVfs;

/// The interval at which the free space is checked while volumes are written: a disk of 2 GB/s writes no more meanwhile than a
/// cache keeps free.
pub const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Homes are evicted where less than the reserve divided by this is free: the cache, which keeps all of it free, makes way before
/// them.
const HOME_EVICTION_DIVISOR: u64 = 2;

/// The disk of the volumes.
#[derive(Debug)]
pub struct VolumeSpace {
    directory: PathBuf,
    /// The evictor of the cache, where that lies on the same disk.
    evictor: Option<Arc<Evictor>>,
    claims: VolumeClaims,
    /// The bytes that the cache keeps free.
    reserve: u64,
}

impl VolumeSpace {
    /// The disk that `directory` is on, or will be; perhaps that of `cache`, too.
    pub(super) fn new(directory: &Path, cache: &NodeCache) -> Self {
        let is_shared = device(directory).is_some_and(|disk| device(cache.root()) == Some(disk));
        let evictor = is_shared.then(|| Arc::clone(cache.evictor()));
        let (claims, reserve) = (VolumeClaims::default(), cache.evictor().limits().reserve);
        Self { directory: directory.to_owned(), evictor, claims, reserve }
    }

    /// Claims `bytes`, if they are there beside all that others have claimed, and beside what the cache has leased.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], with what is needed and who holds it; [`Kind::Disk`].
    pub fn claim(&self, bytes: u64) -> Result<Arc<VolumeClaim>> {
        if let Some(evictor) = &self.evictor {
            return evictor.claim_volume(bytes);
        }
        let (free, claimed) = (self.free()?, self.claims.outstanding());
        if bytes <= free.saturating_sub(claimed) {
            return Ok(self.claims.add(bytes));
        }
        let text = format!("{free} bytes are free, of which {claimed} may be written by other jobs");
        Err(self.too_small(bytes, &text))
    }

    /// Makes sure that `bytes` would be there if there was no other volume.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], with what there is; [`Kind::Disk`].
    pub fn ensure_fits(&self, bytes: u64) -> Result<()> {
        if let Some(evictor) = &self.evictor {
            return evictor.ensure_volume_fits(bytes);
        }
        let most = self.free()?.saturating_add(self.claims.occupied());
        let text = format!("{most} bytes are there: ask for less, or name another disk with [volumes] dir");
        if bytes <= most { Ok(()) } else { Err(self.too_small(bytes, &text)) }
    }

    /// Whether the cache is on the same disk, and has the space that volumes give back.
    pub fn is_on_disk_of_cache(&self) -> bool {
        self.evictor.is_some()
    }

    /// Claims `bytes` for a volume that there is already.
    pub fn claim_existing(&self, bytes: u64) -> Arc<VolumeClaim> {
        self.evictor.as_ref().map_or(&self.claims, |evictor| evictor.volume_claims()).add(bytes)
    }

    /// Has the cache make way for what volumes have come to occupy, where it is on their disk. Touches the local disk.
    pub(super) fn make_way(&self) {
        if let Some(Err(error)) = self.evictor.as_ref().map(|evictor| evictor.restore_reserve()) {
            tracing::debug!(%error, "the cache cannot make way for volumes");
        }
    }

    /// Whether so little is free that homes are evicted. Touches the local disk.
    pub(super) fn is_short(&self) -> bool {
        self.free().is_ok_and(|free| free < self.reserve / HOME_EVICTION_DIVISOR)
    }

    /// The bytes of the disk, whoever occupies them.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn disk_size(&self) -> Result<u64> {
        self.stat().map(|stat| stat.f_blocks * stat.f_frsize)
    }

    fn free(&self) -> Result<u64> {
        self.stat().map(|stat| stat.f_bavail * stat.f_frsize)
    }

    fn stat(&self) -> Result<StatVfs> {
        let existing = existing(&self.directory);
        rustix::fs::statvfs(existing)
            .map_err(|e| Error::disk(format!("cannot look at {}", existing.display()), e.into()))
    }

    fn too_small(&self, bytes: u64, why: &str) -> Error {
        let directory = self.directory.display();
        Error::new(Kind::NoSpace, format!("needs {bytes} bytes and on the disk of {directory} {why}"))
    }
}

/// The directory, or the nearest one above it that exists.
fn existing(directory: &Path) -> &Path {
    directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// The number of the file system that a directory is on, or will be.
fn device(directory: &Path) -> Option<u64> {
    existing(directory).metadata().ok().map(|found| found.dev())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::tests::node_cache;

    #[test]
    fn claims_on_a_disk_without_cache_are_held_against_free_space() {
        let (home, volumes) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let node = node_cache(home.path());
        let directory = volumes.path().join("not/there/yet");
        let space = VolumeSpace::new(&directory, &node);
        assert!(space.evictor.is_none(), "it is another disk");
        let free = space.free().unwrap();
        let error = space.ensure_fits(free * 2).unwrap_err();
        assert!(error.kind() == Kind::NoSpace && error.to_string().contains("[volumes] dir"), "{error}");
        let claim = space.claim(free / 4 * 3).unwrap();
        assert_eq!(space.claim(free / 2).unwrap_err().kind(), Kind::NoSpace, "it is claimed");
        assert!(space.ensure_fits(free / 2).is_ok(), "it comes back");
        claim.set_occupied(free / 4 * 3);
        assert!(space.claim(free / 2).is_ok(), "what is occupied is not free any more");
        drop(claim);
        assert!(space.claim(free / 4).is_ok());
        assert_eq!(node.evictor().volume_claims().outstanding(), 0);
    }
}
