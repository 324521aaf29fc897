//! Groups: what is measured in which order, and the share of a run's time that each has.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;

use crate::lab::BenchEnv;
use crate::report::BenchReport;
use crate::{
    agent, cluster, cold, cost, hooks, instructions, limits, loaders, local, memory, mirror, native, peer,
    rivals, small, staging, volumes,
};

/// A group of rows. They are measured in this order: what users ask for first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GroupName {
    /// Instructions of the functions that every read passes
    Hot,
    /// Limits of this machine
    Limits,
    /// A local file, beside the disk's own file system
    Local,
    /// Other file systems that are installed here
    Rivals,
    /// Programs that load models and data sets, beside the disk's own file system
    Loaders,
    /// Staging, beside aws, rclone and curl
    Staging,
    /// Downloads from S3, beside curl
    Cold,
    /// Copying into the mirror, and staging from it
    Mirror,
    /// Reads from a peer that has the data
    Peer,
    /// Nodes that stage the same file at once, with peers and without
    Cluster,
    /// The agent: time until it is ready, and until a job has its data
    Agent,
    /// The cost of a container's volume
    Hooks,
    /// What jobs write, beside the bare disk, and how it is saved
    Volumes,
    /// Processor, memory and requests, and how they grow
    Cost,
    /// Many small files, beside the disk's own file system
    Small,
    /// Many small files that the kernel serves alone, beside two other file systems
    Native,
    /// The memory of a tree of a million files
    Memory,
}

impl GroupName {
    /// All of them, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Its share of the time, relative to the other groups: the seconds that it takes at the medium sizes.
    fn share(self) -> u32 {
        match self {
            Self::Hot | Self::Limits => 4,
            Self::Hooks | Self::Memory => 4,
            Self::Cold => 8,
            Self::Cost | Self::Staging => 9,
            Self::Peer => 11,
            Self::Rivals | Self::Small | Self::Native => 15,
            Self::Local | Self::Loaders => 16,
            Self::Mirror => 19,
            Self::Cluster => 23,
            Self::Agent => 25,
            Self::Volumes => 200,
        }
    }

    /// Measures the group.
    ///
    /// # Errors
    /// Interruption only.
    pub fn measure(self, lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
        match self {
            Self::Limits => limits::measure(lab, report),
            Self::Local => local::measure(lab, report),
            Self::Cold => cold::measure(lab, report),
            Self::Small => small::measure(lab, report),
            Self::Native => native::measure(lab, report),
            Self::Memory => memory::measure(lab, report),
            Self::Loaders => loaders::measure(lab, report),
            Self::Staging => staging::measure(lab, report),
            Self::Rivals => rivals::measure(lab, report),
            Self::Mirror => mirror::measure(lab, report),
            Self::Agent => agent::measure(lab, report),
            Self::Hooks => hooks::measure(lab, report),
            Self::Volumes => volumes::measure(lab, report),
            Self::Peer => peer::measure(lab, report),
            Self::Cluster => cluster::measure(lab, report),
            Self::Cost => cost::measure(lab, report),
            Self::Hot => instructions::measure(lab, report),
        }
    }
}

/// The time until which each of `groups` may begin rows, in a run that begins at `begin` with the time limit `limit`. A slow group
/// takes nothing from those after it but what its last row runs over; one that is fast leaves them more.
pub fn in_time(groups: &[GroupName], begin: Instant, limit: Duration) -> Vec<(GroupName, Instant)> {
    let all: u32 = groups.iter().map(|group| group.share()).sum();
    let mut so_far = 0;
    let until = |group: &GroupName| {
        so_far += group.share();
        (*group, begin + limit * so_far / all)
    };
    groups.iter().map(until).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limit_is_shared_by_all_groups() {
        let (begin, limit) = (Instant::now(), Duration::from_secs(1000));
        let groups: Vec<_> = GroupName::all().collect();
        let times = in_time(&groups, begin, limit);
        assert_eq!(times.iter().map(|time| time.0).collect::<Vec<_>>(), groups);
        assert_eq!(times.last().map(|time| time.1), Some(begin + limit));
        let ends = std::iter::once(begin).chain(times.iter().map(|time| time.1)).collect::<Vec<_>>();
        assert!(ends.windows(2).all(|two| two[1] - two[0] >= limit / 100), "{times:?}");
        assert_eq!(in_time(&[GroupName::Cold], begin, limit), [(GroupName::Cold, begin + limit)]);
    }
}
