//! fio: its job files, and what it reports.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::run;

/// How long one job may take.
pub const FIO_TIMEOUT: Duration = Duration::from_secs(300);

/// A job file of bench/fio, and the figures that it takes from its environment.
#[derive(Clone, Copy, Debug)]
pub struct FioJob {
    /// Its text.
    pub text: &'static str,
    /// How many processes read, each its own part of the file.
    pub jobs: u64,
    /// For how many seconds a hot file is read.
    pub seconds: u64,
    /// How many bytes are read at random.
    pub random: u64,
}

/// The jobs that every run does.
pub mod jobs {
    /// One pass in order.
    pub const SEQUENTIAL_DROPPED: &str = include_str!("../fio/sequential-dropped.fio");
    /// Many passes in order.
    pub const SEQUENTIAL_HOT: &str = include_str!("../fio/sequential-hot.fio");
    /// Many passes in order over a mapping.
    pub const MMAP_HOT: &str = include_str!("../fio/mmap-hot.fio");
    /// One pass by many.
    pub const MANY_DROPPED: &str = include_str!("../fio/many-jobs-dropped.fio");
    /// Single pages, from memory.
    pub const RANDOM_HOT: &str = include_str!("../fio/random-hot.fio");
    /// Single pages.
    pub const RANDOM_DROPPED: &str = include_str!("../fio/random-dropped.fio");
}

/// What is read of a file that is not here yet. Of single pages few, since each of them brings a block.
pub const COLD: [(&str, FioJob); 3] = [
    ("sequential 1 MiB, 1 job", FioJob { text: jobs::SEQUENTIAL_DROPPED, jobs: 1, seconds: 0, random: 0 }),
    ("128 KiB, 16 jobs", FioJob { text: jobs::MANY_DROPPED, jobs: 16, seconds: 0, random: 0 }),
    ("random 4 KiB", FioJob { text: jobs::RANDOM_DROPPED, jobs: 1, seconds: 0, random: 1 << 20 }),
];

/// fio's JSON, as far as it is needed.
#[derive(Deserialize)]
struct FioOutput {
    jobs: Vec<FioGroup>,
}

#[derive(Deserialize)]
struct FioGroup {
    error: i32,
    read: FioReads,
}

#[derive(Deserialize)]
struct FioReads {
    bw_bytes: f64,
}

/// The result of a job, and its cost.
#[derive(Clone, Copy, Debug)]
pub struct FioResult {
    /// MB/s.
    pub rate: f64,
    /// Seconds of CPU of all its processes.
    pub cpu: f64,
    /// MiB of memory of the largest of them.
    pub peak: f64,
}

/// Reads the file `path` of `size` bytes, and returns MB/s.
///
/// # Errors
/// fio is not installed, fails, or takes too long.
pub fn read(job: &FioJob, path: &Path, size: u64) -> Result<f64> {
    Ok(measure(job, path, size)?.rate)
}

/// The same, and what it took.
///
/// # Errors
/// fio is not installed, fails, or takes too long.
pub fn measure(job: &FioJob, path: &Path, size: u64) -> Result<FioResult> {
    let mut file = NamedTempFile::with_suffix(".fio").context("cannot make a job file")?;
    file.write_all(job.text.as_bytes()).context("cannot write a job file")?;
    let mut command = run::command("fio");
    command.args(["--output-format=json", "--readonly"]).arg(file.path());
    command.env("FILE", path).env("PART", (size / job.jobs).to_string()).env("JOBS", job.jobs.to_string());
    command.env("SECONDS", job.seconds.to_string()).env("IO", job.random.to_string());
    let ran = run::run(&mut command, FIO_TIMEOUT)?;
    Ok(FioResult { rate: parse(&ran.out)?, cpu: ran.cpu, peak: ran.peak })
}

fn parse(out: &str) -> Result<f64> {
    // Notes for people may come before it.
    let start = out.find('{').context("fio reported nothing")?;
    let output: FioOutput = serde_json::from_str(&out[start..]).context("fio's report has another format")?;
    let group = output.jobs.first().context("fio reported no job")?;
    anyhow::ensure!(group.error == 0, "fio had error {}", group.error);
    Ok(group.read.bw_bytes / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_output_parsed_gives_bandwidth() {
        let out = r#"note: x
            {"fio version": "fio-3.33", "jobs": [{"jobname": "a", "error": 0, "read": {"bw": 1, "bw_bytes": 2500000}}]}"#;
        assert_eq!(parse(out).unwrap(), 2.5);
        assert!(parse(&out.replace("\"error\": 0", "\"error\": 5")).is_err());
        assert!(parse("fio: engine not loadable").is_err());
    }
}
