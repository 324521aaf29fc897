//! Facts: all that a daemon tells in one scrape, gathered at one moment.

use bdnfs::budget::Memory;
use bdnfs::engine::{Engine, Usage};
use bdnfs::error::Kind;
use bdnfs::metrics::{Metered, Traffic};
use bdnfs::peer::client::Figures;
use bdnfs_fs::RequestTotals;

use super::process::Process;
use crate::api::kind_name;

/// How far a mount may be staged.
pub const STATES: [&str; 4] = ["ready", "staging", "staged", "failed"];

/// What is told.
#[derive(Debug)]
pub struct Facts {
    pub ready: bool,
    pub metered: Metered,
    pub memory: [Memory; 3],
    pub usage: Usage,
    pub leased_blobs: u64,
    pub leased_snapshots: u64,
    pub cluster: Option<Cluster>,
    pub served: RequestTotals,
    pub mounts: Vec<Mount>,
    pub lost: u64,
    pub process: Process,
}

/// What is told of other nodes.
#[derive(Debug)]
pub struct Cluster {
    pub figures: Figures,
    pub banned: u64,
}

/// What is told of a mount.
#[derive(Debug)]
pub struct Mount {
    pub source: String,
    pub mountpoint: String,
    /// One of [`STATES`].
    pub state: &'static str,
    pub bytes: u64,
    pub traffic: Traffic,
}

impl Facts {
    /// Asks the engine, the disk and the kernel.
    pub fn gather(
        engine: &Engine,
        served: RequestTotals,
        ready: bool,
        mounts: Vec<Mount>,
        lost: u64,
    ) -> Self {
        let shares = engine.cache().shares();
        let sum = |count: fn(&bdnfs::cache::share::Share) -> usize| -> u64 {
            shares.iter().map(|share| count(share) as u64).sum()
        };
        Self {
            ready,
            metered: engine.metered(),
            memory: engine.memory(),
            usage: engine.usage(),
            leased_blobs: sum(|share| share.leases.singles()),
            leased_snapshots: sum(|share| share.leases.groups().len()),
            cluster: engine
                .peers()
                .map(|peers| Cluster { figures: peers.figures(), banned: peers.banned().len() as u64 }),
            served,
            mounts,
            lost,
            process: Process::read(),
        }
    }
}

impl Mount {
    /// What tells it from others.
    pub fn labels(&self) -> [(&'static str, &str); 2] {
        [("mountpoint", &self.mountpoint), ("source", &self.source)]
    }
}

/// The names of all kinds of error, by their places in [`Kind::ALL`].
pub fn kinds() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(kind_name)
}
