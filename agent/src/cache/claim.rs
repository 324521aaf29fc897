//! An agent's claim on its cache, which outlives a crash: what it had leased is not for others to evict before it is back.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};

/// A claim. It is given up by [`end`](Self::end) only.
#[derive(Debug)]
pub struct CacheClaim(PathBuf);

impl CacheClaim {
    /// Claims the cache in the directory `cache`, whose lock the caller holds.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn make(cache: &Path) -> Result<Self> {
        let path = path(cache);
        let make = || {
            fs::create_dir_all(cache.join("state"))?;
            let mut file = File::create(&path)?;
            writeln!(file, "{}", std::process::id())?;
            file.sync_all()?;
            File::open(cache.join("state"))?.sync_all()
        };
        make().map_err(|e| Error::disk(format!("cannot write {}", path.display()), e))?;
        Ok(Self(path))
    }

    /// Gives it up: nothing that is mounted uses the cache any more.
    pub fn end(self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }

    /// Makes sure that no agent has a claim on the cache in the directory `cache`.
    ///
    /// # Errors
    /// [`Kind::Busy`], with what to do; [`Kind::Disk`].
    pub fn of_nobody(cache: &Path) -> Result<()> {
        let path = path(cache);
        let pid = match fs::read_to_string(&path) {
            Ok(pid) => pid,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::disk(format!("cannot read {}", path.display()), e)),
        };
        let text = format!(
            "the agent of the cache {} (process {}) has ended, and what was mounted waits for the next one; start one, or \
             remove {} if there is to be none",
            cache.display(),
            pid.trim(),
            path.display()
        );
        Err(Error::new(Kind::Busy, text))
    }
}

fn path(cache: &Path) -> PathBuf {
    cache.join("state").join("agent")
}
