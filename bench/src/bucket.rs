//! A bucket on loopback, its server, and whether its objects are in memory.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::lab::{self, BenchEnv};
use crate::link::{self, ShapedLink};
use crate::mount::{BenchMount, MountPlan};
use crate::run::{self, RunningProgram};
use crate::s3::{BUCKET, BucketObject, S3Process};

/// How long reading the whole bucket once may take.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(300);
/// How long data counts as in memory after it was read: a kernel that reclaims pages takes them after half a minute.
const WARM_FOR: Duration = Duration::from_secs(15);
/// How long adding it to a mirror may take.
const MIRROR_ADD_TIMEOUT: Duration = Duration::from_secs(900);
/// The bucket of the mirror.
const MIRROR: &str = "mirror";

/// A bucket, its server, and beside it an empty one for a mirror.
#[derive(Debug)]
pub struct BenchBucket {
    /// The server. First, so that it ends before its directory goes.
    pub server: S3Process,
    /// Where its objects lie as files.
    pub directory: PathBuf,
    /// The network between it and its readers.
    link: Option<ShapedLink>,
    root: TempDir,
    /// When all of it was last read, and how often caches had been dropped then.
    warmed: Cell<Option<(u64, Instant)>>,
}

impl BenchBucket {
    /// A bucket that `fill` puts files into, which take up to `bytes`; a copy in the mirror has room, too.
    ///
    /// # Errors
    /// The disk fails, or the server does not start.
    pub fn new(lab: &BenchEnv, bytes: u64, fill: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        Self::behind(lab, None, bytes, fill)
    }

    /// The same, behind a link.
    ///
    /// # Errors
    /// The disk fails, or the server does not start.
    pub fn behind(
        lab: &BenchEnv,
        link: Option<ShapedLink>,
        bytes: u64,
        fill: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let root = lab.room("s3", bytes)?;
        let directory = root.path().join(BUCKET);
        for bucket in [&directory, &root.path().join(MIRROR)] {
            fs::create_dir(bucket).context("cannot make a bucket")?;
        }
        fill(&directory)?;
        let server = S3Process::start(lab, root.path(), link.as_ref())?;
        Ok(Self { server, directory, link, root, warmed: Cell::new(None) })
    }

    /// Delays each request by `late` from now on, like a remote store.
    ///
    /// # Errors
    /// The server does not start.
    pub fn set_latency(&mut self, lab: &BenchEnv, late: Duration) -> Result<()> {
        self.server.set_latency(lab, self.root.path(), self.link.as_ref(), late)
    }

    /// Its name in bdnfs.
    pub fn source(&self) -> String {
        format!("s3://{BUCKET}")
    }

    /// The options that name its mirror.
    pub fn mirror(&self) -> [&'static str; 2] {
        ["--mirror", "s3://mirror"]
    }

    /// Its objects.
    ///
    /// # Errors
    /// The disk fails.
    pub fn objects(&self) -> Result<Vec<BucketObject>> {
        let mut objects = Vec::new();
        gather(&self.directory, "", &mut objects).context("cannot list a bucket")?;
        objects.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(objects)
    }

    /// Bytes of its objects.
    ///
    /// # Errors
    /// The disk fails.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.objects()?.iter().map(|object| object.size).sum())
    }

    /// Mounts it below `room`.
    ///
    /// # Errors
    /// `bdnfs mount` fails, with what it said.
    pub fn mount(&self, lab: &BenchEnv, room: &Path, wait: bool, options: &[&str]) -> Result<BenchMount> {
        self.mount_of(lab, &self.source(), room, wait, options)
    }

    /// Mounts what of it lies below `prefix`.
    ///
    /// # Errors
    /// `bdnfs mount` fails, with what it said.
    pub fn mount_part(&self, lab: &BenchEnv, prefix: &str, room: &Path, wait: bool) -> Result<BenchMount> {
        self.mount_of(lab, &format!("{}/{prefix}", self.source()), room, wait, &[])
    }

    fn mount_of(
        &self,
        lab: &BenchEnv,
        source: &str,
        room: &Path,
        wait: bool,
        options: &[&str],
    ) -> Result<BenchMount> {
        let (env, link) = (self.server.env(), self.link.as_ref());
        BenchMount::new(lab, &MountPlan { source, room, wait, env: &env, options, link })
    }

    /// Copies it into its mirror, and returns the seconds that it took.
    ///
    /// # Errors
    /// `bdnfs mirror add` fails, with what it said.
    pub fn add(&self, lab: &BenchEnv) -> Result<f64> {
        let mut command = link::command(self.link.as_ref(), &lab.bdnfs);
        command.args(["mirror", "add"]).arg(self.source()).args(self.mirror()).envs(self.server.env());
        Ok(run::run(&mut command, MIRROR_ADD_TIMEOUT)?.seconds)
    }

    /// Deletes its mirror.
    ///
    /// # Errors
    /// The disk fails.
    pub fn delete_mirror(&self) -> Result<()> {
        let mirror = self.root.path().join(MIRROR);
        fs::remove_dir_all(&mirror).and_then(|()| fs::create_dir(&mirror)).context("cannot empty the mirror")
    }

    /// Bytes that its mirror occupies.
    ///
    /// # Errors
    /// The disk fails.
    pub fn mirrored(&self) -> Result<u64> {
        let mut objects = Vec::new();
        gather(&self.root.path().join(MIRROR), "", &mut objects).context("cannot list the mirror")?;
        Ok(objects.iter().map(|object| object.size).sum())
    }

    /// Makes the server load all of it into memory, and leaves the disk at rest.
    ///
    /// # Errors
    /// It can't be read.
    fn warm(&self, lab: &BenchEnv) -> Result<()> {
        let is_warm = |(drops, when): (u64, Instant)| drops == lab.cache_drops() && when.elapsed() < WARM_FOR;
        if !self.warmed.get().is_some_and(is_warm) {
            let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
            let mut command = run::command("sh");
            command.args(["-c", "find \"$1\" -type f -print0 | xargs -0 -r cat", "sh"]).arg(self.root.path());
            RunningProgram::start(&mut command, null)?.wait(WARM_UP_TIMEOUT)?;
            self.warmed.set(Some((lab.cache_drops(), Instant::now())));
        }
        lab::settle();
        Ok(())
    }

    /// Does `work` in a new directory, with the bucket in memory and the disk at rest.
    ///
    /// # Errors
    /// The disk is too full, or `work` fails.
    pub fn in_room<T>(&self, lab: &BenchEnv, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let room = lab.room("cold", self.bytes()?)?;
        self.warm(lab)?;
        work(room.path())
    }
}

/// All files below `directory`, by their paths from the first one on.
fn gather(directory: &Path, prefix: &str, objects: &mut Vec<BucketObject>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let key = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            gather(&entry.path(), &format!("{key}/"), objects)?;
        } else {
            objects.push(BucketObject { key, size: entry.metadata()?.len() });
        }
    }
    Ok(())
}
