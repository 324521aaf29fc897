//! Cold: nothing is in the cache, and the source is an S3 server on loopback.

use std::path::Path;

use anyhow::Result;

use crate::bucket::BenchBucket;
use crate::cat::cat;
use crate::lab::BenchEnv;
use crate::mount::BenchMount;
use crate::report::{BenchReport, Comparison, Figure, Rows};
use crate::s3::Download;
use crate::samples::Samples;
use crate::unit::MeasureUnit;
use crate::{data, interrupt};

const ABOUT: &str = "Bytes that lie nowhere near yet, from an S3 server on loopback that has them in memory and checks \
    signatures. Against 8 curls, each of which downloads a range of the same bytes to the same disk.";
/// The share of a durable download that `--wait` must reach: it ends when all is durable, too.
const WANTED_WAIT_RATIO: f64 = 0.85;
/// The share of a download that a reader must reach, who waits for no disk.
const WANTED_CAT_RATIO: f64 = 0.7;
const CURL: &str = "curl";
const CURL_SYNCED: &str = "curl, then fsync";

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("cold", "Cold from S3", format!("{ABOUT} {} MiB.", lab.sizes.size >> 20));
    report.measure("one file", || compare(lab, 1, "one file"))?;
    report.measure("4 files", || compare(lab, 4, "4 files"))
}

/// The measurements of one mount.
struct ColdMount {
    seconds: f64,
    cpu: f64,
    peak: f64,
}

/// The measurements of all rounds.
#[derive(Default)]
struct Rounds {
    curl: Vec<Download>,
    wait: Vec<ColdMount>,
    cat: Vec<ColdMount>,
}

/// A bucket with `files` files of the same size.
///
/// # Errors
/// The disk fails, or the server does not start.
pub fn bucket(lab: &BenchEnv, files: u64, bytes: u64) -> Result<BenchBucket> {
    BenchBucket::new(lab, bytes, |directory| {
        let file = |index| data::file(&directory.join(name(index)), bytes / files);
        (0..files).try_for_each(file)
    })
}

/// The name of its file `index`.
pub fn name(index: u64) -> String {
    format!("file-{index}.bin")
}

fn compare(lab: &BenchEnv, files: u64, name: &str) -> Result<Rows> {
    let bucket = bucket(lab, files, lab.sizes.size)?;
    let objects = bucket.objects()?;
    let mut rounds = Rounds::default();
    for _ in 0..lab.sizes.turns_when_noisy() {
        interrupt::check()?;
        rounds.curl.push(bucket.in_room(lab, |room| bucket.server.download(&objects, room))?);
        rounds.wait.push(bucket.in_room(lab, |room| wait(lab, &bucket, room))?);
        if files == 1 {
            rounds.cat.push(bucket.in_room(lab, |room| lazy(lab, &bucket, room))?);
        }
    }
    Ok(rounds.rows(name, lab.sizes.size))
}

fn wait(lab: &BenchEnv, bucket: &BenchBucket, room: &Path) -> Result<ColdMount> {
    let mount = bucket.mount(lab, room, true, &[])?;
    ColdMount::new(&mount, mount.took)
}

fn lazy(lab: &BenchEnv, bucket: &BenchBucket, room: &Path) -> Result<ColdMount> {
    let mount = bucket.mount(lab, room, false, &[])?;
    let seconds = cat(&mount.point().join(name(0)))?;
    ColdMount::new(&mount, seconds)
}

impl ColdMount {
    fn new(mount: &BenchMount, seconds: f64) -> Result<Self> {
        let agent = mount.agent()?;
        Ok(Self { seconds, cpu: agent.cpu()?, peak: agent.memory("VmHWM")? })
    }
}

impl Rounds {
    fn rows(&self, name: &str, bytes: u64) -> Rows {
        let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
        let per_gib = |seconds: f64| seconds / (bytes as f64 / f64::from(1 << 30));
        let written = || self.curl.iter().map(|curl| rate(curl.written)).collect::<Samples>();
        let durable = || self.curl.iter().map(|curl| rate(curl.durable)).collect::<Samples>();
        let of = |mounts: &[ColdMount]| mounts.iter().map(|one| rate(one.seconds)).collect::<Samples>();
        let mut rows = Rows::default();
        let mut pair = |what: &str, against: &str, baseline, bdnfs, wanted| {
            let pair = Comparison::new(
                &format!("{name}, {what}"),
                MeasureUnit::Megabytes,
                against,
                [baseline, bdnfs],
            );
            rows.pairs.push(Comparison { wanted, ..pair });
        };
        pair("mount --wait", CURL_SYNCED, durable(), of(&self.wait), Some(WANTED_WAIT_RATIO));
        pair("mount --wait", CURL, written(), of(&self.wait), None);
        if !self.cat.is_empty() {
            pair("lazy cat", CURL, written(), of(&self.cat), Some(WANTED_CAT_RATIO));
            pair("lazy cat", CURL_SYNCED, durable(), of(&self.cat), None);
        }
        let mut figure = |what: &str, unit, value| {
            rows.figures.push(Figure::new(&format!("{name}, {what}"), unit, value));
        };
        figure(
            "8 curls: CPU",
            MeasureUnit::SecondsPerGib,
            self.curl.iter().map(|curl| per_gib(curl.cpu)).collect(),
        );
        for (what, mounts) in [("mount --wait", &self.wait), ("lazy cat", &self.cat)] {
            if !mounts.is_empty() {
                let cpu = mounts.iter().map(|one| per_gib(one.cpu)).collect();
                figure(&format!("{what}: CPU of the daemon"), MeasureUnit::SecondsPerGib, cpu);
                let peak = mounts.iter().map(|one| one.peak).collect();
                figure(&format!("{what}: peak memory of the daemon"), MeasureUnit::Mebibytes, peak);
            }
        }
        rows
    }
}
