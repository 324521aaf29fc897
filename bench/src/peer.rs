//! From a peer: reads of a node from another one that has the data, over mutual TLS.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bdnfs_tests::cluster::{ClusterHost, TestCluster};
use bdnfs_tests::machine::Machine;

use crate::data;
use crate::fio::{self, FioJob};
use crate::lab::{BenchEnv, settle};
use crate::report::{BenchReport, Comparison, Figure, Rows};
use crate::samples::{Samples, Side, in_turn};
use crate::unit::MeasureUnit;

const ABOUT: &str = "Two agents, each in a network namespace of its own; one has a file, and the other, whose cache is empty, \
    reads it from there over mutual TLS. Beside it: the same file on the disk's own file system, and the same node without peers, \
    which reads the mirror without TLS. All of them share the processors of one machine.";
/// Faster than the processors, so that the links are not the limit.
const LINK_RATE: &str = "40gbit";
const FILE: &str = "weights";
const HOLDER_ID: &str = "has-it";

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("peer", "From a peer", format!("{ABOUT} {} MiB.", size(lab) >> 20));
    report.measure("two nodes", || {
        let place = AgentPair::new(lab)?;
        let mut rows = place.staged(lab)?;
        for (what, job) in &fio::COLD {
            rows.pairs.push(place.compare(lab, &format!("{what}, cold from a peer"), job)?);
        }
        Ok(rows)
    })
}

fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

/// What the kit says when it panics where a test would fail, as an error.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Ok(done),
        Err(_) => bail!("the nodes could not be tried; what went wrong stands above"),
    }
}

/// A mirror, and a node that has all of it.
struct AgentPair {
    _neighbour: ClusterHost,
    cluster: TestCluster,
    /// The same file on the disk that is measured.
    native: PathBuf,
    /// How many nodes there were that had nothing.
    nodes: Cell<u32>,
    room: tempfile::TempDir,
}

impl AgentPair {
    fn new(lab: &BenchEnv) -> Result<Self> {
        let size = size(lab);
        let room = lab.room("peer", 4 * size)?;
        let native = room.path().join(FILE);
        data::file(&native, size)?;
        let Some(cluster) = TestCluster::new(LINK_RATE) else { bail!("there can be no networks here") };
        catch_panic(move || {
            cluster.publish(&[(FILE, size as usize)]);
            let machine = Machine::new().with_cache(&room.path().join(HOLDER_ID));
            let neighbour = cluster.node_on(machine, HOLDER_ID, LINK_RATE, "");
            neighbour.stage().1.succeeds();
            Self { _neighbour: neighbour, cluster, native, nodes: Cell::new(0), room }
        })
    }

    /// Does `work` on a node that has nothing yet, with peers or without.
    fn on_new<T>(&self, peers: bool, work: impl FnOnce(&ClusterHost) -> Result<T>) -> Result<T> {
        let home = tempfile::tempdir_in(self.room.path()).context("cannot make a directory")?;
        // A name of its own, since who was there before it is remembered for a while.
        let number = self.nodes.replace(self.nodes.get() + 1);
        catch_panic(|| {
            let machine = Machine::new().with_cache(&home.path().join("cache"));
            let node = if peers {
                let node = self.cluster.node_on(machine, &format!("new-{number}"), LINK_RATE, "");
                node.wait_for_members(2);
                node
            } else {
                self.cluster.standalone_node(machine, LINK_RATE)
            };
            settle();
            work(&node)
        })?
    }

    /// All of it made local: by peers, and from the mirror.
    fn staged(&self, lab: &BenchEnv) -> Result<Rows> {
        let (size, mut mirror) = (size(lab) as f64, Samples::default());
        let sides = in_turn(lab.sizes.runs, |side| {
            let before = self.cluster.mirror_reads();
            let seconds = self.on_new(side == Side::Bdnfs, |node| {
                let begin = Instant::now();
                node.stage().1.succeeds();
                Ok(begin.elapsed().as_secs_f64())
            })?;
            if side == Side::Bdnfs {
                mirror.push(self.cluster.mirror_reads() - before);
            }
            Ok(size / 1e6 / seconds)
        })?;
        let name = "mount --wait, from a peer";
        Ok(Rows {
            pairs: vec![Comparison::new(name, MeasureUnit::Megabytes, "from the mirror, without TLS", sides)],
            figures: vec![Figure::new(&format!("{name}: read of the mirror"), MeasureUnit::Fetched, mirror)],
            ..Rows::default()
        })
    }

    /// fio on a node that has nothing yet, and on the disk's own file system.
    fn compare(&self, lab: &BenchEnv, name: &str, job: &FioJob) -> Result<Comparison> {
        let read = |path: &Path| {
            lab.drop_pages(&self.native)?;
            fio::read(job, path, size(lab))
        };
        let sides = in_turn(lab.sizes.runs, |side| match side {
            Side::Baseline => read(&self.native),
            Side::Bdnfs => self.on_new(true, |node| read(&node.mount().join(FILE))),
        })?;
        Ok(Comparison::new(name, MeasureUnit::Megabytes, &lab.native, sides))
    }
}
