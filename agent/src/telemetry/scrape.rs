//! A scrape: all figures of an agent at one moment.

use bdnfs::budget::BudgetUsage;
use bdnfs::engine::{Engine, Usage};
use bdnfs::error::Kind;
use bdnfs::metrics::{EngineTotals, Traffic};
use bdnfs::peer::client::PeerStats;
use bdnfs_fs::RequestTotals;

use super::process::ProcessScrape;
use crate::api::job::SaveReport;
use crate::api::kind_name;
use crate::cache::scrubber::ScrubCounts;

/// The staging states of a mount.
pub const STAGING_STATES: [&str; 4] = ["ready", "staging", "staged", "failed"];

/// The metrics of an agent.
#[derive(Debug)]
pub struct Scrape {
    /// Whether the agent answers requests.
    pub ready: bool,
    /// The engine's counters and times.
    pub metered: EngineTotals,
    /// The memory for fetches: of those that wait for no other node, of those that may, and of what is sent to others.
    pub memory: [BudgetUsage; 3],
    /// The space that the cache uses and may use.
    pub usage: Usage,
    /// The scrubber's counters.
    pub scrubbed: ScrubCounts,
    /// Blobs leased by themselves.
    pub leased_blobs: u64,
    /// Snapshots leased as a whole.
    pub leased_snapshots: u64,
    /// The other nodes; `None` without a cluster.
    pub cluster: Option<ClusterScrape>,
    /// FUSE requests so far.
    pub requests: RequestTotals,
    /// The mounts.
    pub mounts: Vec<MountScrape>,
    /// Mounts that an earlier agent had and that are not back.
    pub lost: u64,
    /// Publications by their states.
    pub publications: [(&'static str, u64); 3],
    /// The jobs whose checkpoints are saved, which the caller knows.
    pub savings: Vec<SavingScrape>,
    /// The agent's process: memory, threads, descriptors.
    pub process: ProcessScrape,
}

/// The metrics of a node's peers.
#[derive(Debug)]
pub struct ClusterScrape {
    /// The counters of peers.
    pub peer_stats: PeerStats,
    /// Peers that are banned for corruption.
    pub banned: u64,
}

/// The metrics of a job's checkpoints.
#[derive(Debug)]
pub struct SavingScrape {
    /// The id of the training job.
    pub id: String,
    /// The project of the job.
    pub project: String,
    /// When its commands began to run, in seconds since 1970: nothing can have been saved before.
    pub began: f64,
    /// The checkpoints and their states.
    pub report: SaveReport,
}

/// The metrics of a mount.
#[derive(Debug)]
pub struct MountScrape {
    /// The source, as it was named.
    pub source: String,
    /// The mount point.
    pub mountpoint: String,
    /// The staging state, one of [`STAGING_STATES`].
    pub state: &'static str,
    /// The size of its snapshot in bytes.
    pub bytes: u64,
    /// Bytes that were read for it, by tier.
    pub traffic: Traffic,
}

impl Scrape {
    /// Asks the engine, the disk and the kernel. Blocks on the local disk.
    pub fn gather(
        engine: &Engine,
        requests: RequestTotals,
        ready: bool,
        mounts: Vec<MountScrape>,
        lost: u64,
        scrubbed: ScrubCounts,
        publications: [(&'static str, u64); 3],
    ) -> Self {
        let shares = engine.cache().partitions();
        let sum = |count: fn(&bdnfs::cache::partition::Partition) -> usize| -> u64 {
            shares.iter().map(|partition| count(partition) as u64).sum()
        };
        Self {
            ready,
            metered: engine.metrics(),
            memory: engine.memory(),
            usage: engine.usage(),
            scrubbed,
            leased_blobs: sum(|partition| partition.leases.single_leases()),
            leased_snapshots: sum(|partition| partition.leases.groups().len()),
            cluster: engine.peers().map(|peers| ClusterScrape {
                peer_stats: peers.stats(),
                banned: peers.banned().len() as u64,
            }),
            requests,
            mounts,
            lost,
            publications,
            savings: Vec::new(),
            process: ProcessScrape::read(),
        }
    }
}

impl MountScrape {
    /// The labels that distinguish it from other mounts.
    pub fn labels(&self) -> [(&'static str, &str); 2] {
        [("mountpoint", &self.mountpoint), ("source", &self.source)]
    }
}

/// The names of all kinds of error, by their places in [`Kind::ALL`].
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(kind_name)
}
