//! Rivals: other file systems for object storage that are installed on this machine, each with the same bucket.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;

use crate::bucket::BenchBucket;
use crate::cat::cat;
use crate::fio::{self, FioJob, jobs};
use crate::lab::BenchEnv;
use crate::probe::{ProbeKind, TreeProbe};
use crate::report::{BenchReport, Comparison, Rows};
use crate::samples::Samples;
use crate::staging::{STAGED_FILE_BYTES, TREE_FILES_PER_STAGED_FILE};
use crate::unit::MeasureUnit;
use crate::{data, interrupt, run};

mod mount;

use mount::{RIVALS, Rival, RivalMount};

const ABOUT: &str = "The same bucket on an S3 server on loopback that checks signatures, mounted by bdnfs and by every other \
    file system that is installed here, at the settings that its manual gives for reading fast. Each begins with a mount of its \
    own and an empty cache, and does the tasks in this order. Cold: nothing of it was read before, not even \
    the first byte, which is that of another large file. Once more: the page cache was dropped, so what comes back at once was \
    kept on the disk.";
/// The large files: of the first of them one byte is read, which has some file systems fetch all of it.
const LARGE_FILES: [&str; 3] = ["first.bin", "large.bin", "other.bin"];
/// Bytes that are read at random, page by page. Each page is a request for a file system without a cache.
const RANDOM_READ_BYTES: u64 = 1 << 20;

/// A task, its unit, and what is called done.
struct RivalTask {
    name: &'static str,
    unit: MeasureUnit,
}

const TASKS: [RivalTask; 6] = [
    RivalTask { name: "from nothing to the first byte", unit: MeasureUnit::Seconds },
    RivalTask { name: "large file, cold", unit: MeasureUnit::Megabytes },
    RivalTask { name: "large file, once more", unit: MeasureUnit::Megabytes },
    RivalTask { name: "random 4 KiB of another, cold", unit: MeasureUnit::Megabytes },
    RivalTask { name: "list and stat small files, cold", unit: MeasureUnit::Files },
    RivalTask { name: "read small files by 8 threads, cold", unit: MeasureUnit::Files },
];
/// A result for each task.
type Results = [f64; TASKS.len()];

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    let (size, files) = (lab.sizes.size / 8, lab.sizes.small / TREE_FILES_PER_STAGED_FILE);
    let about = format!("{ABOUT} Large files: {} MiB each; {files} small ones of 64 KiB.", size >> 20);
    report.group("rivals", "Beside other file systems", about);
    report.contest();
    let mut here = Vec::new();
    for rival in &RIVALS {
        match run::find(rival.program) {
            Ok(_) => here.push(rival),
            Err(why) => report.miss(rival.name, format!("{why:#}")),
        }
    }
    let mut failed = Vec::new();
    report.measure("the bucket", || {
        let bucket = BenchBucket::new(
            lab,
            LARGE_FILES.len() as u64 * size + (files * STAGED_FILE_BYTES) as u64,
            |directory| {
                data::tree(&directory.join("small"), files, data::FILES_IN_DIRECTORY, STAGED_FILE_BYTES)?;
                LARGE_FILES.iter().try_for_each(|name| data::file(&directory.join(name), size))
            },
        )?;
        compare(lab, &bucket, &here, &mut failed)
    })?;
    failed.iter().for_each(|(name, why)| report.miss(name, why));
    Ok(())
}

fn compare(
    lab: &BenchEnv,
    bucket: &BenchBucket,
    rivals: &[&Rival],
    failed: &mut Vec<(&'static str, String)>,
) -> Result<Rows> {
    let mut bdnfs: Vec<Results> = Vec::new();
    let mut others: Vec<(&Rival, Vec<Results>)> = rivals.iter().map(|rival| (*rival, Vec::new())).collect();
    for _ in 0..lab.sizes.turns_when_noisy() {
        bdnfs.push(bucket.in_room(lab, |room| {
            let mount = bucket.mount(lab, room, false, &[])?;
            tasks(lab, mount.took, mount.point())
        })?);
        // A rival that fails is out; the others go on.
        others.retain_mut(|(rival, results)| {
            let done = interrupt::check().and_then(|()| {
                bucket.in_room(lab, |room| {
                    let mount = RivalMount::new(rival, bucket, room)?;
                    tasks(lab, mount.took, mount.point())
                })
            });
            match done {
                Ok(done) => results.push(done),
                Err(why) => {
                    failed.push((rival.name, format!("{why:#}")));
                    return false;
                }
            }
            true
        });
        interrupt::check()?;
    }
    let side = |results: &[Results], task: usize| results.iter().map(|one| one[task]).collect::<Samples>();
    let pairs = TASKS.iter().enumerate().flat_map(|(index, task)| {
        let bdnfs = &bdnfs;
        others.iter().map(move |(rival, results)| {
            Comparison::new(task.name, task.unit, rival.name, [side(results, index), side(bdnfs, index)])
        })
    });
    Ok(Rows { pairs: pairs.collect(), ..Rows::default() })
}

/// Does all tasks in a mount that took `took` seconds to be there.
fn tasks(lab: &BenchEnv, took: f64, point: &Path) -> Result<Results> {
    let [first, large, other] = LARGE_FILES.map(|name| point.join(name));
    let begin = Instant::now();
    run::run(run::command("head").args(["-c", "1"]).arg(&first), fio::FIO_TIMEOUT)?;
    let first = took + begin.elapsed().as_secs_f64();
    let (size, files) = (lab.sizes.size / 8, lab.sizes.small / TREE_FILES_PER_STAGED_FILE);
    let rate = |seconds: f64| size as f64 / 1e6 / seconds;
    let cold = rate(cat(&large)?);
    lab.drop_caches()?;
    let again = rate(cat(&large)?);
    let job = FioJob { text: jobs::RANDOM_DROPPED, jobs: 1, seconds: 0, random: RANDOM_READ_BYTES };
    let random = fio::read(&job, &other, size)?;
    let small = point.join("small");
    let probe = |what, threads| {
        let directory: PathBuf = small.clone();
        TreeProbe { what, directory, files, per_directory: data::FILES_IN_DIRECTORY, threads, hot: None }
            .run()
    };
    Ok([first, cold, again, random, probe(ProbeKind::Walk, 1)?, probe(ProbeKind::Read, 8)?])
}
