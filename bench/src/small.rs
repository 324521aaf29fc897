//! Small: many files, whose cost is that of names and opens.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{FsWord, statfs};
use tempfile::TempDir;

use crate::clients;
use crate::data::{self, FILES_IN_DIRECTORY};
use crate::lab::BenchEnv;
use crate::mount::{BenchMount, MountPlan};
use crate::probe::{ProbeKind, TreeProbe};
use crate::report::{BenchReport, Comparison};
use crate::run::{self, RunningProgram};
use crate::samples::{Side, in_turn};
use crate::unit::MeasureUnit;

const ABOUT: &str = "Files of 8 KiB in directories of 1,000, all local (open, read), and one directory of many files \
    (stat, list), in files per second.";
/// The row of a stage.
const STAGED: &str = "mount --wait of local files; the cache is new";
/// The type of an EROFS in statfs(2): `EROFS_SUPER_MAGIC_V1` of linux/magic.h.
const EROFS_MAGIC: FsWord = 0xe0f5_e1e2;
/// The options of `bdnfs mount` for a mount that is an EROFS when all of it is local.
const NATIVE_OPTIONS: &[&str] = &["--via", "native"];
/// How long a copy may take.
const COPY_TIMEOUT: Duration = Duration::from_secs(300);
/// How long `ls -f` may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(300);
/// The size of a small file: a tokenizer's, a label's, a thumbnail's.
pub(crate) const SMALL_FILE_BYTES: usize = 8 << 10;
/// The size of a file that is never read.
const TINY_FILE_BYTES: usize = 1;

/// The state of the kernel's caches when a probe begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CacheState {
    /// All that the probe touches.
    Hot,
    /// All but what it knows through the mount.
    Mounted,
    /// Nothing.
    Cold,
}

/// What is done, beginning how.
pub(crate) struct TreeCase {
    pub(crate) name: &'static str,
    work: TreeWork,
    begin: CacheState,
}

/// What is done.
#[derive(Clone, Copy)]
enum TreeWork {
    TreeProbe(ProbeKind, usize),
    List,
}

const fn case(name: &'static str, work: TreeWork, begin: CacheState) -> TreeCase {
    TreeCase { name, work, begin }
}

/// What is done with files that are local.
pub(crate) const READ_CASES: [TreeCase; 5] = [
    case("open, close; 1 thread, hot", TreeWork::TreeProbe(ProbeKind::Open, 1), CacheState::Hot),
    case("open, close; 2 threads, hot", TreeWork::TreeProbe(ProbeKind::Open, 2), CacheState::Hot),
    case("open, read, close; hot", TreeWork::TreeProbe(ProbeKind::Read, 1), CacheState::Hot),
    case(
        "open, read, close; the mount is new, the cache's files are hot",
        TreeWork::TreeProbe(ProbeKind::Read, 1),
        CacheState::Mounted,
    ),
    case("open, read, close; all cold", TreeWork::TreeProbe(ProbeKind::Read, 1), CacheState::Cold),
];

const LIST_CASES: [TreeCase; 5] = [
    case("stat; hot", TreeWork::TreeProbe(ProbeKind::Stat, 1), CacheState::Hot),
    case("list and stat; hot", TreeWork::TreeProbe(ProbeKind::Walk, 1), CacheState::Hot),
    case("list and stat; cold", TreeWork::TreeProbe(ProbeKind::Walk, 1), CacheState::Cold),
    case("ls -f; hot", TreeWork::List, CacheState::Hot),
    case("ls -f; cold", TreeWork::List, CacheState::Cold),
];

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    let (small, listed) = (lab.sizes.small, lab.sizes.listed);
    report.group("small", "Many files", format!("{ABOUT} {small} files; {listed} in the one directory."));
    with_tree(lab, report, &READ_CASES, || {
        SmallFiles::make(lab, small, FILES_IN_DIRECTORY, SMALL_FILE_BYTES, false)
    })?;
    with_tree(lab, report, &LIST_CASES, || SmallFiles::make(lab, listed, listed, TINY_FILE_BYTES, false))
}

fn with_tree(
    lab: &BenchEnv,
    report: &mut BenchReport,
    cases: &[TreeCase],
    make: impl FnOnce() -> Result<SmallFiles>,
) -> Result<()> {
    let Some(tree) = report.prepare("a tree of files", make)? else { return Ok(()) };
    if tree.read {
        report.measure(STAGED, || tree.compare_with_copy(lab))?;
    }
    cases.iter().try_for_each(|case| report.measure(case.name, || tree.compare(lab, case)))
}

/// A file system that a mount of [`SmallFiles`] is compared with.
pub(crate) struct Baseline<'a> {
    /// Its name in reports.
    pub(crate) name: &'a str,
    /// The directory with the files.
    pub(crate) directory: &'a Path,
    /// Mounts it anew, so that the kernel has only pages of its device in memory; nothing for the disk's own.
    pub(crate) mount: &'a dyn Fn() -> Result<()>,
}

/// A directory with many files.
pub(crate) struct SmallFiles {
    room: TempDir,
    source: PathBuf,
    files: usize,
    per_directory: usize,
    /// Whether the files are read, and so are to be local.
    read: bool,
    /// How many seconds a hot case runs.
    hot: u64,
    /// Whether its mounts are native.
    native: bool,
}

