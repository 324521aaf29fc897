//! Cold: nothing is in the cache, and the source is an S3 server on loopback.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::lab::Lab;
use crate::local::cat;
use crate::mount::{Mount, Plan};
use crate::report::{Figure, Pair, Report, Rows};
use crate::s3::{BUCKET, Download, Object, Server};
use crate::samples::Samples;
use crate::{data, interrupt};

const ABOUT: &str = "Bytes that lie nowhere near yet, from an S3 server on loopback that has them in memory and checks \
    signatures. Against 8 curls, each of which downloads a range of the same bytes to the same disk.";
/// The part of a durable download that `--wait` is to reach: it ends when all is durable, too.
const WANTED_WAIT: f64 = 0.85;
/// The part of a download that a reader is to reach, who waits for no disk.
const WANTED_CAT: f64 = 0.7;
const CURL: &str = "curl";
const CURL_SYNCED: &str = "curl, then fsync";

/// Measures all of it.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &Lab, report: &mut Report) -> Result<()> {
    report.group("Cold from S3", format!("{ABOUT} {} MiB.", lab.sizes.cold >> 20));
    report.measure("one file", || Bucket::fill(lab, 1)?.compare(lab, "one file"))?;
    report.measure("4 files", || Bucket::fill(lab, 4)?.compare(lab, "4 files"))
}

/// A server and what it has.
struct Bucket {
    // First, so that it ends before its directory goes.
    server: Server,
    objects: Vec<Object>,
    directory: PathBuf,
    _root: tempfile::TempDir,
}

/// What one mount took.
struct Mounted {
    seconds: f64,
    cpu: f64,
    peak: f64,
}

/// What all rounds gave.
#[derive(Default)]
struct Rounds {
    curl: Vec<Download>,
    wait: Vec<Mounted>,
    cat: Vec<Mounted>,
}

impl Bucket {
    fn fill(lab: &Lab, files: u64) -> Result<Self> {
        let root = lab.room("s3", lab.sizes.cold)?;
        let directory = root.path().join(BUCKET);
        std::fs::create_dir(&directory).context("cannot make a bucket")?;
        let size = lab.sizes.cold / files;
        let objects: Vec<_> =
            (0..files).map(|index| Object { key: format!("file-{index}.bin"), size }).collect();
        objects.iter().try_for_each(|object| data::file(&directory.join(&object.key), object.size))?;
        let server = Server::start(lab, root.path())?;
        Ok(Self { server, objects, directory, _root: root })
    }

    fn compare(&self, lab: &Lab, name: &str) -> Result<Rows> {
        let mut rounds = Rounds::default();
        for _ in 0..lab.sizes.runs {
            interrupt::check()?;
            rounds.curl.push(self.in_room(lab, |room| self.server.download(&self.objects, room))?);
            rounds.wait.push(self.in_room(lab, |room| self.wait(lab, room))?);
            if self.objects.len() == 1 {
                rounds.cat.push(self.in_room(lab, |room| self.cat(lab, room))?);
            }
        }
        Ok(rounds.rows(name, lab.sizes.cold))
    }

    /// Does `work` in a new directory, with the bucket in memory and the disk at rest.
    fn in_room<T>(&self, lab: &Lab, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let room = lab.room("cold", lab.sizes.cold)?;
        for object in &self.objects {
            cat(&self.directory.join(&object.key))?;
        }
        rustix::fs::sync();
        work(room.path())
    }

    fn mount(&self, lab: &Lab, room: &Path, wait: bool) -> Result<Mount> {
        let source = format!("s3://{BUCKET}");
        Mount::new(lab, &Plan { source: &source, room, wait, env: &self.server.env() })
    }

    fn wait(&self, lab: &Lab, room: &Path) -> Result<Mounted> {
        let mount = self.mount(lab, room, true)?;
        Mounted::new(&mount, mount.took)
    }

    fn cat(&self, lab: &Lab, room: &Path) -> Result<Mounted> {
        let mount = self.mount(lab, room, false)?;
        let seconds = cat(&mount.point().join(&self.objects[0].key))?;
        Mounted::new(&mount, seconds)
    }
}

impl Mounted {
    fn new(mount: &Mount, seconds: f64) -> Result<Self> {
        let daemon = mount.daemon()?;
        Ok(Self { seconds, cpu: daemon.cpu()?, peak: daemon.memory("VmHWM")? })
    }
}

impl Rounds {
    fn rows(&self, name: &str, bytes: u64) -> Rows {
        let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
        let per_gib = |seconds: f64| seconds / (bytes as f64 / f64::from(1 << 30));
        let written = || self.curl.iter().map(|curl| rate(curl.written)).collect::<Samples>();
        let durable = || self.curl.iter().map(|curl| rate(curl.durable)).collect::<Samples>();
        let of = |mounts: &[Mounted]| mounts.iter().map(|one| rate(one.seconds)).collect::<Samples>();
        let mut rows = Rows::default();
        let mut pair = |what: &str, against: &str, baseline, bdnfs, wanted| {
            let (name, against) = (format!("{name}, {what}"), against.to_owned());
            rows.pairs.push(Pair { name, unit: "MB/s", against, baseline, bdnfs, wanted, prototypes: &[] });
        };
        pair("mount --wait", CURL_SYNCED, durable(), of(&self.wait), Some(WANTED_WAIT));
        pair("mount --wait", CURL, written(), of(&self.wait), None);
        if !self.cat.is_empty() {
            pair("lazy cat", CURL, written(), of(&self.cat), Some(WANTED_CAT));
            pair("lazy cat", CURL_SYNCED, durable(), of(&self.cat), None);
        }
        let mut figure = |what: &str, unit, value| {
            rows.figures.push(Figure { name: format!("{name}, {what}"), unit, value, limit: None });
        };
        figure("8 curls: CPU", "s/GiB", self.curl.iter().map(|curl| per_gib(curl.cpu)).collect());
        for (what, mounts) in [("mount --wait", &self.wait), ("lazy cat", &self.cat)] {
            if !mounts.is_empty() {
                let cpu = mounts.iter().map(|one| per_gib(one.cpu)).collect();
                figure(&format!("{what}: CPU of the daemon"), "s/GiB", cpu);
                let peak = mounts.iter().map(|one| one.peak).collect();
                figure(&format!("{what}: peak memory of the daemon"), "MiB", peak);
            }
        }
        rows
    }
}
