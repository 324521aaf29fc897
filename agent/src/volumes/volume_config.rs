//! The places and the limits of volumes, as the configuration of the agent has them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The variable with the directory of volumes where no configuration names one, for tests and single commands.
const DIRECTORY_VARIABLE: &str = "BDNFS_VOLUMES_DIR";
/// The most that a cache may occupy where no configuration says it, in bytes: what one has on the platform.
const DEFAULT_CACHE_LIMIT_BYTES: u64 = 1_000_000_000_000;
/// The default interval at which caches are saved while jobs run: at most so much of a cache is lost with its node.
const DEFAULT_SAVE_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// The default time for which a failed save is retried: a mirror is repaired within a day.
const DEFAULT_SAVE_GIVE_UP_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The places and the limits of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// The directory of all volumes, absolute.
    pub dir: PathBuf,
    /// The directory of training caches on a file system that other nodes have, too, absolute; they are not saved then.
    pub shared_dir: Option<PathBuf>,
    /// The most that the scratch directory of a job may occupy, in bytes.
    pub scratch_limit: Option<u64>,
    /// The most that the cache of a project or a team may occupy, in bytes.
    pub cache_limit: u64,
    /// The most that the caches of single projects may occupy, in bytes, by their names.
    pub project_limits: BTreeMap<String, u64>,
    /// The most that the caches of single teams may occupy, in bytes, by their names.
    pub team_limits: BTreeMap<String, u64>,
    /// The interval at which the caches of jobs are saved while these run.
    pub save_interval: Duration,
    /// The most bytes a second that are read to save what a job writes while it runs.
    pub upload_rate: Option<u64>,
    /// The time for which failed saves are retried when the job has ended.
    pub give_up: Duration,
}

impl Default for VolumeConfig {
    fn default() -> Self {
        let named = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from).filter(|dir| dir.is_absolute());
        let dir = named.unwrap_or_else(|| PathBuf::from("/var/lib/bdnfs/volumes"));
        Self {
            dir,
            shared_dir: None,
            scratch_limit: None,
            cache_limit: DEFAULT_CACHE_LIMIT_BYTES,
            project_limits: BTreeMap::new(),
            team_limits: BTreeMap::new(),
            save_interval: DEFAULT_SAVE_INTERVAL,
            upload_rate: None,
            give_up: DEFAULT_SAVE_GIVE_UP_AFTER,
        }
    }
}
