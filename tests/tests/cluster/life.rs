//! Some time of a simulated cluster's life: nodes come, go and are cut off, and now and then a job begins on all of them.

use std::time::Duration;

use tokio::time::sleep;

use super::sim::{ALL, STREAMS, Sim};

/// What a cluster may read of the mirror for each byte that a job has: the bound.
const ONCE: f64 = 1.05;

/// How many nodes come in a minute, and how many go.
const CHANGE: usize = 3;

/// One in so many nodes is cut off together with others, once a minute and for so long.
const CUT: (u64, Duration) = (20, Duration::from_secs(20));

/// What became of it.
#[derive(Default)]
struct Outcome {
    /// How often jobs were read of the mirror, whoever read it: those that began in one cluster, and those that began while
    /// some nodes were being cut off.
    whole: Vec<f64>,
    torn: Vec<f64>,
}

struct Life {
    seed: u64,
    nodes: u64,
    sim: std::sync::Arc<Sim>,
}

impl Life {
    async fn begin(seed: u64, nodes: u64) -> Self {
        let sim = Sim::new(seed);
        for _ in 0..nodes {
            sim.join();
        }
        sleep(Duration::from_secs(5)).await;
        Self { seed, nodes, sim }
    }

    /// `jobs` in so many minutes; in those that are `torn`, nodes are cut off in the middle of the burst.
    async fn live(&self, jobs: u64, minutes: u64, torn: impl Fn(u64) -> bool) -> Outcome {
        let (mut blobs, mut outcome) = (Vec::new(), Outcome::default());
        for job in 0..jobs {
            let (blob, before) = (self.sim.publish(job), self.sim.read());
            let cut = async {
                if torn(job) {
                    self.cut_some().await;
                }
            };
            tokio::join!(self.sim.burst(&blob), self.lose_some(), cut);
            blobs.push(blob);
            for _ in 0..minutes / jobs {
                self.minute(&blobs).await;
            }
            let times = (self.sim.read() - before) as f64 / ALL as f64;
            println!("seed {}: job {job} was read {times:.3} times", self.seed);
            if torn(job) { &mut outcome.torn } else { &mut outcome.whole }.push(times);
        }
        for node in self.sim.nodes() {
            assert!(node.is_at_rest(), "seed {}: something is stuck at {}", self.seed, node.id);
        }
        outcome
    }

    /// In the middle of a burst, some die and one takes its leave.
    async fn lose_some(&self) {
        sleep(Duration::from_millis(200)).await;
        self.lose().await;
    }

    async fn lose(&self) {
        let pick = || {
            let all = self.sim.nodes();
            all[self.sim.roll(all.len() as u64) as usize].clone()
        };
        (1..CHANGE).for_each(|_| self.sim.kill(&pick()));
        self.sim.retire(&pick()).await;
    }

    async fn cut_some(&self) {
        sleep(Duration::from_millis(self.sim.roll(400))).await;
        let cut: Vec<_> = self.sim.nodes().into_iter().filter(|_| self.sim.roll(CUT.0) == 0).collect();
        self.sim.partition(&cut, CUT.1).await;
    }

    async fn minute(&self, blobs: &[bdnfs::blob::Blob]) {
        let newcomers = [(); CHANGE].map(|()| self.sim.join());
        let arrive = async {
            // A node that has just begun waits until it has heard of the others.
            sleep(Duration::from_secs(4)).await;
            for node in &newcomers {
                for blob in blobs {
                    node.stage(blob).await;
                }
            }
        };
        tokio::join!(arrive, self.cut_some());
        self.lose().await;
        sleep(Duration::from_secs(30)).await;
        self.check_memory();
    }

    /// What a node keeps in memory is bounded by what it does itself, and by the cluster's size.
    fn check_memory(&self) {
        let (seed, asked) = (self.seed, self.sim.beset());
        assert!(asked <= 2 * STREAMS as u64, "seed {seed}: {asked} requests of one node at once");
        for node in self.sim.nodes() {
            let load = node.load();
            let (busy, known) = (load.asking + load.answering + load.flights, node.view.known());
            assert_eq!(busy, 0, "seed {seed}: {} rests: {load:?}", node.id);
            assert!(load.remembered <= 2 * self.nodes as usize, "seed {seed}: {} {load:?}", node.id);
            assert!(known <= 2 * self.nodes as usize, "seed {seed}: {} knows {known}", node.id);
        }
    }
}

/// The mean of `times`.
fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

/// The most memory that this process has had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[tokio::test(start_paused = true)]
async fn simulated_nodes_come_and_go_and_the_mirror_is_read_once() {
    let outcome = Life::begin(1, 60).await.live(2, 4, |_| false).await;
    let times = mean(&outcome.whole);
    assert!((1.0..ONCE).contains(&times), "{times} times");
}

/// What is cut off can't know of what others read, so each side reads the mirror by itself. Of 60 nodes three are cut off in the
/// burst: were each of them on its own, the mirror would be read four times and more.
#[tokio::test(start_paused = true)]
async fn simulated_nodes_that_are_cut_off_together_find_each_other() {
    let outcome = Life::begin(1, 60).await.live(1, 1, |_| true).await;
    let times = mean(&outcome.torn);
    assert!((1.0..3.0).contains(&times), "{times} times");
}

/// The same for an hour of 200 nodes; some minutes of work a seed. BDNFS_SEEDS says how many seeds, 2 by default.
#[tokio::test(start_paused = true)]
#[ignore = "takes minutes; run it by hand after a change to who asks whom"]
async fn simulated_nodes_for_an_hour() {
    let seeds = std::env::var("BDNFS_SEEDS").map_or(2, |seeds| seeds.parse().expect("a number"));
    for seed in 1..=seeds {
        // In every third burst nodes are cut off; in all other minutes some are, too.
        let outcome = Life::begin(seed, 200).await.live(6, 60, |job| job % 3 == 2).await;
        let (whole, torn) = (mean(&outcome.whole), mean(&outcome.torn));
        println!("seed {seed}: {whole:.3} times, {torn:.3} in two parts; {} MiB at most", peak() >> 20);
        assert!((1.0..ONCE).contains(&whole), "seed {seed}: {whole} times");
        let alone = (1 + 200 / CUT.0) as f64;
        assert!(
            (1.0..alone).contains(&torn),
            "seed {seed}: {torn} times, as if each that is cut off were alone"
        );
        // All nodes and what models the rest, a MiB each.
        assert!(peak() < 200 << 20, "seed {seed}: {} MiB", peak() >> 20);
    }
}
