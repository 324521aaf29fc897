//! Some time of a simulated cluster's life: nodes come, go, die and are cut off, and now and then a job begins on all of them.

use std::sync::Arc;
use std::time::Duration;

use bdnfs_tests::process::peak_memory;
use rustix::process::getpid;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::sim::{BLOCKS_PER_BLOB, STREAMS, Sim, SimNode, SimStats};

/// What a cluster may read of the mirror for each block that is due: what the design promises.
const MIRROR_READS_LIMIT: f64 = 1.05;

/// A job begins once in so long, at a time of its own in the first third of it.
const JOB_DURATION: Duration = Duration::from_secs(180);

/// How long it takes on average until the next node comes, the next one goes, and the network is cut again; and how long it
/// is in two parts then.
const JOIN_INTERVAL: Duration = Duration::from_secs(15);
const LEAVE_INTERVAL: Duration = Duration::from_secs(20);
const PARTITION: (Duration, Duration) = (Duration::from_secs(40), Duration::from_secs(20));

/// How many nodes die in the middle of a burst, beside one that leaves.
const LOST_NODES: usize = 2;
/// The network is cut during one job of this many.
const JOBS_PER_PARTITION: usize = 3;

/// How many groups a blob has, each of which a node may fetch twice at the same time, for itself and for others; and how many
/// requests a server answers at once.
const GROUPS: usize = BLOCKS_PER_BLOB as usize / 4;
const READ_LIMIT: usize = 1024;

/// The longest that a node may take for a blob, whatever happens around it.
const STALL_LIMIT: Duration = Duration::from_secs(60);

struct ClusterLife {
    seed: u64,
    nodes: usize,
    sim: Arc<Sim>,
    end: Instant,
}

impl ClusterLife {
    async fn begin(seed: u64, nodes: usize, lasts: Duration) -> Self {
        let sim = Sim::new(seed);
        for _ in 0..nodes {
            sim.join();
        }
        sleep(Duration::from_secs(5)).await;
        Self { seed, nodes, sim, end: Instant::now() + lasts }
    }

    /// All of it at once, each at times of its own.
    async fn live(&self) {
        tokio::join!(self.jobs(), self.arrivals(), self.departures(), self.cuts(), self.checks());
        sleep(Duration::from_secs(60)).await;
        for node in self.sim.nodes() {
            assert!(node.is_at_rest(), "seed {}: something is stuck at {}", self.seed, node.id);
        }
    }

    /// Waits for as long as it takes on average; false at the end.
    async fn wait(&self, mean: Duration) -> bool {
        sleep(Duration::from_millis(self.sim.random_below(2 * mean.as_millis() as u64))).await;
        Instant::now() < self.end
    }

    async fn jobs(&self) {
        for job in 0.. {
            let next = sleep(JOB_DURATION);
            if !self.wait(JOB_DURATION / 6).await {
                break;
            }
            let (blob, cut) = (self.sim.publish(), self.sim.is_cut());
            tokio::join!(self.sim.burst(&blob), self.lose_some(), async {
                if job % JOBS_PER_PARTITION == JOBS_PER_PARTITION - 1 {
                    self.cut_some().await;
                }
            });
            next.await;
            let SimStats { read, due } = self.sim.stats()[job];
            let times = read as f64 / BLOCKS_PER_BLOB as f64;
            println!(
                "seed {}: job {job}: read {times:.3} times, due {:.3}; cut before: {cut}",
                self.seed,
                due as f64 / BLOCKS_PER_BLOB as f64
            );
        }
    }

    /// In the middle of a burst, some die and one takes its leave.
    async fn lose_some(&self) {
        sleep(Duration::from_millis(self.sim.random_below(400))).await;
        (0..LOST_NODES).for_each(|_| self.sim.kill(&self.any()));
        self.sim.retire(&self.any()).await;
    }

    fn any(&self) -> Arc<SimNode> {
        let all = self.sim.nodes();
        all[self.sim.random_below(all.len() as u64) as usize].clone()
    }

