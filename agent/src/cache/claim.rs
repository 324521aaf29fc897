//! Marks a cache as claimed by an agent, so that no other process evicts its leased blobs after a crash.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::{Error, Kind, Result};
use rustix::fs::OFlags;

use crate::durable::STATE_DIRECTORY;

/// The file of a claim, in the state directory.
const CLAIM_FILE: &str = "agent";

/// An agent's claim on its cache. It is given up by [`end`](Self::end) only.
#[derive(Debug)]
pub struct CacheClaim(PathBuf);

impl CacheClaim {
    /// Claims the cache in the directory `cache`, whose lock the caller holds.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn make(cache: &Path) -> Result<Self> {
        let path = path(cache);
        let directory = CacheDirectory::open(cache)?;
        let make = || {
            let state = directory.subdirectory(STATE_DIRECTORY)?;
            let mut file = state.file(CLAIM_FILE, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
            writeln!(file, "{}", std::process::id())?;
            file.sync_all()?;
            state.sync()
        };
        make().map_err(|e| Error::disk(format!("cannot write {}", path.display()), e))?;
        Ok(Self(path))
    }

    /// Gives up the claim: nothing that is mounted uses the cache any more.
    pub fn end(self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }

    /// Makes sure that no agent has a claim on the cache in the directory `cache`.
    ///
    /// # Errors
    /// [`Kind::Busy`], with what to do; [`Kind::Disk`].
    pub fn ensure_unclaimed(cache: &Path) -> Result<()> {
        let path = path(cache);
        let claim =
            CacheDirectory::open(cache)?.file(Path::new(STATE_DIRECTORY).join(CLAIM_FILE), OFlags::RDONLY);
        let pid = match claim.and_then(io::read_to_string) {
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
    cache.join(STATE_DIRECTORY).join(CLAIM_FILE)
}
