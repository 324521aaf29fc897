//! The sections of the agent's configuration for what jobs write.

use std::collections::BTreeMap;
use std::path::{Component, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use bdnfs::weights::has_parent;
use bdnfs_agent::VolumeConfig;
use bytesize::ByteSize;
use serde::Deserialize;

use crate::text;

/// The `[volumes]` section: the places and the limits of jobs' volumes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeSection {
    /// The directory of all volumes.
    dir: Option<PathBuf>,
    /// The most that the scratch directory of a job may occupy.
    scratch_limit: Option<ByteSize>,
    /// The most that the cache of a project or a team may occupy.
    cache_limit: Option<ByteSize>,
    /// The most that the caches of single projects may occupy, by their names.
    project_limits: BTreeMap<String, ByteSize>,
    /// The most that the caches of single teams may occupy, by their names.
    team_limits: BTreeMap<String, ByteSize>,
    /// The interval at which the caches of jobs are saved while these run.
    #[serde(deserialize_with = "text::deserialize_duration")]
    save_interval: Option<Duration>,
    /// The most bytes a second that are read to save what a job writes while it runs.
    upload_rate: Option<ByteSize>,
    /// The time for which failed saves are retried when the job has ended.
    #[serde(deserialize_with = "text::deserialize_duration")]
    give_up: Option<Duration>,
}

/// The `[projects]` section: where the training caches of projects and teams lie that several nodes share.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectSection {
    /// The directory, on a file system that other nodes have, too.
    dir: Option<PathBuf>,
    /// Whether it is: it says that the nodes have it in common, and that nothing in it is saved.
    shared: bool,
}

impl ProjectSection {
    /// The directory.
    fn shared_dir(self) -> Result<Option<PathBuf>> {
        match self.dir {
            None if self.shared => {
                bail!("projects.shared: needs projects.dir, a directory of the shared file system")
            }
            Some(path) if !self.shared => bail!(
                "projects.dir {}: needs shared = true; name a directory of this node alone with volumes.dir",
                path.display()
            ),
            Some(path) if !path.is_absolute() => {
                bail!("projects.dir {}: must be an absolute path", path.display())
            }
            dir => Ok(dir),
        }
    }
}

impl VolumeSection {
    /// The setup.
    pub fn setup(self, projects: ProjectSection) -> Result<VolumeConfig> {
        if let Some(path) = self.dir.as_ref().filter(|path| !path.is_absolute()) {
            bail!("volumes.dir {}: must be an absolute path", path.display());
        }
        for (key, dir) in [("volumes.dir", &self.dir), ("projects.dir", &projects.dir)] {
            if let Some(dir) = dir.as_deref()
                && dir.components().any(|part| part == Component::ParentDir)
            {
                bail!("{key}: {}", has_parent(&dir.to_string_lossy()));
            }
        }
        if self.upload_rate.is_some_and(|rate| rate.as_u64() == 0) {
            bail!("volumes.upload_rate: must be more than 0; leave it out, and there is no limit");
        }
        let defaults = VolumeConfig::default();
        if self.save_interval.is_some_and(|interval| interval.is_zero()) {
            bail!("volumes.save_interval: must be longer than 0s");
        }
        let bytes = |limits: BTreeMap<String, ByteSize>| {
            limits.into_iter().map(|(name, limit)| (name, limit.as_u64())).collect()
        };
        Ok(VolumeConfig {
            dir: self.dir.unwrap_or(defaults.dir),
            shared_dir: projects.shared_dir()?,
            scratch_limit: self.scratch_limit.map(|size| size.as_u64()),
            cache_limit: self.cache_limit.map_or(defaults.cache_limit, |size| size.as_u64()),
            project_limits: bytes(self.project_limits),
            team_limits: bytes(self.team_limits),
            save_interval: self.save_interval.unwrap_or(defaults.save_interval),
            upload_rate: self.upload_rate.map(|size| size.as_u64()),
            give_up: self.give_up.unwrap_or(defaults.give_up),
        })
    }
}
