//! What saving costs the job, and how soon it is done.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::data::{self, Noise};
use crate::interrupt;
use crate::lab::BenchEnv;
use crate::report::{Comparison, Figure, Rows};
use crate::run::{self, RunningProgram};
use crate::samples::{Samples, Side, in_turn};
use crate::unit::MeasureUnit;

use super::node::{CHECKPOINTS, COMMAND_TIMEOUT, VolumesNode, WritingJob};
use super::size;

/// The share of its speed that a job's step must keep while its checkpoint is saved.
const WANTED_STEP_RATIO: f64 = 0.98;
/// The share of the speed of `mirror add` that a saver must reach.
const WANTED_SAVER_RATIO: f64 = 0.9;
/// Seconds from the last close until a checkpoint is saved, at the most: with a hint that it is complete, and without.
const MAX_DELAY_SECONDS: [f64; 2] = [5.0, 15.0];
/// The share of bytes that the mirror may grow by for content that it has: the manifest, the ref and the entry of the index.
const MAX_SAME_CONTENT_SHARE: f64 = 0.001;
/// The size of a file, in bytes: less than what a saver uploads ahead, so that the time of a save is that of its upload.
const FILE_BYTES: u64 = 8 << 20;
/// The size of a checkpoint whose upload takes no time, in bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// How long a step is repeated when nothing is saved.
const STEPS_TIME: Duration = Duration::from_secs(2);
/// The share of a checkpoint's bytes that a step hashes.
const STEP_SHARE: u64 = 8;

/// Writes a checkpoint of files of [`FILE_BYTES`], with a hint that it is complete if it `is_hinted`. No other `seed` gives the
/// same content.
///
/// # Errors
/// The disk is full, and interruption.
pub fn write_checkpoint(unit: &Path, size: u64, seed: u64, is_hinted: bool) -> Result<()> {
    fs::create_dir(unit).context("cannot make a checkpoint")?;
    let mut noise = Noise::new(seed);
    let mut content = Vec::new();
    for file in 0..size.div_ceil(FILE_BYTES) {
        interrupt::check()?;
        content.resize(FILE_BYTES.min(size - file * FILE_BYTES) as usize, 0);
        noise.fill(&mut content);
        fs::write(unit.join(format!("shard-{file:04}")), &content).context("cannot write a checkpoint")?;
    }
    if is_hinted {
        fs::write(unit.join(".metadata"), "").context("cannot write a hint")?;
    }
    Ok(())
}

/// The median seconds of a step of `job`, which hashes the file at `path`.
fn steps(job: &WritingJob, path: &str) -> Result<f64> {
    let (mut seconds, begin) = (Samples::default(), Instant::now());
    while begin.elapsed() < STEPS_TIME {
        seconds.push(job.run(&["sha256sum", path])?.seconds);
    }
    Ok(seconds.median())
}

/// A step of the job while a checkpoint is saved, beside one while nothing is.
///
/// # Errors
/// The job does not run, or a checkpoint is saved before a step has ended.
pub fn step(lab: &BenchEnv) -> Result<Comparison> {
    let size = 2 * size(lab);
    let turns = lab.sizes.runs as u64;
    let node = VolumesNode::start(lab, (2 * turns + 1) * size)?;
    let job = node.job("steps", CHECKPOINTS)?;
    let input = node.room().join("input");
    data::file(&input, size / STEP_SHARE)?;
    let path = input.to_str().context("the path of a directory is no text")?;
    let step = || job.run(&["sha256sum", path]).map(|ran| ran.seconds);
    step()?;
    let mut turn = 0;
    let sides = in_turn(lab.sizes.runs, |side| {
        let mut seconds = Samples::default();
        if side == Side::Baseline {
            return steps(&job, path);
        }
        turn += 1;
        let name = format!("step-{turn}");
        let mut before = node.mirror_bytes();
        write_checkpoint(&job.checkpoints.join(&name), size, turn, true)?;
        while node.saved(&job, &name)?.is_none() {
            let took = step()?;
            // What ran before its upload began does not count.
            let now = node.mirror_bytes();
            if now > before {
                seconds.push(took);
            }
            before = now;
        }
        ensure!(seconds.median().is_finite(), "a checkpoint was saved before a step had ended");
        Ok(seconds.median())
    })?;
    let name = "a step while a checkpoint is saved";
    Ok(Comparison::new(name, MeasureUnit::Seconds, "nothing is saved", sides).with_wanted(WANTED_STEP_RATIO))
}

