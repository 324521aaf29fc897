//! The directory of homes on a file system that several nodes share: what it must be.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crossbeam::channel::bounded;

/// The timeout for resolving links in a path: a file system that hangs must not keep an agent from its start.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes sure that the directory `root` is there, and that only root, or this process's user, writes to it: others could put links
/// in the place of homes. Touches its disk.
///
/// # Errors
/// The disk's own, or what is wrong with it.
pub fn check(root: &Path) -> io::Result<()> {
    let other = |text: String| Err(io::Error::other(text));
    let found = match fs::metadata(root) {
        Ok(found) if found.is_dir() => found,
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(error);
        }
        _ => return other(format!("{} is not there; mount the shared file system first", root.display())),
    };
    let is_own = found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw();
    if !is_own || found.mode() & 0o022 != 0 {
        let path = root.display();
        return other(format!(
            "{path} may be written to by others than root; run `chown root {path}` and `chmod go-w {path}`"
        ));
    }
    Ok(())
}

/// Creates a directory for its owner alone, which another node may create at the same time. The one above it is there. Touches its
/// disk.
///
/// # Errors
/// The disk's own.
pub fn create_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

/// The path without links as far as it exists; as it is where that can't be told soon. Touches its disk.
pub fn resolve(path: &Path) -> PathBuf {
    let (sender, resolved) = bounded(1);
    let own = path.to_owned();
    let look = move || {
        let found = own.ancestors().find_map(|above| Some((above.canonicalize().ok()?, above)));
        let whole = found.and_then(|(real, above)| {
            let below = own.strip_prefix(above).ok()?;
            // Joining nothing would add a slash.
            Some(if below.as_os_str().is_empty() { real } else { real.join(below) })
        });
        let _ = sender.send(whole);
    };
    let started = thread::Builder::new().name("bdnfs-resolve".into()).spawn(look);
    let resolved = started.ok().and_then(|_| resolved.recv_timeout(RESOLVE_TIMEOUT).ok()).flatten();
    resolved.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn check_of_a_directory_that_others_may_write_to_or_that_is_missing_fails() {
        let root = tempfile::tempdir().unwrap();
        check(root.path()).unwrap();
        for mode in [0o770, 0o1777] {
            fs::set_permissions(root.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert!(check(root.path()).unwrap_err().to_string().contains("chmod go-w"));
        }
        let error = check(&root.path().join("missing")).unwrap_err();
        assert!(error.to_string().ends_with("mount the shared file system first"), "{error}");
    }

    #[test]
    fn resolve_follows_links_of_what_exists() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        fs::create_dir(home.join("real")).unwrap();
        symlink("real", home.join("link")).unwrap();
        assert_eq!(resolve(&home.join("link")), home.join("real"));
        assert_eq!(resolve(&home.join("link/missing/x")), home.join("real/missing/x"));
    }
}
