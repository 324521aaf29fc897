//! File notes: the extended attributes that the cache keeps on its files.

use std::os::fd::AsFd;

use rustix::io::Errno;

/// The attribute `name` of `file`; `None` where it has none of `N` bytes.
///
/// # Errors
/// The disk's own; `EOPNOTSUPP` where it keeps no attributes.
pub(crate) fn read<const N: usize>(file: impl AsFd, name: &str) -> Result<Option<[u8; N]>, Errno> {
    let mut value = [0; N];
    match rustix::fs::fgetxattr(file, name, &mut value[..]) {
        Ok(len) => Ok((len == N).then_some(value)),
        Err(Errno::NODATA | Errno::RANGE) => Ok(None),
        Err(error) => Err(error),
    }
}
