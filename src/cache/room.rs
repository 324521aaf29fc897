//! Room: what a tenant may still bring into the cache, and the claims on it.

use std::sync::Arc;

use crate::error::Result;

use super::Limits;
use super::evict::Evictor;
use super::layout::on_disk;
use super::lease::{Group, LeaseSet};
use super::share::Share;

/// The room that one tenant has.
#[derive(Debug)]
pub struct Room {
    evictor: Arc<Evictor>,
    share: Arc<Share>,
}

/// Room that was taken for bytes about to be written. Dropped without [`written`](Self::written), it is given back.
#[derive(Debug)]
pub struct Claim<'a> {
    room: &'a Room,
    bytes: u64,
    written: bool,
}

impl Claim<'_> {
    /// The bytes are on the disk now, or in its queue.
    pub fn written(mut self) {
        self.written = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.room.share.settle(self.bytes, self.written);
    }
}

impl Room {
    /// The room of `share`, one of those that `evictor` watches over.
    pub fn new(evictor: Arc<Evictor>, share: Arc<Share>) -> Self {
        Self { evictor, share }
    }

    /// Who watches over all tenants' shares.
    pub fn evictor(&self) -> &Arc<Evictor> {
        &self.evictor
    }

    /// What bounds the cache: all of it, and of the capacity no more than this tenant's quota.
    pub fn limits(&self) -> Limits {
        let Limits { capacity, reserve } = self.evictor.limits();
        let capacity = [capacity, self.share.quota].into_iter().flatten().min();
        Limits { capacity, reserve }
    }

    /// Bytes that the blobs of all tenants occupy; `None` until they have been counted.
    pub fn used(&self) -> Option<u64> {
        self.evictor.used()
    }

    /// Takes room for `bytes`, evicting for it where need be.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the limits leave no room and what is there is leased.
    pub fn claim(&self, bytes: u64) -> Result<Claim<'_>> {
        let bytes = on_disk(bytes);
        // Before the look, so that two who come at once see each other. The claim gives back what it was refused.
        self.share.claim(bytes);
        let claim = Claim { room: self, bytes, written: false };
        self.evictor.make_room(&self.share, bytes)?;
        Ok(claim)
    }

    /// Leases all of `groups`, if all that is leased has room beside each other; else none.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace), with what is needed, what there is and who holds it.
    pub fn admit(&self, groups: Vec<Group>) -> Result<Vec<LeaseSet>> {
        self.evictor.admit(&self.share, groups)
    }

    /// Makes sure that all of `groups` would have room if nobody held anything else.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace), as [`admit`](Self::admit).
    pub fn holds(&self, groups: &[Group]) -> Result<()> {
        self.evictor.holds(&self.share, groups)
    }

    /// Gives back what was removed.
    pub fn release(&self, bytes: u64) {
        self.share.gone(on_disk(bytes));
    }
}
