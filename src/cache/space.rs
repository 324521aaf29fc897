//! The space that a tenant has in the cache, and reservations of it.

use std::sync::Arc;

use crate::error::Result;

use super::Limits;
use super::eviction::Evictor;
use super::layout::on_disk;
use super::leases::{LeaseGroup, LeaseSet};
use super::partition::Partition;

/// The space of one tenant.
#[derive(Debug)]
pub struct TenantSpace {
    evictor: Arc<Evictor>,
    partition: Arc<Partition>,
}

/// Space reserved for bytes about to be written. Dropped without [`written`](Self::written), it is given back.
#[derive(Debug)]
pub struct Reservation<'a> {
    space: &'a TenantSpace,
    bytes: u64,
    written: bool,
}

impl Reservation<'_> {
    /// Keeps the reserved bytes counted: they are on the disk now, or in its queue.
    pub fn written(mut self) {
        self.written = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.space.partition.end_reservation(self.bytes, self.written);
    }
}

impl TenantSpace {
    /// The space of `partition`, one of those that `evictor` has.
    pub fn new(evictor: Arc<Evictor>, partition: Arc<Partition>) -> Self {
        Self { evictor, partition }
    }

    /// The evictor, which enforces all tenants' limits.
    pub fn evictor(&self) -> &Arc<Evictor> {
        &self.evictor
    }

    /// The limits of the cache, the capacity no larger than this tenant's quota.
    pub fn limits(&self) -> Limits {
        let Limits { capacity, reserve } = self.evictor.limits();
        let capacity = [capacity, self.partition.quota].into_iter().flatten().min();
        Limits { capacity, reserve }
    }

    /// Bytes that the blobs of all tenants occupy; `None` until they have been counted.
    pub fn used(&self) -> Option<u64> {
        self.evictor.used()
    }

    /// Reserves `bytes`, evicting for them where need be.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace) when the limits leave no room and what is there is leased.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation<'_>> {
        let bytes = on_disk(bytes);
        // Before the check, so that two concurrent callers see each other. The claim gives back what it was refused.
        self.partition.reserve(bytes);
        let reservation = Reservation { space: self, bytes, written: false };
        self.evictor.make_room(&self.partition, bytes)?;
        Ok(reservation)
    }

    /// Counts `bytes` that are on the disk already, evicting for them where the limits of the cache and the tenant need it.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace), when they are not counted.
    pub fn add(&self, bytes: u64) -> Result<()> {
        let bytes = on_disk(bytes);
        self.partition.reserve(bytes);
        // The free space of the disk has shrunk by them already.
        self.partition.end_reservation(bytes, true);
        self.evictor.make_room(&self.partition, 0).inspect_err(|_| self.partition.subtract(bytes))
    }

    /// Leases all of `groups`, if they fit beside all other leases; else none.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace), with what is needed, what there is and who holds it.
    pub fn admit(&self, groups: Vec<LeaseGroup>) -> Result<Vec<LeaseSet>> {
        self.evictor.admit(&self.partition, groups)
    }

    /// Makes sure that all of `groups` would have room if nothing else was leased.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace), as [`admit`](Self::admit).
    pub fn ensure_fits(&self, groups: &[LeaseGroup]) -> Result<()> {
        self.evictor.ensure_fits(&self.partition, groups)
    }

    /// Gives back `bytes` that were removed.
    pub fn release(&self, bytes: u64) {
        self.partition.subtract(on_disk(bytes));
    }
}
