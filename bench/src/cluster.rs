//! A cluster: so many nodes that stage the same at the same time, each on a link of its own, with peers and without.

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use bdnfs_tests::cluster::TestCluster;
use bdnfs_tests::machine::Machine;

use crate::interrupt;
use crate::lab::BenchEnv;
use crate::peer::tried;
use crate::report::{BenchReport, Figure, Growth, Rows};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

const ABOUT: &str = "So many agents make the same large file local at the same time, each in a network namespace with a link of \
    1 Gbit/s, from a mirror behind a link of 1 Gbit/s; with peers they share it over mutual TLS. Seconds: until the last has all \
    of it. Bytes fetched: what the mirror's link has carried, with all that the protocols add, beside the file's size. All of it \
    runs on the processors of one machine, and many nodes come to wait for those.";
const LINK_RATE: &str = "1gbit";
const NODES: [usize; 4] = [1, 2, 4, 8];
/// How often with peers: a turn takes half a minute to be set up, and what is told hangs on a link's rate.
const ROUNDS_WITH_PEERS: usize = 3;
/// How often without, which takes longer, and hangs on nothing else.
const ROUNDS_WITHOUT_PEERS: usize = 2;
/// How many times as long as one node a burst may take.
const MAX_BURST_RATIO: f64 = 1.3;
/// How much of the mirror a burst may read for each byte that there is.
const MAX_MIRROR_READS_PER_BYTE: f64 = 1.05;

/// Measures it.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("cluster", "Cluster", format!("{ABOUT} The file: {} MiB.", size(lab) >> 20));
    report.measure("nodes", || nodes(lab))
}

fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

fn nodes(lab: &BenchEnv) -> Result<Rows> {
    let mut rows = Rows::default();
    for (peers, name, runs) in [
        (true, "with peers", lab.sizes.runs.min(ROUNDS_WITH_PEERS)),
        (false, "without peers", lab.sizes.runs.min(ROUNDS_WITHOUT_PEERS)),
    ] {
        let mut points = NODES.map(|count| (count, Samples::default(), Samples::default()));
        for _ in 0..runs {
            for (count, seconds, fetched) in &mut points {
                interrupt::check()?;
                let burst = burst(lab, *count, peers)?;
                seconds.push(burst.0);
                fetched.push(burst.1);
            }
        }
        if peers {
            rows.figures = limits(&points);
        }
        let at = |of: fn(&Point) -> &Samples| {
            points.iter().map(|point| (point.0 as f64, of(point).clone())).collect()
        };
        for (unit, points) in
            [(MeasureUnit::Seconds, at(|point| &point.1)), (MeasureUnit::Fetched, at(|point| &point.2))]
        {
            rows.growths.push(Growth { name: name.to_owned(), unit, along: "nodes".to_owned(), points });
        }
    }
    Ok(rows)
}

/// So many nodes, the seconds of each burst, and what it read of the mirror for each byte that there is.
type Point = (usize, Samples, Samples);

/// What a burst with peers is to take at the most: so many times what one node alone takes, and the data about once.
fn limits(points: &[Point]) -> Vec<Figure> {
    let Some((_, one, _)) = points.first() else { return Vec::new() };
    let bursts = points.iter().filter(|point| point.0 > 2);
    let figures = bursts.flat_map(|(count, seconds, fetched)| {
        let figure = |what: &str, unit, value, limit| Figure {
            limit: Some(limit),
            ..Figure::new(&format!("{count} nodes with peers, {what}"), unit, value)
        };
        [
            figure("beside one node", MeasureUnit::Times, seconds.beside(one), MAX_BURST_RATIO),
            figure("read of the mirror", MeasureUnit::Fetched, fetched.clone(), MAX_MIRROR_READS_PER_BYTE),
        ]
    });
    figures.collect()
}

/// The seconds that a burst takes, and what it reads of the mirror for each byte that there is.
fn burst(lab: &BenchEnv, count: usize, peers: bool) -> Result<(f64, f64)> {
    let size = size(lab);
    let room = lab.room("cluster-", (count as u64 + 2) * size)?;
    let Some(cluster) = TestCluster::new(LINK_RATE) else { bail!("there can be no networks here") };
    tried(|| {
        cluster.publish(&[("weights", size as usize)]);
        let nodes: Vec<_> = (1..=count)
            .map(|number| {
                let machine = Machine::new().with_cache(&room.path().join(number.to_string()));
                let id = format!("n{number}");
                if peers {
                    cluster.node_on(machine, &id, LINK_RATE, "")
                } else {
                    cluster.standalone_node(machine, LINK_RATE)
                }
            })
            .collect();
        if peers {
            nodes.iter().for_each(|node| node.knows(count));
        }
        let (before, begin) = (cluster.sent(), Instant::now());
        thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| node.stage().1.succeeds());
            }
        });
        let seconds = begin.elapsed().as_secs_f64();
        (seconds, (cluster.sent() - before) as f64 / size as f64)
    })
}
