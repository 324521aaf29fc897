//! Memory: what a tree of very many files costs, when none of them is read.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::data::FILES_IN_DIRECTORY;
use crate::interrupt;
use crate::lab::BenchEnv;
use crate::listing::IndexServer;
use crate::mount::BenchMount;
use crate::probe::{ProbeKind, TreeProbe};
use crate::report::{BenchReport, Figure, Rows};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

const ABOUT: &str = "A tree that an index lists, mounted, and none of it read.";
/// Seconds from the end of the listing until the tree is mounted, at the most.
const MAX_MOUNT_SECONDS: f64 = 5.0;
/// MiB of memory of the agent, at the most.
const MAX_MEMORY_MIB: f64 = 200.0;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("memory", "Memory", format!("{ABOUT} {} files.", lab.sizes.many));
    report.measure("a tree that is only listed", || rows(lab))
}

#[derive(Default)]
struct MemoryStats {
    in_all: Samples,
    after_listing: Samples,
    resident: Samples,
    peak: Samples,
    walked: Samples,
}

fn rows(lab: &BenchEnv) -> Result<Rows> {
    let server = IndexServer::start(lab.sizes.many)?;
    let mut stats = MemoryStats::default();
    for _ in 0..lab.sizes.runs {
        interrupt::check()?;
        stats.take(lab, &server)?;
    }
    Ok(stats.rows())
}

impl MemoryStats {
    fn take(&mut self, lab: &BenchEnv, server: &IndexServer) -> Result<()> {
        let room = lab.room("memory", 1 << 30)?;
        let mount = BenchMount::plain(lab, &server.url(), room.path(), false)?;
        let mounted = Instant::now();
        let sent = server.sent().context("the index was not asked for")?;
        let agent = mount.agent()?;
        self.in_all.push(mount.took);
        self.after_listing.push((mounted - sent).as_secs_f64());
        self.resident.push(agent.memory("VmRSS")?);
        self.peak.push(agent.memory("VmHWM")?);
        let directory = mount.point().to_owned();
        let (files, per_directory) = (lab.sizes.many, FILES_IN_DIRECTORY);
        TreeProbe { what: ProbeKind::Walk, directory, files, per_directory, threads: 1, hot: None }.run()?;
        self.walked.push(agent.memory("VmRSS")?);
        Ok(())
    }

    fn rows(self) -> Rows {
        let figure = |name: &str, unit, value, limit| Figure { name: name.to_owned(), unit, value, limit };
        let figures = vec![
            figure(
                "mounted, since the end of the listing",
                MeasureUnit::Seconds,
                self.after_listing,
                Some(MAX_MOUNT_SECONDS),
            ),
            figure("mounted, in all", MeasureUnit::Seconds, self.in_all, None),
            figure("memory of the daemon", MeasureUnit::Mebibytes, self.resident, Some(MAX_MEMORY_MIB)),
            figure(
                "the same, after a walk over all files",
                MeasureUnit::Mebibytes,
                self.walked,
                Some(MAX_MEMORY_MIB),
            ),
            figure("its peak, while listing", MeasureUnit::Mebibytes, self.peak, None),
        ];
        Rows { figures, ..Rows::default() }
    }
}
