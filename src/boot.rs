//! The id of the machine's present boot: what is recorded under it does not outlive it.

use std::fs;

use crate::error::{Error, Result};

/// The file with the id (random(4)).
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The id that the kernel gave this boot.
///
/// # Errors
/// [`Kind::Disk`](crate::error::Kind::Disk) where there is no /proc.
pub fn id() -> Result<String> {
    id_line().map(|line| line.trim().to_owned())
}

/// The id of this boot with the newline that it ends in, as those records have it that were always written so: without it, they
/// would seem to be of another boot.
///
/// # Errors
/// Those of [`id`].
pub fn id_line() -> Result<String> {
    fs::read_to_string(BOOT_ID_FILE)
        .map_err(|error| Error::disk(format!("cannot read {BOOT_ID_FILE}"), error))
}
