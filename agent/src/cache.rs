//! The cache directory of an agent: how large it may grow, what lies there, and which agent it belongs to.

mod claim;
pub mod inventory;
pub mod scrubber;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bdnfs::cache::Limits;
use bdnfs::cache::directory::CacheDirectory;
use bdnfs::engine::Config;
use bdnfs::error::Result;

pub use claim::CacheClaim;
use rustix::fs::OFlags;

pub use crate::api::DEFAULT_TENANT;
use crate::context::Context;

/// The part of the cache's disk that stays free for others, in percent.
const RESERVE_PERCENT: u64 = 5;
/// The most that stays free for others, in bytes: on a disk of many terabytes 20 GiB are room enough for logs and checkpoints.
const MAX_RESERVE_BYTES: u64 = 20 << 30;
/// The memory that fetches under way may hold by default, in bytes: half of the 512 MiB that an agent may use in all. The rest is
/// for manifests, presence maps and the blocks that readers hold.
const FETCH_MEMORY_BYTES: u64 = 256 << 20;
/// The log of a detached agent, in that of its cache.
const LOG_FILE: &str = "daemon.log";
/// The size beyond which the log starts anew, in bytes: weeks of what an agent normally says, and quick to look through.
const MAX_LOG_BYTES: u64 = 10 << 20;

/// A cache directory that exists.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// The path of the cache directory, absolute and without links.
    pub dir: PathBuf,
    /// The size limit of the cache, in bytes.
    pub size: Option<u64>,
    /// The space that stays free on its disk, in bytes; by default a part of that disk.
    pub reserve: Option<u64>,
    /// The most memory that fetches under way may hold, in bytes.
    pub memory: Option<u64>,
    /// The tenant of mounts that name none.
    pub tenant: String,
    /// The most that the blobs of single tenants may occupy, in bytes.
    pub quotas: BTreeMap<String, u64>,
    /// The interval at which everything in the cache is verified; 0 for never.
    pub scrub_interval: Duration,
}

impl CacheConfig {
    /// The configuration of the engine.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) where the size of the disk is unknown.
    pub fn engine_config(&self) -> Result<Config> {
        let disk = rustix::fs::statvfs(&self.dir)
            .with_context(|| format!("cannot read the size of the disk of {}", self.dir.display()))?;
        let usual = reserve(disk.f_blocks.saturating_mul(disk.f_frsize));
        let limits = Limits { capacity: self.size, reserve: self.reserve.unwrap_or(usual) };
        let (cache, tenant) = (self.dir.clone(), self.tenant.clone());
        let (memory, quotas) = (self.memory.unwrap_or(FETCH_MEMORY_BYTES), self.quotas.clone());
        Ok(Config { cache, tenant, limits, quotas, memory, now: SystemTime::now })
    }

    /// The log of a detached agent.
    pub fn log(&self) -> PathBuf {
        self.dir.join(LOG_FILE)
    }
}

/// Opens the log of the detached processes of the cache in the directory `cache`.
///
/// # Errors
/// Those of [`CacheDirectory::open`]; [`Kind::Disk`](bdnfs::error::Kind::Disk).
pub fn open_log(cache: &Path) -> Result<File> {
    let directory = CacheDirectory::open(cache)?;
    let open = || {
        let file = directory.file(LOG_FILE, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        if file.metadata()?.len() > MAX_LOG_BYTES {
            file.set_len(0)?;
        }
        Ok::<_, std::io::Error>(file)
    };
    open().with_context(|| format!("cannot write the agent's log {}", cache.join(LOG_FILE).display()))
}

fn reserve(disk: u64) -> u64 {
    (disk / 100 * RESERVE_PERCENT).min(MAX_RESERVE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_reserve_is_5_percent_up_to_20_gib() {
        assert_eq!(reserve(100 << 30), 5 << 30);
        assert_eq!(reserve(10 << 40), 20 << 30);
    }
}
