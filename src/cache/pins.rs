//! Pins: snapshots that stay in the cache although nobody uses them.
//!
//! A pin is an empty file `pins/<digest>`, beside the manifest of that name. What it holds is leased from when the cache is
//! opened.

use std::fs::File;
use std::io::{self, ErrorKind};

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::Manifest;

use super::lease::Group;
use super::share::Share;

/// Leases what is pinned of `share`.
pub fn lease(share: &Share) {
    let pinned = match all(share) {
        Ok(pinned) => pinned,
        Err(error) => return tracing::warn!(%error, "what is pinned is not known"),
    };
    for id in pinned {
        if let Err(error) = hold(share, &id) {
            tracing::warn!(%error, %id, "a pin holds nothing");
        }
    }
}

/// The snapshots that are pinned. Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`].
pub fn all(share: &Share) -> Result<Vec<Digest>> {
    let list = || std::fs::read_dir(share.layout.pins())?.collect::<io::Result<Vec<_>>>();
    let names = list().map_err(|e| Error::disk("cannot read the pins of the cache", e))?;
    Ok(names.into_iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Pins a snapshot whose manifest is here, for good.
///
/// # Errors
/// [`Kind::NotFound`] when it is not here, [`Kind::Disk`].
pub fn pin(share: &Share, id: &Digest) -> Result<()> {
    hold(share, id)?;
    let pins = share.layout.pins();
    let make = || {
        File::create(pins.join(id.to_string()))?.sync_all()?;
        File::open(pins)?.sync_all()
    };
    make().map_err(|e| Error::disk("cannot pin in the cache", e))
}

/// Takes a pin away; false where there is none.
///
/// # Errors
/// [`Kind::Disk`].
pub fn unpin(share: &Share, id: &Digest) -> Result<bool> {
    let pins = share.layout.pins();
    let removed = match std::fs::remove_file(pins.join(id.to_string())) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        removed => removed.and_then(|()| File::open(pins)?.sync_all()),
    };
    removed.map_err(|e| Error::disk("cannot unpin in the cache", e))?;
    share.let_go(id);
    Ok(true)
}

fn hold(share: &Share, id: &Digest) -> Result<()> {
    let missing = |e: io::Error| match e.kind() {
        ErrorKind::NotFound => Error::new(Kind::NotFound, format!("the cache has no manifest {id}")),
        _ => Error::disk("cannot read a manifest of the cache", e),
    };
    let file = File::open(share.layout.manifests().join(id.to_string())).map_err(missing)?;
    let group = Group::of(&Manifest::open(&file)?)?;
    share.keep(*id, (share.leases.lease_all(group), share.leases.lease_manifest(*id)));
    Ok(())
}
