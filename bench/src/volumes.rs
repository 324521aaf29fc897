//! Volumes: what a job writes, beside the bare disk, and how soon and at which cost it is saved.

mod begin;
mod directories;
mod node;
mod saving;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::agent::BenchAgent;
use crate::lab::BenchEnv;
use crate::report::{BenchReport, Figure, Rows};
use crate::run;
use crate::unit::MeasureUnit;
use crate::{data, interrupt};

use node::{CHECKPOINTS, COMMAND_TIMEOUT, VolumesNode};

const ABOUT: &str = "Jobs of one agent whose cache, volumes and mirror are directories of the same disk. What is written and read \
    in a job's directories is so in its namespace, beside a directory of the disk itself there, by `dd`. A step is `sha256sum` of a \
    file in memory. From the last close to saved: 1 MiB, so that its upload takes no time. Save unchanged: `bdnfs project save` of a training cache \
    of which nothing was changed. Begin elsewhere: from the submission of a job to another agent, which has nothing of the cache, until \
    its command runs.";
/// Seconds until a checkpoint is mounted on another node, at the most.
const MAX_RESUME_SECONDS: f64 = 1.0;
/// Seconds from the end of a job's commands until it has ended, at the most.
const MAX_END_SECONDS: f64 = 1.0;
/// The disk space of an empty file, in bytes, with some to spare.
const DISK_BYTES_PER_EMPTY_FILE: usize = 1 << 10;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group(
        "volumes",
        "What jobs write",
        format!("{ABOUT} A file or checkpoint: {} MiB.", size(lab) >> 20),
    );
    report.measure("directories", || directories::measure(lab))?;
    report.measure("a step while saving", || saving::step(lab))?;
    report.measure("a step beside spinners", || saving::step_beside_spinners(lab))?;
    report.measure("a saver", || saving::rate(lab))?;
    report.measure("until it is saved", || saving::delay(lab))?;
    report.measure("the same content", || saving::same_content(lab))?;
    report.measure("resume elsewhere", || resume(lab))?;
    report.measure("begin elsewhere", || begin::measure(lab))?;
    report.measure("end of a job", || end(lab))
}

/// The bytes of a file, or of a checkpoint.
fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

/// Seconds until another node has mounted a checkpoint.
fn resume(lab: &BenchEnv) -> Result<Rows> {
    let node = VolumesNode::start(lab, 2 * size(lab))?;
    let job = node.job("resume", CHECKPOINTS)?;
    saving::write_checkpoint(&job.checkpoints.join("step"), size(lab), 1, true)?;
    node.await_saved(&job, "step")?;
    let seconds = (0..lab.sizes.runs).map(|_| {
        interrupt::check()?;
        let room = lab.room("elsewhere", size(lab))?;
        let _agent = BenchAgent::start(lab, room.path(), "")?;
        mount(lab, &node, room.path())
    });
    let seconds = seconds.collect::<Result<_>>()?;
    let figure = Figure::new("mounted on another node", MeasureUnit::Seconds, seconds);
    Ok(Rows { figures: vec![Figure { limit: Some(MAX_RESUME_SECONDS), ..figure }], ..Rows::default() })
}

fn mount(lab: &BenchEnv, node: &VolumesNode, room: &Path) -> Result<f64> {
    let point = room.join("mount");
    std::fs::create_dir(&point).context("cannot make a directory")?;
    let mut mount = run::command(&lab.bdnfs);
    mount.args(["mount", "bt://bench/step", "--mirror", &node.mirror_url(), "--cache-dir"]);
    let took = run::run(mount.arg(room.join("cache")).arg(&point), COMMAND_TIMEOUT)?.seconds;
    run::run(run::command(&lab.bdnfs).arg("umount").arg(&point), COMMAND_TIMEOUT)?;
    Ok(took)
}

/// Seconds from the end of the commands of a job with very many scratch files until it has ended.
fn end(lab: &BenchEnv) -> Result<Rows> {
    let files = lab.sizes.many;
    let node = VolumesNode::start(lab, (files * DISK_BYTES_PER_EMPTY_FILE) as u64)?;
    let job = node.job("many", "")?;
    data::tree(&job.scratch, files, data::FILES_IN_DIRECTORY, 0)?;
    lab.drop_caches()?;
    let begin = Instant::now();
    job.finish()?;
    node.await_ended(&job)?;
    let seconds = [begin.elapsed().as_secs_f64()].into_iter().collect();
    let name = format!("end of a job with {files} scratch files");
    let figure = Figure { limit: Some(MAX_END_SECONDS), ..Figure::new(&name, MeasureUnit::Seconds, seconds) };
    // What it removes afterwards is not to disturb the next group.
    node.await_empty_trash(Duration::from_secs(600))?;
    Ok(Rows { figures: vec![figure], ..Rows::default() })
}
