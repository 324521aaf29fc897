//! A cluster: several nodes that stage the same source at once, each on a link of its own, with peers and without.

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use bdnfs_tests::cluster::TestCluster;
use bdnfs_tests::machine::Machine;

use crate::interrupt;
use crate::lab::BenchEnv;
use crate::peer::catch_panic;
use crate::report::{BenchReport, Figure, Growth, Rows};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

const ABOUT: &str = "So many agents make the same large file local at the same time, each in a network namespace with a link of \
    1 Gbit/s, from a mirror behind a link of 1 Gbit/s; with peers they share it over mutual TLS. Seconds: until the last has all \
    of it. Bytes fetched: what the mirror's link has carried, with all that the protocols add, beside the file's size. All of it \
    runs on the processors of one machine, and many nodes come to wait for those.";
const LINK_RATE: &str = "1gbit";
const NODES: [usize; 4] = [1, 2, 4, 8];
/// Turns with peers: few, since one takes half a minute to set up, and the link's rate makes the result steady.
const ROUNDS_WITH_PEERS: usize = 3;
/// Turns without peers, which take longer and depend on the link alone.
const ROUNDS_WITHOUT_PEERS: usize = 2;
/// The time of a burst, as a multiple of that of one node, at the most.
const MAX_BURST_RATIO: f64 = 1.3;
/// Bytes that a burst reads from the mirror for each byte of the source, at the most.
const MAX_MIRROR_READS_PER_BYTE: f64 = 1.05;

/// Measures the group.
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

/// The number of nodes, the seconds of each burst, and the bytes that it read from the mirror for each byte of the source.
type Point = (usize, Samples, Samples);

/// The limits of a burst with peers: its time beside one node's, and the bytes that it reads.
fn limits(points: &[Point]) -> Vec<Figure> {
    let Some((_, one, _)) = points.first() else { return Vec::new() };
    let bursts = points.iter().filter(|point| point.0 > 2);
    let figures = bursts.flat_map(|(count, seconds, fetched)| {
        let figure = |what: &str, unit, value, limit| Figure {
            limit: Some(limit),
            ..Figure::new(&format!("{count} nodes with peers, {what}"), unit, value)
        };
        [
            figure("beside one node", MeasureUnit::Times, seconds.ratios_to(one), MAX_BURST_RATIO),
            figure("read of the mirror", MeasureUnit::Fetched, fetched.clone(), MAX_MIRROR_READS_PER_BYTE),
        ]
    });
    figures.collect()
}

/// The seconds of a burst, and the bytes that it reads from the mirror for each byte of the source.
fn burst(lab: &BenchEnv, count: usize, peers: bool) -> Result<(f64, f64)> {
    let size = size(lab);
    let room = lab.room("cluster-", (count as u64 + 2) * size)?;
    let Some(cluster) = TestCluster::new(LINK_RATE) else { bail!("there can be no networks here") };
    catch_panic(|| {
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
            nodes.iter().for_each(|node| node.wait_for_members(count));
        }
        let (before, begin) = (cluster.mirror_bytes_sent(), Instant::now());
        thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| node.stage().1.succeeds());
            }
        });
        let seconds = begin.elapsed().as_secs_f64();
        (seconds, (cluster.mirror_bytes_sent() - before) as f64 / size as f64)
    })
}
