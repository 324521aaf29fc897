//! Claims of volumes: how much jobs may still write to directories on the cache's disk.
//!
//! What is claimed is not leased to others, and what volumes have come to occupy takes the place of what is not in use.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{Error, Kind, Result};

use super::Evictor;

/// The claims of the volumes of one disk.
#[derive(Debug, Default)]
pub struct VolumeClaims {
    held: Mutex<Vec<Weak<VolumeClaim>>>,
}

/// The claim of a volume to bytes of its disk. Dropped, it is given back.
#[derive(Debug)]
pub struct VolumeClaim {
    size: u64,
    occupied: AtomicU64,
}

impl VolumeClaim {
    /// Sets the bytes that the volume occupies, as they were counted.
    pub fn set_occupied(&self, bytes: u64) {
        self.occupied.store(bytes, Relaxed);
    }
}

impl VolumeClaims {
    /// Adds the claim of a volume to `size` bytes, whether there is room or not.
    pub fn add(&self, size: u64) -> Arc<VolumeClaim> {
        let claim = Arc::new(VolumeClaim { size, occupied: AtomicU64::new(0) });
        let mut held = self.held.lock();
        held.retain(|other| other.strong_count() > 0);
        held.push(Arc::downgrade(&claim));
        claim
    }

    /// Bytes that volumes occupy.
    pub fn occupied(&self) -> u64 {
        self.sum(|claim| claim.occupied.load(Relaxed))
    }

    /// Bytes that volumes may still come to occupy.
    pub fn outstanding(&self) -> u64 {
        self.sum(|claim| claim.size.saturating_sub(claim.occupied.load(Relaxed)))
    }

    fn sum(&self, bytes: impl Fn(&VolumeClaim) -> u64) -> u64 {
        let held = self.held.lock();
        held.iter().filter_map(Weak::upgrade).map(|claim| bytes(&claim)).fold(0, u64::saturating_add)
    }
}

impl Evictor {
    /// The claims of the volumes on the cache's disk.
    pub fn volume_claims(&self) -> &VolumeClaims {
        &self.volume_claims
    }

    /// Claims `bytes` of the cache's disk for a volume, if they are there beside all leases and claims.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], with what is needed and who holds it.
    pub fn claim_volume(&self, bytes: u64) -> Result<Arc<VolumeClaim>> {
        // Serialized with leases, so that each sees the others.
        let _admission = self.admission_lock.lock();
        let leased: u64 = self.partitions().iter().map(|partition| partition.leases.bytes_with(&[])).sum();
        let (most, claimed) = (self.disk_bytes(), self.volume_claims.outstanding());
        let taken = leased.saturating_add(claimed);
        if bytes <= most.saturating_sub(taken) {
            return Ok(self.volume_claims.add(bytes));
        }
        let root = self.root.path().display();
        let text = format!(
            "needs {bytes} bytes and the disk of the cache {root} has room for {most}, of which {leased} are leased and {claimed} \
             may be written by other jobs"
        );
        Err(Error::new(Kind::NoSpace, text))
    }

    /// Makes sure that a volume of `bytes` would fit if nothing was leased and there was no other volume.
    ///
    /// # Errors
    /// [`Kind::NoSpace`], with what there is.
    pub fn ensure_volume_fits(&self, bytes: u64) -> Result<()> {
        let most = self.disk_bytes().saturating_add(self.volume_claims.occupied());
        if bytes <= most {
            return Ok(());
        }
        let root = self.root.path().display();
        let text = format!(
            "needs {bytes} bytes and the disk of the cache {root} has room for {most}: ask for less, or name another disk with \
             [volumes] dir"
        );
        Err(Error::new(Kind::NoSpace, text))
    }

    /// Evicts what is needed to keep the reserve free, whoever else writes to the disk.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when all there is in use.
    pub fn restore_reserve(&self) -> Result<()> {
        // The file system is asked again.
        self.credit.store(-1, Relaxed);
        if self.shortfall() == 0 || *self.pauses.lock() > 0 {
            return Ok(());
        }
        let _pass = self.pass_lock.lock();
        self.evict_bytes(self.shortfall(), self.limits.capacity, |_| true, || self.cache_full())
    }
}