/// How much longer a step takes while each processor has a program of the lowest priority that never waits: what the machine itself
/// takes for a process that takes nothing from the job. Processors that share a core, a cache or a clock are slower together.
///
/// # Errors
/// The job does not run.
pub fn step_beside_spinners(lab: &BenchEnv) -> Result<Rows> {
    let size = 2 * size(lab);
    let node = VolumesNode::start(lab, size)?;
    let job = node.job("spin", CHECKPOINTS)?;
    let input = node.room().join("input");
    data::file(&input, size / STEP_SHARE)?;
    let path = input.to_str().context("the path of a directory is no text")?;
    steps(&job, path)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut times = Samples::default();
    for _ in 0..lab.sizes.runs {
        let alone = steps(&job, path)?;
        let spinners = (0..processors).map(|_| {
            let mut spinner = run::command("nice");
            spinner.args(["-n", "19", "sha256sum", "/dev/zero"]);
            RunningProgram::start(&mut spinner, tempfile::tempfile().context("cannot make a temporary file")?)
        });
        let _spinners = spinners.collect::<Result<Vec<_>>>()?;
        times.push(steps(&job, path)? / alone);
    }
    let name = "a step beside programs of the lowest priority on all processors, without bdnfs";
    Ok(Rows { figures: vec![Figure::new(name, MeasureUnit::Times, times)], ..Rows::default() })
}

/// The upload of a checkpoint by a saver, beside `mirror add` of the same to an empty mirror.
///
/// # Errors
/// The job does not run, or one of them fails.
pub fn rate(lab: &BenchEnv) -> Result<Comparison> {
    let size = size(lab);
    let turns = lab.sizes.runs as u64;
    let node = VolumesNode::start(lab, (4 * turns + 1) * size)?;
    let job = node.job("rate", CHECKPOINTS)?;
    let mut turn = 0;
    let sides = in_turn(lab.sizes.runs, |side| {
        turn += 1;
        let seconds = if side == Side::Baseline {
            let (source, mirror) =
                (node.room().join(format!("source-{turn}")), node.room().join(format!("mirror-{turn}")));
            write_checkpoint(&source, size, turn, false)?;
            let mut add = run::command(&lab.bdnfs);
            add.args(["mirror", "add"]).arg(&source).arg("--mirror").arg(&mirror);
            let took = run::run(&mut add, COMMAND_TIMEOUT)?.seconds;
            for directory in [source, mirror] {
                fs::remove_dir_all(directory).context("cannot remove a copy")?;
            }
            took
        } else {
            let name = format!("step-{turn}");
            write_checkpoint(&job.checkpoints.join(&name), size, turn, true)?;
            let unit = node.await_saved(&job, &name)?;
            unit["seconds"].as_f64().context("it is not reported how long a checkpoint took")?
        };
        Ok(size as f64 / 1e6 / seconds)
    })?;
    let name = "a checkpoint of 8 MiB files, saved";
    Ok(Comparison::new(name, MeasureUnit::Megabytes, "mirror add", sides).with_wanted(WANTED_SAVER_RATIO))
}

/// Seconds from the last close of a small checkpoint until it is saved.
///
/// # Errors
/// The job does not run, or a checkpoint is not saved.
pub fn delay(lab: &BenchEnv) -> Result<Rows> {
    let node = VolumesNode::start(lab, 0)?;
    let job = node.job("delay", CHECKPOINTS)?;
    let mut turn = 0;
    let mut figures = Vec::new();
    for (is_hinted, limit) in [true, false].into_iter().zip(MAX_DELAY_SECONDS) {
        let mut seconds = Samples::default();
        for _ in 0..lab.sizes.runs {
            turn += 1;
            let name = format!("step-{turn}");
            write_checkpoint(&job.checkpoints.join(&name), SMALL_BYTES, turn, is_hinted)?;
            let begin = Instant::now();
            node.await_saved(&job, &name)?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
        let name =
            format!("from the last close to saved, {} a hint", if is_hinted { "with" } else { "without" });
        figures.push(Figure { limit: Some(limit), ..Figure::new(&name, MeasureUnit::Seconds, seconds) });
    }
    Ok(Rows { figures, ..Rows::default() })
}

/// The growth of the mirror by a checkpoint of the content of the one before.
///
/// # Errors
/// The job does not run, or a checkpoint is not saved.
pub fn same_content(lab: &BenchEnv) -> Result<Rows> {
    let size = size(lab);
    let node = VolumesNode::start(lab, (lab.sizes.runs as u64 + 2) * size)?;
    let job = node.job("same", CHECKPOINTS)?;
    let save = |turn: usize| {
        let name = format!("step-{turn}");
        write_checkpoint(&job.checkpoints.join(&name), size, 1, true)?;
        node.await_saved(&job, &name)?;
        anyhow::Ok(node.mirror_bytes())
    };
    let mut before = save(0)?;
    let mut shares = Samples::default();
    for turn in 1..=lab.sizes.runs {
        let now = save(turn)?;
        shares.push(now.saturating_sub(before) as f64 / size as f64);
        before = now;
    }
    let figure =
        Figure::new("uploaded of a checkpoint with the same content", MeasureUnit::StoredPerByte, shares);
    Ok(Rows { figures: vec![Figure { limit: Some(MAX_SAME_CONTENT_SHARE), ..figure }], ..Rows::default() })
}
