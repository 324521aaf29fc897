//! A cluster: so many nodes that stage the same at the same time, each on a link of its own, with peers and without.

use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use bdnfs_tests::bdnfs::Machine;
use bdnfs_tests::lab;

use crate::interrupt;
use crate::lab::Lab;
use crate::peer::tried;
use crate::report::{Growth, Report, Rows};
use crate::samples::Samples;
use crate::unit::Unit;

const ABOUT: &str = "So many agents make the same large file local at the same time, each in a network namespace with a link of \
    1 Gbit/s, from a mirror behind a link of 1 Gbit/s; with peers they share it over mutual TLS. Seconds: until the last has all \
    of it. Bytes fetched: what the mirror's link has carried, with all that the protocols add, beside the file's size. All of it \
    runs on the processors of one machine, and many nodes come to wait for those.";
const RATE: &str = "1gbit";
const NODES: [usize; 4] = [1, 2, 4, 8];
/// Each turn takes minutes, and what is told hangs on a link's rate: two say whether it holds.
const RUNS: usize = 2;

/// Measures it.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &Lab, report: &mut Report) -> Result<()> {
    report.group("cluster", "Cluster", format!("{ABOUT} The file: {} MiB.", size(lab) >> 20));
    report.measure("nodes", || nodes(lab))
}

fn size(lab: &Lab) -> u64 {
    lab.sizes.size / 4
}

fn nodes(lab: &Lab) -> Result<Rows> {
    let mut growths = Vec::new();
    for (peers, name) in [(true, "with peers"), (false, "without peers")] {
        let (mut seconds, mut fetched) = (Vec::new(), Vec::new());
        for count in NODES {
            let mut bursts = Vec::new();
            for _ in 0..lab.sizes.runs.min(RUNS) {
                interrupt::check()?;
                bursts.push(burst(lab, count, peers)?);
            }
            let of = |figure: fn(&(f64, f64)) -> f64| bursts.iter().map(figure).collect::<Samples>();
            seconds.push((count as f64, of(|burst| burst.0)));
            fetched.push((count as f64, of(|burst| burst.1)));
        }
        for (unit, points) in [(Unit::Seconds, seconds), (Unit::Fetched, fetched)] {
            growths.push(Growth { name: name.to_owned(), unit, along: "nodes".to_owned(), points });
        }
    }
    Ok(Rows { growths, ..Rows::default() })
}

/// The seconds that a burst takes, and what it reads of the mirror for each byte that there is.
fn burst(lab: &Lab, count: usize, peers: bool) -> Result<(f64, f64)> {
    let size = size(lab);
    let room = lab.room("cluster-", (count as u64 + 2) * size)?;
    let Some(cluster) = lab::Lab::new(RATE) else { bail!("there can be no networks here") };
    tried(|| {
        cluster.publish(&[("weights", size as usize)]);
        let nodes: Vec<_> = (1..=count)
            .map(|number| {
                let machine = Machine::new().with_cache(&room.path().join(number.to_string()));
                let id = format!("n{number}");
                if peers { cluster.node_on(machine, &id, RATE, "") } else { cluster.loner(machine, RATE) }
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
