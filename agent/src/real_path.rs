//! The real path of a file that may not exist yet.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Resolves all links in the absolute `path`, as far as it exists; `None` where it can't be resolved. So it is behind a dangling
/// link, in an unreadable directory, and for `..` below what is missing. Touches the local disk.
pub fn real_path(path: &Path) -> Option<PathBuf> {
    let is_missing = |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let there = path.ancestors().find(|above| !is_missing(above))?;
    let below = path.strip_prefix(there).ok()?;
    let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    let there = there.canonicalize().ok().filter(|_| is_plain)?;
    // To join nothing would add a slash.
    Some(if below.as_os_str().is_empty() { there } else { there.join(below) })
}
