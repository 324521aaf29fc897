//! Local: a file whose bytes all lie in the cache, beside the same file on the disk's own file system.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::bucket::BenchBucket;
use crate::cat::cat;
use crate::fio::{self, FioJob, jobs};
use crate::lab::BenchEnv;
use crate::mount::BenchMount;
use crate::report::{BenchReport, Comparison};
use crate::samples::{Side, in_turn};
use crate::unit::MeasureUnit;
use crate::{cold, data};

const ABOUT: &str = "A file of the size that is named, all of it in the cache, read through the mount and from the disk's \
    own file system. \"Hot\": it is in the page cache; \"dropped\": it is not. \"Cold from the mirror\": a quarter as large, and the \
    cache has nothing of it, while the disk's own file system has all of it.";
/// The share of native speed that every row must reach.
const WANTED_RATIO: f64 = 0.95;
const FILE: &str = "file.bin";

/// What is read how.
struct FioCase {
    name: &'static str,
    text: &'static str,
    jobs: u64,
    /// Whether the file is in the page cache when the job begins.
    hot: bool,
}

const CASES: [FioCase; 8] = [
    FioCase { name: "sequential 1 MiB, 1 job, hot", text: jobs::SEQUENTIAL_HOT, jobs: 1, hot: true },
    FioCase { name: "sequential 1 MiB, 2 jobs, hot", text: jobs::SEQUENTIAL_HOT, jobs: 2, hot: true },
    FioCase { name: "sequential 1 MiB, 1 job, dropped", text: jobs::SEQUENTIAL_DROPPED, jobs: 1, hot: false },
    FioCase {
        name: "sequential 1 MiB, 2 jobs, dropped",
        text: jobs::SEQUENTIAL_DROPPED,
        jobs: 2,
        hot: false,
    },
    FioCase { name: "128 KiB, 16 jobs, dropped", text: jobs::MANY_DROPPED, jobs: 16, hot: false },
    FioCase { name: "random 4 KiB, hot", text: jobs::RANDOM_HOT, jobs: 1, hot: true },
    FioCase { name: "random 4 KiB, dropped", text: jobs::RANDOM_DROPPED, jobs: 1, hot: false },
    FioCase { name: "mmap sequential, hot", text: jobs::MMAP_HOT, jobs: 1, hot: true },
];

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("local", "Local file", format!("{ABOUT} {} MiB.", lab.sizes.size >> 20));
    let Some(stage) = report.prepare("all of it", || StagedFile::set(lab))? else { return Ok(()) };
    CASES.iter().try_for_each(|case| report.measure(case.name, || stage.compare(lab, case)))?;
    drop(stage);
    let bucket = report.prepare("cold from the mirror", || {
        let filled = cold::bucket(lab, 1, lab.sizes.size / 4)?;
        filled.add(lab)?;
        Ok(filled)
    })?;
    let Some(bucket) = bucket else { return Ok(()) };
    fio::COLD.iter().try_for_each(|(what, job)| {
        let name = format!("{what}, cold from the mirror");
        report.measure(&name, || mirrored(lab, &bucket, &name, job))
    })
}

/// The same from a mirror on loopback, with an empty cache each time.
fn mirrored(lab: &BenchEnv, bucket: &BenchBucket, name: &str, job: &FioJob) -> Result<Comparison> {
    let (size, file) = (lab.sizes.size / 4, cold::name(0));
    let sides = in_turn(lab.sizes.runs, |side| match side {
        Side::Baseline => {
            lab.drop_pages(&bucket.directory)?;
            fio::read(job, &bucket.directory.join(&file), size)
        }
        Side::Bdnfs => bucket.in_room(lab, |room| {
            let mount = bucket.mount(lab, room, false, &bucket.mirror())?;
            fio::read(job, &mount.point().join(&file), size)
        }),
    })?;
    Ok(Comparison::new(name, MeasureUnit::Megabytes, &lab.native, sides))
}

/// A file, and a mount through which it can be read, too.
struct StagedFile {
    // First, so that it ends before its directory goes.
    mount: BenchMount,
    native: PathBuf,
    room: tempfile::TempDir,
}

impl StagedFile {
    fn set(lab: &BenchEnv) -> Result<Self> {
        let room = lab.room("local", 2 * lab.sizes.size)?;
        let source = room.path().join("source");
        std::fs::create_dir(&source).context("cannot make a directory")?;
        let native = source.join(FILE);
        data::file(&native, lab.sizes.size)?;
        let uri = format!("file://{}", source.display());
        let mount = BenchMount::plain(lab, &uri, room.path(), true)?;
        Ok(Self { mount, native, room })
    }

    fn compare(&self, lab: &BenchEnv, case: &FioCase) -> Result<Comparison> {
        let job =
            FioJob { text: case.text, jobs: case.jobs, seconds: lab.sizes.hot, random: lab.sizes.random };
        let sides = in_turn(lab.sizes.runs, |side| {
            let path = match side {
                Side::Baseline => self.native.clone(),
                Side::Bdnfs => self.mount.point().join(FILE),
            };
            // Hot or not: where the pages of a file happen to lie in memory makes a tenth of a difference, which
            // would show in every run if they were left there.
            lab.drop_pages(self.room.path())?;
            if case.hot {
                cat(&path)?;
            }
            fio::read(&job, &path, lab.sizes.size)
        })?;
        Ok(Comparison::new(case.name, MeasureUnit::Megabytes, &lab.native, sides).with_wanted(WANTED_RATIO))
    }
}
