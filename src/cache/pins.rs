//! Pins: snapshots that stay in the cache although they are not in use.
//!
//! A pin is an empty file `pins/<digest>`, beside the manifest of that name. What it holds is leased from when the cache is
//! opened.

use std::io::{self, ErrorKind};

use rustix::fs::OFlags;

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::Manifest;

use super::leases::LeaseGroup;
use super::partition::Partition;

/// Leases the pinned snapshots of `partition`.
pub fn lease(partition: &Partition) {
    let pinned = match list(partition) {
        Ok(pinned) => pinned,
        Err(error) => return tracing::warn!(%error, "cannot list the pins of the cache"),
    };
    for id in pinned {
        if let Err(error) = lease_pinned(partition, &id) {
            tracing::warn!(%error, %id, "cannot apply a pin: its snapshot cannot be leased");
        }
    }
}

/// The snapshots that are pinned. Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`].
pub fn list(partition: &Partition) -> Result<Vec<Digest>> {
    let list = || std::fs::read_dir(partition.layout.pins().path())?.collect::<io::Result<Vec<_>>>();
    let names = list().map_err(|e| Error::disk("cannot read the pins of the cache", e))?;
    Ok(names.into_iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Pins a snapshot whose manifest is here, for good.
///
/// # Errors
/// [`Kind::NotFound`] when it is not here, [`Kind::Disk`].
pub fn pin(partition: &Partition, id: &Digest) -> Result<()> {
    lease_pinned(partition, id)?;
    let pins = partition.layout.pins();
    let make = || {
        pins.file(id.to_string(), OFlags::WRONLY | OFlags::CREATE)?.sync_all()?;
        pins.sync()
    };
    make().map_err(|e| Error::disk("cannot pin in the cache", e))
}

/// Takes a pin away; false where there is none.
///
/// # Errors
/// [`Kind::Disk`].
pub fn unpin(partition: &Partition, id: &Digest) -> Result<bool> {
    let pins = partition.layout.pins();
    let removed = match std::fs::remove_file(pins.path().join(id.to_string())) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        removed => removed.and_then(|()| pins.sync()),
    };
    removed.map_err(|e| Error::disk("cannot unpin in the cache", e))?;
    partition.release_pin(id);
    Ok(true)
}

fn lease_pinned(partition: &Partition, id: &Digest) -> Result<()> {
    let missing = |e: io::Error| match e.kind() {
        ErrorKind::NotFound => Error::new(Kind::NotFound, format!("no such manifest in the cache: {id}")),
        _ => Error::disk("cannot read a manifest of the cache", e),
    };
    let file = partition.layout.open_manifest(id).map_err(missing)?;
    let group = LeaseGroup::of(&Manifest::open(&file)?)?;
    partition.hold_pin(*id, (partition.leases.lease_all(group), partition.leases.lease_manifest(*id)));
    Ok(())
}
