//! The environment of a run: its directory, its sizes, and the programs that it measures.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::Advice;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::machine;

/// A disk without requests for this long is idle.
const DISK_IDLE_TIME: Duration = Duration::from_millis(30);
/// How long to wait for an idle disk: one that others use never is.
const DISK_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A directory of its own, removed at the end. Whatever is mounted in it must have ended by then.
#[derive(Debug)]
pub struct BenchEnv {
    directory: TempDir,
    drops: Cell<u64>,
    /// How much is measured.
    pub sizes: Sizes,
    /// The program that is measured.
    pub bdnfs: PathBuf,
    /// The S3 server of the test kit.
    pub s3_server: PathBuf,
    /// The name of the file system that bdnfs is compared with.
    pub native: String,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Sizes {
    /// Whether the run is only to show that everything works.
    pub quick: bool,
    /// How often everything is measured.
    pub runs: usize,
    /// Bytes of a large file, or of all files of a group.
    pub size: u64,
    /// Bytes that are read at random.
    pub random: u64,
    /// Seconds for which a hot file is read.
    pub hot: u64,
    /// Files of 8 KiB.
    pub small: usize,
    /// Files in one directory.
    pub listed: usize,
    /// Files in the tree that is only listed.
    pub many: usize,
}

impl Sizes {
    /// The sizes of published full runs.
    pub const FULL: Self = Self {
        quick: false,
        runs: 5,
        size: 4 << 30,
        random: 256 << 20,
        hot: 3,
        small: 50_000,
        listed: 100_000,
        many: 1_000_000,
    };

    /// For a small machine: every row, as often.
    pub const MEDIUM: Self =
        Self { size: 768 << 20, random: 64 << 20, hot: 1, small: 12_000, listed: 50_000, ..Self::FULL };

    /// To see that everything works.
    pub const QUICK: Self = Self {
        quick: true,
        runs: 3,
        size: 256 << 20,
        random: 16 << 20,
        hot: 1,
        small: 5_000,
        listed: 10_000,
        many: 100_000,
    };

    /// The number of turns of short, noisy rows: eight for five, since the interval of eight leaves out an outlier at either end,
    /// and that of five none.
    pub fn turns_when_noisy(&self) -> usize {
        self.runs * 8 / 5
    }

    /// Whether the sizes are the same, whatever the number of turns.
    pub fn is_like(&self, other: &Self) -> bool {
        *self == Self { runs: self.runs, ..*other }
    }
}

impl BenchEnv {
    /// An environment below `directory`, with the programs that lie beside this one.
    ///
    /// # Errors
    /// `directory` can't be used, or `bdnfs` is not built.
    pub fn new(directory: &Path, sizes: Sizes, native: String) -> Result<Self> {
        let at = || format!("cannot use {}", directory.display());
        fs::create_dir_all(directory).with_context(at)?;
        let directory = directory.canonicalize().with_context(at)?;
        let directory = TempDir::with_prefix_in("bench-", &directory).with_context(at)?;
        let (bdnfs, s3_server) = (sibling_program("bdnfs")?, sibling_program("s3-server")?);
        if !bdnfs.exists() {
            bail!("{} is missing; scripts/bench builds it", bdnfs.display());
        }
        Ok(Self { directory, drops: Cell::new(0), sizes, bdnfs, s3_server, native })
    }

    /// The program `name` of the Python environment that scripts/bench makes, if it is there: `venv` in the directory of
    /// builds, two above this program.
    pub fn venv(&self, name: &str) -> Option<PathBuf> {
        let builds = self.bdnfs.parent()?.parent()?;
        Some(builds.join("venv/bin").join(name)).filter(|path| path.exists())
    }

    /// A new directory called `name`, removed when dropped. It has room for `bytes`.
    ///
    /// # Errors
    /// It can't be made, or the disk is too full.
    pub fn room(&self, name: &str, bytes: u64) -> Result<TempDir> {
        let (free, reserve) = machine::free(self.directory.path());
        let needed = bytes + reserve;
        if free < needed {
            let [needed, reserve, free] =
                [needed, reserve, free].map(|bytes| bytes as f64 / f64::from(1 << 30));
            bail!(
                "it needs {needed:.1} GiB of free disk, {reserve:.1} of which a cache leaves free, and there are {free:.1} GiB"
            );
        }
        let at = || format!("cannot make a directory in {}", self.directory.path().display());
        TempDir::with_prefix_in(name, self.directory.path()).with_context(at)
    }

    /// Drops what the kernel caches of everything: pages, directories and inodes.
    ///
    /// # Errors
    /// Only root may.
    pub fn drop_caches(&self) -> Result<()> {
        settle();
        self.drops.set(self.drops.get() + 1);
        fs::write("/proc/sys/vm/drop_caches", "3")
            .context("cannot drop the kernel's caches, which needs root")
    }

    /// Drops the pages of all files below `path`: as root those of everything, else by advice, file by file.
    ///
    /// # Errors
    /// A file can't be opened.
    pub fn drop_pages(&self, path: &Path) -> Result<()> {
        if self.drop_caches().is_ok() {
            return Ok(());
        }
        advise(path)
    }

    /// How often all caches were dropped so far: whether something that was read is still in memory.
    pub fn cache_drops(&self) -> u64 {
        self.drops.get()
    }
}

/// Drops the pages of all files below `path`, as any user may.
fn advise(path: &Path) -> Result<()> {
    let at = || format!("cannot drop the pages of {}", path.display());
    let kind = fs::symlink_metadata(path).with_context(at)?.file_type();
    if kind.is_dir() {
        let entries = fs::read_dir(path).with_context(at)?;
        return entries.into_iter().try_for_each(|entry| advise(&entry.with_context(at)?.path()));
    }
    if !kind.is_file() {
        return Ok(());
    }
    let file = fs::File::open(path).with_context(at)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).with_context(at)
}

/// The program `name` that lies beside this one.
///
/// # Errors
/// This one can't be found.
pub fn sibling_program(name: &str) -> Result<PathBuf> {
    Ok(std::env::current_exe().context("cannot find this program")?.with_file_name(name))
}

/// Writes what is dirty, and waits until the disk is at rest: what was removed a turn ago is discarded on the disk after it
/// has been forgotten by the file system, which would slow the next turn.
pub fn settle() {
    rustix::fs::sync();
    let begin = Instant::now();
    let mut before = machine::disks();
    while begin.elapsed() < DISK_IDLE_TIMEOUT {
        std::thread::sleep(DISK_IDLE_TIME);
        let now = machine::disks();
        if now == before {
            return;
        }
        before = now;
    }
}
