//! A mount under measurement: made by the real command, and gone when dropped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};

use crate::lab::BenchEnv;
use crate::link::{self, ShapedLink};
use crate::process::ProcessStats;
use crate::run;

/// How long `bdnfs mount` may take: at the full sizes far above what a slow disk needs.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(900);
/// How long an agent may take to end: it makes what it has durable first.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// How a source is mounted.
#[derive(Debug)]
pub struct MountPlan<'a> {
    /// Its URI.
    pub source: &'a str,
    /// A directory of this mount alone, for its mountpoint and its cache.
    pub room: &'a Path,
    /// Whether all of it is to be local.
    pub wait: bool,
    /// Variables that lead to the source.
    pub env: &'a [(&'static str, String)],
    /// More options of `bdnfs mount`.
    pub options: &'a [&'a str],
    /// The network that it is in, where that is another one.
    pub link: Option<&'a ShapedLink>,
}

/// A mounted source, whose agent serves nothing else.
#[derive(Debug)]
pub struct BenchMount {
    point: PathBuf,
    cache: PathBuf,
    /// Seconds that `bdnfs mount` took.
    pub took: f64,
}

impl BenchMount {
    /// Mounts `source` with no further options, with its cache in `room`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn plain(lab: &BenchEnv, source: &str, room: &Path, wait: bool) -> Result<Self> {
        Self::new(lab, &MountPlan { source, room, wait, env: &[], options: &[], link: None })
    }

    /// Mounts it.
    ///
    /// # Errors
    /// `bdnfs mount` fails, with what it said.
    pub fn new(lab: &BenchEnv, plan: &MountPlan<'_>) -> Result<Self> {
        let (point, cache) = (plan.room.join("mount"), plan.room.join("cache"));
        std::fs::create_dir_all(&point).with_context(|| format!("cannot make {}", point.display()))?;
        // Made first, so that what a command leaves behind that fails or is killed is taken down, too.
        let mut mount = Self { point, cache, took: 0.0 };
        let mut command = link::command(plan.link, &lab.bdnfs);
        command.arg("mount").arg(plan.source).arg(&mount.point).arg("--cache-dir").arg(&mount.cache);
        command.args(plan.wait.then_some("--wait")).args(plan.options).envs(plan.env.iter().cloned());
        mount.took = run::run(&mut command, MOUNT_TIMEOUT)?.seconds;
        Ok(mount)
    }

    /// Where it is.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The process that serves it.
    ///
    /// # Errors
    /// There is none any more.
    pub fn agent(&self) -> Result<ProcessStats> {
        ProcessStats::agent(&self.cache).context("the agent is gone")
    }
}

impl Drop for BenchMount {
    fn drop(&mut self) {
        if let Some(agent) = ProcessStats::agent(&self.cache) {
            agent.end(END_TIMEOUT);
        }
        // The agent has done it, unless it had to be killed.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}
