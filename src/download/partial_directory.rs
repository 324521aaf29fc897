//! A directory that is made under another name, which it keeps until it is whole.

use std::fs::{self, DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The number of hexadecimal digits of its content's digest in the name of an unfinished directory: enough that no two are the
/// same.
const PARTIAL_NAME_DIGITS: usize = 16;

/// A directory that is not whole yet.
#[derive(Debug)]
pub struct PartialDirectory {
    /// The final path.
    directory: PathBuf,
    /// The path until then.
    partial: PathBuf,
}

impl PartialDirectory {
    /// Makes the directory that becomes `directory`, or resumes one left by another run for the same content. `content` is the
    /// content's digest; meanwhile the name is `directory.DIGEST.partial`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a `directory` that is not empty; [`Kind::Disk`].
    pub fn create(directory: &Path, content: &Digest) -> Result<Self> {
        check_target(directory)?;
        let mut name = directory.as_os_str().to_owned();
        name.push(format!(".{}.partial", &content.to_string()[..PARTIAL_NAME_DIGITS]));
        let partial = PathBuf::from(name);
        let failed = |e| Error::disk(format!("cannot create {}", partial.display()), e);
        if let Err(error) = DirBuilder::new().mode(0o700).create(&partial) {
            // No other user may have put links into it.
            let found = partial.symlink_metadata().map_err(failed)?;
            let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
            if error.kind() != ErrorKind::AlreadyExists || !is_own || found.mode() & 0o077 != 0 {
                return Err(failed(error));
            }
        }
        Ok(Self { directory: directory.to_owned(), partial })
    }

    /// The path until the directory is complete.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives it its name: it is whole. All may read it from now on.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn finish(&self) -> Result<()> {
        let (partial, directory) = (self.partial.display(), self.directory.display());
        let all_may_read = fs::set_permissions(&self.partial, Permissions::from_mode(0o755));
        let renamed = all_may_read.and_then(|()| fs::rename(&self.partial, &self.directory));
        renamed.map_err(|e| Error::disk(format!("cannot rename {partial} to {directory}"), e))
    }
}

/// Refuses a directory that holds anything.
fn check_target(directory: &Path) -> Result<()> {
    let is_empty = fs::read_dir(directory).map(|mut entries| entries.next().is_none());
    match is_empty {
        Ok(true) => Ok(()),
        Ok(false) => {
            let text =
                format!("{} is not empty; name a directory that is empty or missing", directory.display());
            Err(Error::new(Kind::Invalid, text))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::disk(format!("cannot use {}", directory.display()), e)),
    }
}
