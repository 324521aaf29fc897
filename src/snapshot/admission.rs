//! Admission of snapshots to the cache: their content is leased, if there is room for it.

use crate::cache::leases::{LeaseGroup, LeaseSet};
use crate::error::Result;

use super::Snapshot;

impl Snapshot {
    /// Keeps what the cache has of it, and what will come, from being evicted as long as it lives, whether there is room
    /// for all of it or not. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn hold(&self) -> Result<()> {
        self.hold_with(|group| Ok(self.resources.cache.leases().lease_all(group)))
    }

    /// Leases its content, if the cache has room for all of it beside what is held already.
    ///
    /// # Errors
    /// [`NoSpace`](crate::error::Kind::NoSpace), and those of [`hold`](Self::hold).
    pub fn admit(&self) -> Result<()> {
        self.hold_with(|group| Ok(self.resources.cache.space().admit(vec![group])?.remove(0)))
    }

    /// Leases several snapshots of one tenant: all are held, or none that was not before.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn admit_all(snapshots: &[&Self]) -> Result<()> {
        let fresh: Vec<_> = snapshots.iter().filter(|snapshot| snapshot.held.get().is_none()).collect();
        let Some(first) = fresh.first() else { return Ok(()) };
        let groups =
            fresh.iter().map(|snapshot| LeaseGroup::of(snapshot.manifest())).collect::<Result<_>>()?;
        let leases = first.resources.cache.space().admit(groups)?;
        for (snapshot, lease) in fresh.into_iter().zip(leases) {
            snapshot.held.set(lease).ok();
        }
        Ok(())
    }

    /// Makes sure that the cache would have room for several of one tenant if nothing else was leased.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn could_be_admitted(snapshots: &[&Self]) -> Result<()> {
        let Some(first) = snapshots.first() else { return Ok(()) };
        first.resources.cache.space().ensure_fits(&groups_of(snapshots)?)
    }

    /// Whether the cache would have room for several of one tenant if `released` were not leased, and volumes grew no more.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when a manifest is.
    pub fn could_be_admitted_after(snapshots: &[&Self], released: &[&Self]) -> Result<bool> {
        let Some(first) = snapshots.first() else { return Ok(true) };
        let released: Vec<_> =
            released.iter().filter_map(|snapshot| snapshot.held.get()).map(|lease| lease.group()).collect();
        Ok(first.resources.cache.space().fits_after(&groups_of(snapshots)?, &released))
    }

    fn hold_with(&self, lease: impl FnOnce(LeaseGroup) -> Result<LeaseSet>) -> Result<()> {
        if self.held.get().is_none() {
            self.held.set(lease(LeaseGroup::of(self.manifest())?)?).ok();
        }
        Ok(())
    }
}

/// The blobs of each.
fn groups_of(snapshots: &[&Snapshot]) -> Result<Vec<LeaseGroup>> {
    snapshots.iter().map(|snapshot| LeaseGroup::of(snapshot.manifest())).collect()
}