    /// Cuts the network, unless it is already: between a few and all others, or in the middle.
    async fn cut_some(&self) {
        sleep(Duration::from_millis(self.sim.random_below(400))).await;
        if !self.sim.is_cut() {
            let part = 2 + self.sim.random_below(19);
            let cut: Vec<_> =
                self.sim.nodes().into_iter().filter(|_| self.sim.random_below(part) == 0).collect();
            self.sim.partition(&cut, PARTITION.1).await;
        }
    }

    async fn cuts(&self) {
        while self.wait(PARTITION.0).await {
            self.cut_some().await;
        }
    }

    /// Nodes come, and want all there is.
    async fn arrivals(&self) {
        let mut staging = JoinSet::new();
        while self.wait(JOIN_INTERVAL).await {
            let (node, blobs) = (self.sim.join(), self.sim.published());
            staging.spawn(async move {
                for blob in blobs {
                    node.stage(&blob).await;
                }
            });
        }
        staging.join_all().await;
    }

    /// Every third that goes takes its leave, the others just die.
    async fn departures(&self) {
        while self.wait(LEAVE_INTERVAL).await {
            match self.sim.random_below(3) {
                0 => self.sim.retire(&self.any()).await,
                _ => self.sim.kill(&self.any()),
            }
        }
    }

    /// What a node keeps in memory is bounded by what it does itself, and by the cluster's size.
    async fn checks(&self) {
        while self.wait(Duration::from_secs(5)).await {
            let (seed, asked) = (self.seed, self.sim.max_requests_in_flight());
            assert!(asked <= 2 * STREAMS as u64, "seed {seed}: {asked} requests of one node at once");
            for node in self.sim.nodes() {
                let (load, known) = (node.load(), node.view.known());
                let all = [load.asking, load.flights, load.answering];
                let most = [2 * STREAMS, 2 * GROUPS, READ_LIMIT];
                assert!(
                    all.iter().zip(most).all(|(n, most)| *n <= most),
                    "seed {seed}: {} {load:?}",
                    node.id
                );
                assert!(load.tracked_peers <= 2 * self.nodes, "seed {seed}: {} {load:?}", node.id);
                assert!(known <= 2 * self.nodes, "seed {seed}: {} knows {known}", node.id);
            }
        }
    }

    /// Checks what has become of it.
    fn judge(&self) {
        let stats = self.sim.stats();
        let sum = |of: fn(&SimStats) -> u64| stats.iter().map(of).sum::<u64>() as f64;
        let (read, due, all) = (sum(|t| t.read), sum(|t| t.due), stats.len() as f64 * BLOCKS_PER_BLOB as f64);
        let (seed, slowest, peak) = (self.seed, self.sim.slowest(), peak_memory(getpid()));
        println!(
            "seed {seed}: read {:.3} times, due {:.3}, {:.3} of it; a node took {slowest} s at most; {} MiB at most",
            read / all,
            due / all,
            read / due,
            peak >> 20
        );
        assert!(
            (1.0..MIRROR_READS_LIMIT).contains(&(read / due)),
            "seed {seed}: {} times what is due",
            read / due
        );
        assert!(slowest <= STALL_LIMIT.as_secs(), "seed {seed}: {slowest} s");
        // All nodes and what models the rest, a MiB each.
        assert!(peak < (self.nodes as u64) << 20, "seed {seed}: {} MiB", peak >> 20);
    }
}

#[tokio::test(start_paused = true)]
async fn cluster_simulated_for_minutes_reads_mirror_about_once() {
    let life = ClusterLife::begin(1, 60, Duration::from_secs(15 * 60)).await;
    life.live().await;
    life.judge();
}

/// The same for an hour of 200 nodes. BDNFS_SEEDS says how many seeds, 2 by default.
#[tokio::test(start_paused = true)]
#[ignore = "takes minutes; run it by hand after a change to who asks whom"]
async fn cluster_simulated_for_an_hour_reads_mirror_about_once() {
    let seeds = std::env::var("BDNFS_SEEDS").map_or(2, |seeds| seeds.parse().expect("a number"));
    for seed in 1..=seeds {
        let life = ClusterLife::begin(seed, 200, Duration::from_secs(3600)).await;
        life.live().await;
        life.judge();
    }
}