impl SmallFiles {
    /// Makes `files` of `size` bytes, and mounts them once; `native`: by an EROFS.
    ///
    /// # Errors
    /// The disk's, and those of `bdnfs mount`.
    pub(crate) fn make(
        lab: &BenchEnv,
        files: usize,
        per_directory: usize,
        size: usize,
        native: bool,
    ) -> Result<Self> {
        // Each small file takes a block of 4 KiB at the least, in the source and in the cache, and an inode.
        let room = lab.room("small", 2 * (files * (size + (8 << 10))) as u64)?;
        let source = room.path().join("source");
        data::tree(&source, files, per_directory, size)?;
        let (read, hot) = (size == SMALL_FILE_BYTES, lab.sizes.hot);
        let tree = Self { room, source, files, per_directory, read, hot, native };
        tree.mount(lab)?;
        Ok(tree)
    }

    fn mount(&self, lab: &BenchEnv) -> Result<BenchMount> {
        let (source, options) = (self.uri(), if self.native { NATIVE_OPTIONS } else { &[] });
        let (room, wait) = (self.room.path(), self.read);
        let mount =
            BenchMount::new(lab, &MountPlan { source: &source, room, wait, env: &[], options, link: None })?;
        // One that can't become native works all the same, and says so in a note only.
        let is_native = statfs(mount.point()).context("cannot look at a mount")?.f_type == EROFS_MAGIC;
        ensure!(is_native == self.native, "the mount stayed with the agent");
        Ok(mount)
    }

    /// The directory that is mounted.
    pub(crate) fn source(&self) -> &Path {
        &self.source
    }

    /// From the command's start until all files are durable on this machine once more.
    fn compare_with_copy(&self, lab: &BenchEnv) -> Result<Comparison> {
        let sides = in_turn(lab.sizes.turns_when_noisy(), |side| {
            let room = lab.room("staged", (self.files * (SMALL_FILE_BYTES + (8 << 10))) as u64)?;
            let seconds = match side {
                Side::Bdnfs => BenchMount::plain(lab, &self.uri(), room.path(), true)?.took,
                Side::Baseline => {
                    let begin = Instant::now();
                    let copy = room.path().join("copy");
                    run::run(run::command("cp").arg("-r").arg(&self.source).arg(copy), COPY_TIMEOUT)?;
                    clients::sync(room.path())?;
                    begin.elapsed().as_secs_f64()
                }
            };
            Ok(self.files as f64 / seconds)
        })?;
        Ok(Comparison::new(STAGED, MeasureUnit::Files, "cp -r, then sync", sides))
    }

    fn uri(&self) -> String {
        format!("file://{}", self.source.display())
    }

    /// Compares the mount with the disk's own file system.
    ///
    /// # Errors
    /// Those of the mount and of what is done in it.
    pub(crate) fn compare(&self, lab: &BenchEnv, case: &TreeCase) -> Result<Comparison> {
        let (name, directory) = (&lab.native, &self.source);
        self.compare_with(lab, case, &Baseline { name, directory, mount: &|| Ok(()) })
    }

    /// Compares the mount with another file system that has the same files.
    ///
    /// # Errors
    /// Those of the mount, of the other file system, and of what is done in them.
    pub(crate) fn compare_with(
        &self,
        lab: &BenchEnv,
        case: &TreeCase,
        baseline: &Baseline<'_>,
    ) -> Result<Comparison> {
        if case.begin == CacheState::Mounted {
            // What lies below the mount is to be in memory, and so is what it is compared with.
            self.work(case, baseline.directory)?;
            self.work(case, self.mount(lab)?.point())?;
        }
        // What is hot is repeated within each turn.
        let turns = if case.begin == CacheState::Hot { lab.sizes.runs } else { lab.sizes.turns_when_noisy() };
        let sides = in_turn(turns, |side| {
            // A new mount for each turn: nothing of the last one is cached in it.
            let mount = match side {
                Side::Bdnfs => Some(self.mount(lab)?),
                Side::Baseline => (baseline.mount)().map(|()| None)?,
            };
            let directory = mount.as_ref().map_or(baseline.directory, BenchMount::point);
            if case.begin == CacheState::Cold {
                lab.drop_caches()?;
            }
            self.work(case, directory)
        })?;
        Ok(Comparison::new(case.name, MeasureUnit::Files, baseline.name, sides))
    }

    fn work(&self, case: &TreeCase, directory: &Path) -> Result<f64> {
        let hot = (case.begin == CacheState::Hot).then_some(self.hot);
        match case.work {
            TreeWork::List => {
                if hot.is_some() {
                    list(directory)?;
                }
                let (mut seconds, mut passes) = (0.0, 0);
                while passes == 0 || seconds < hot.unwrap_or(0) as f64 {
                    seconds += list(directory)?;
                    passes += 1;
                }
                Ok((passes * self.files) as f64 / seconds)
            }
            TreeWork::TreeProbe(what, threads) => {
                let (directory, files, per_directory) =
                    (directory.to_owned(), self.files, self.per_directory);
                TreeProbe { what, directory, files, per_directory, threads, hot }.run()
            }
        }
    }
}

/// Lists the one directory in `tree`, and returns the seconds that it took.
fn list(tree: &Path) -> Result<f64> {
    let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    let directory = tree.join(data::name(0, 1));
    let directory = directory.parent().unwrap_or(tree);
    Ok(RunningProgram::start(run::command("ls").arg("-f").arg(directory), null)?.wait(LIST_TIMEOUT)?.seconds)
}
