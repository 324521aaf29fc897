//! Random bytes, out of which ids are made.

use bdnfs::error::{Error, Result};
use rustix::rand::{GetRandomFlags, getrandom};

/// A random id: 32 hexadecimal digits.
///
/// # Errors
/// Those of [`bytes`].
pub fn id() -> Result<String> {
    Ok(format!("{:032x}", u128::from_be_bytes(bytes()?)))
}

/// Random bytes of the kernel.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk) where the kernel has none.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut random = [0; N];
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(|error| Error::disk("cannot choose an id", error.into()))?;
    Ok(random)
}
