//! Instructions: what the hot functions make the processor do, counted by callgrind. The same build has nearly the same
//! figures on every machine, whatever else runs there; a regression shows that no clock could measure.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::lab::BenchEnv;
use crate::report::{BenchReport, Figure, Rows};
use crate::run;
use crate::samples::Samples;
use crate::unit::MeasureUnit;

const ABOUT: &str = "Instructions of the functions that every read passes, by valgrind's callgrind, which needs no quiet machine: \
    lookup, 100 names in a directory of 10,000; presence, the 4,096 blocks of a blob looked for, noted and doubted; rank, the \
    owners of a group of blocks among 200 nodes; verify, one block of 1 MiB.";
/// How long one count may take: valgrind is some fifty times as slow as the machine.
const CALLGRIND_TIMEOUT: Duration = Duration::from_secs(120);
/// How often each function runs: its preparation is counted alone, and subtracted.
const TIMES: u32 = 50;
/// Two runs, whose results differ by the placement of memory alone.
const RUNS: usize = 2;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("hot", "Hot functions", ABOUT);
    hot::all().keys().try_for_each(|name| report.measure(name, || count(lab, name)))
}

fn count(lab: &BenchEnv, name: &str) -> Result<Rows> {
    let room = lab.room("callgrind", 0)?;
    let mut samples = Samples::default();
    for _ in 0..RUNS {
        let [all, none] = [TIMES, 0].map(|times| callgrind(&room.path().join("out"), name, times));
        samples.push((all? - none?) / f64::from(TIMES));
    }
    Ok(Rows { figures: vec![Figure::new(name, MeasureUnit::Instructions, samples)], ..Rows::default() })
}

/// How many instructions a process takes that does `name` so often.
fn callgrind(out: &Path, name: &str, times: u32) -> Result<f64> {
    run::find("valgrind")?;
    let this = std::env::current_exe().context("cannot find this program")?;
    let mut command = run::command("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", out.display())).arg(this);
    run::run(command.args(["hot", name, &times.to_string()]), CALLGRIND_TIMEOUT)?;
    let text = fs::read_to_string(out).context("callgrind wrote nothing")?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    total.and_then(|total| total.trim().parse().ok()).context("callgrind told no total")
}
