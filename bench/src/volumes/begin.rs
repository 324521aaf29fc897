//! Training caches of many files: saved when nothing was changed, and begun on a node that has nothing of them.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::data::{self, FILES_IN_DIRECTORY};
use crate::interrupt;
use crate::lab::{BenchEnv, settle};
use crate::report::{Figure, Rows};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

use super::node::{TRAINING_CACHE, VolumesNode};

/// The size of a file, in bytes.
const FILE_BYTES: usize = 4 << 10;
/// The disk space of a file, in bytes: a block and an inode, with some to spare.
const DISK_BYTES_PER_FILE: usize = 8 << 10;
/// Seconds until a job runs whose cache has [`LIMIT_FILES`] files, at the most; and of them those that a job takes without a cache.
const LIMIT_SECONDS: f64 = 2.0;
const LIMIT_SECONDS_WITHOUT: f64 = 0.5;
/// Seconds until it is known that nothing is to be saved of a cache that has [`LIMIT_FILES`] files, at the most.
const UNCHANGED_LIMIT_SECONDS: f64 = 3.0;
/// The number of files that the limits are for: that of the full size.
const LIMIT_FILES: f64 = 100_000.0;

/// Measures a save of an unchanged training cache, and the begin of a job on a node that has nothing of it.
///
/// # Errors
/// The disk is too full, or a job does not run.
pub fn measure(lab: &BenchEnv) -> Result<Rows> {
    let files = lab.sizes.listed;
    let bytes = (files * DISK_BYTES_PER_FILE) as u64;
    let node = VolumesNode::start(lab, 2 * bytes)?;
    let writer = node.job("writer", TRAINING_CACHE)?;
    data::tree(&node.project_cache(), files, FILES_IN_DIRECTORY, FILE_BYTES)?;
    writer.finish()?;
    node.await_ended(&writer)?;
    let unchanged = (0..lab.sizes.runs).map(|_| {
        interrupt::check()?;
        settle();
        node.save_unchanged_cache()
    });
    let unchanged = unchanged.collect::<Result<_>>()?;
    let mut seconds = Samples::default();
    for _ in 0..lab.sizes.runs {
        interrupt::check()?;
        let other = node.start_other(bytes)?;
        settle();
        let begin = Instant::now();
        let reader = other.job("reader", TRAINING_CACHE)?;
        seconds.push(begin.elapsed().as_secs_f64());
        let last = other.project_cache().join(data::name(files - 1, FILES_IN_DIRECTORY));
        ensure!(last.exists(), "a job has begun without its training cache");
        // Another node would wait for what it may have written.
        reader.finish()?;
        other.await_ended(&reader)?;
    }
    let share = files as f64 / LIMIT_FILES;
    let begin_limit = LIMIT_SECONDS_WITHOUT + (LIMIT_SECONDS - LIMIT_SECONDS_WITHOUT) * share;
    let figure = |what: &str, seconds, limit| {
        let name = format!("{what} {files} files of 4 KiB in the cache");
        Figure { limit: Some(limit), ..Figure::new(&name, MeasureUnit::Seconds, seconds) }
    };
    let figures = vec![
        figure("save unchanged, with", unchanged, UNCHANGED_LIMIT_SECONDS * share),
        figure("begin elsewhere with", seconds, begin_limit),
    ];
    Ok(Rows { figures, ..Rows::default() })
}
