//! Writing and reading in the directories of a job, beside the bare disk.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::lab::BenchEnv;
use crate::report::{Comparison, Rows};
use crate::samples::{Samples, Side, in_turn};
use crate::unit::MeasureUnit;

use super::node::{CHECKPOINTS, TRAINING_CACHE, VolumesNode, WritingJob};
use super::size;

/// The share of the bare disk's speed that a job's directories must reach.
const WANTED_DISK_RATIO: f64 = 0.97;
/// The names of the directories, in the order of [`WritingJob::seen`].
const NAMES: [&str; 3] = ["scratch", "checkpoints", "project cache"];
/// A directory that is no checkpoint, so that no saver reads what is written there.
const TEMPORARY: &str = "tmp-bench";

/// Measures all of them.
///
/// # Errors
/// The job does not run, or `dd` fails.
pub fn measure(lab: &BenchEnv) -> Result<Rows> {
    let node = VolumesNode::start(lab, 2 * size(lab))?;
    let job = node.job("directories", &format!("{CHECKPOINTS}{TRAINING_CACHE}"))?;
    let bare = node.room().join("bare");
    fs::create_dir(&bare).context("cannot make a directory")?;
    let mut pairs = Vec::new();
    for (name, directory) in NAMES.iter().zip(&job.seen) {
        let own = directory.join(TEMPORARY);
        job.run(&["mkdir", text(&own)?])?;
        // What is written last is what is read.
        for (what, is_write) in [("write to", true), ("read from", false)] {
            let sides = in_turn(lab.sizes.runs, |side| {
                let directory = if side == Side::Baseline { &bare } else { &own };
                copy(lab, &job, &directory.join("file"), is_write)
            })?;
            let rates = sides.map(|seconds: Samples| seconds.rates(size(lab) as f64 / 1e6));
            let row = format!("{what} {name}, 1 job");
            let pair = Comparison::new(&row, MeasureUnit::Megabytes, &lab.native, rates);
            pairs.push(pair.with_wanted(WANTED_DISK_RATIO));
        }
        job.run(&["rm", "-r", text(&own)?])?;
    }
    Ok(Rows { pairs, ..Rows::default() })
}

/// Seconds for writing `file` until it is durable, or for reading it from the disk.
fn copy(lab: &BenchEnv, job: &WritingJob, file: &Path, is_write: bool) -> Result<f64> {
    let path = text(file)?;
    if is_write {
        job.run(&["rm", "-f", path])?;
    }
    lab.drop_caches()?;
    let count = format!("count={}", size(lab) >> 20);
    let (out, from) = (format!("of={path}"), format!("if={path}"));
    let words: &[&str] = if is_write {
        &["dd", "if=/dev/zero", &out, "bs=1M", &count, "conv=fsync", "status=none"]
    } else {
        &["dd", &from, "of=/dev/null", "bs=1M", "status=none"]
    };
    Ok(job.run(words)?.seconds)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("the path of a directory is no text")
}
