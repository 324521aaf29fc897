//! Probes: loops over the files of a tree. They run in processes of their own, so that a file system that hangs can't
//! hang the run.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir};

use crate::{data, run};

/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(600);
/// The size of a read; the files are no larger.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// A loop over a tree that [`data::tree`] made.
#[derive(Clone, Debug, clap::Args)]
pub struct TreeProbe {
    /// The operation on each file.
    pub what: ProbeKind,
    /// The tree.
    pub directory: PathBuf,
    /// How many files it has.
    #[arg(long)]
    pub files: usize,
    /// How many of them lie in a directory.
    #[arg(long)]
    pub per_directory: usize,
    /// How many threads share the work.
    #[arg(long)]
    pub threads: usize,
    /// Warm up with one pass, then repeat for this many seconds; the result is the time of one pass.
    #[arg(long)]
    pub hot: Option<u64>,
}

/// The operation on each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeKind {
    /// Opened and closed.
    Open,
    /// Opened, read and closed.
    Read,
    /// Asked for its size.
    Stat,
    /// Found in its directory and asked for its size.
    Walk,
}

impl TreeProbe {
    /// Runs it in another process, and returns files per second.
    ///
    /// # Errors
    /// A file can't be read, or it takes too long.
    pub fn run(&self) -> Result<f64> {
        let this = std::env::current_exe().context("cannot find this program")?;
        let what = self.what.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut command = run::command(this);
        command
            .args(["probe", &what])
            .arg(&self.directory)
            .args(self.hot.map(|seconds| format!("--hot={seconds}")));
        for (name, value) in
            [("--files", self.files), ("--per-directory", self.per_directory), ("--threads", self.threads)]
        {
            command.arg(name).arg(value.to_string());
        }
        let ran = run::run(&mut command, PROBE_TIMEOUT)?;
        let seconds: f64 = ran.out.trim().parse().context("the probe said no time")?;
        Ok(self.files as f64 / seconds)
    }

    /// Runs it here, and returns the seconds that a pass took.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn here(&self) -> Result<f64> {
        let root = open(rustix::fs::CWD, &c_string(&self.directory)?, OFlags::DIRECTORY)?;
        let parts = self.parts()?;
        if self.hot.is_some() {
            self.pass(root.as_fd(), &parts)?;
        }
        let (begin, least) = (Instant::now(), Duration::from_secs(self.hot.unwrap_or(0)));
        let mut passes = 0;
        while passes == 0 || begin.elapsed() < least {
            self.pass(root.as_fd(), &parts)?;
            passes += 1;
        }
        Ok(begin.elapsed().as_secs_f64() / f64::from(passes))
    }

    /// The paths that each thread takes on: of files, or for a walk of directories.
    fn parts(&self) -> Result<Vec<Vec<CString>>> {
        let step = if self.what == ProbeKind::Walk { self.per_directory } else { 1 };
        let names = (0..self.files).step_by(step).map(|index| data::name(index, self.per_directory));
        let paths = names.map(|name| {
            let path = Path::new(&name);
            c_string(if self.what == ProbeKind::Walk { path.parent().unwrap_or(path) } else { path })
        });
        let paths: Vec<CString> = paths.collect::<Result<_>>()?;
        Ok(paths.chunks(paths.len().div_ceil(self.threads).max(1)).map(<[_]>::to_vec).collect())
    }

    fn pass(&self, root: BorrowedFd<'_>, parts: &[Vec<CString>]) -> Result<()> {
        let files = std::thread::scope(|scope| {
            let workers: Vec<_> = parts.iter().map(|part| scope.spawn(|| self.work(root, part))).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, Result<usize>>| match worker.join() {
                Ok(files) => files,
                Err(_) => bail!("a thread of the probe failed"),
            };
            workers.into_iter().map(join).sum::<Result<usize>>()
        })?;
        // A mount that shows too little must not look fast.
        if files != self.files {
            bail!("{} has {files} files and not {}", self.directory.display(), self.files);
        }
        Ok(())
    }

    fn work(&self, root: BorrowedFd<'_>, paths: &[CString]) -> Result<usize> {
        let mut buffer = vec![0; READ_BUFFER_BYTES];
        let mut files = 0;
        for path in paths {
            match self.what {
                ProbeKind::Open => drop(open(root, path, OFlags::empty())?),
                ProbeKind::Read => read(root, path, &mut buffer)?,
                ProbeKind::Stat => stat(root, path)?,
                ProbeKind::Walk => files += walk(root, path)?,
            }
        }
        Ok(if self.what == ProbeKind::Walk { files } else { paths.len() })
    }
}

fn open(root: BorrowedFd<'_>, path: &CString, flags: OFlags) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | flags;
    rustix::fs::openat(root, path, flags, Mode::empty()).with_context(|| format!("cannot open {path:?}"))
}

fn read(root: BorrowedFd<'_>, path: &CString, buffer: &mut [u8]) -> Result<()> {
    let file = open(root, path, OFlags::empty())?;
    let read = rustix::io::read(&file, buffer).with_context(|| format!("cannot read {path:?}"))?;
    if read == 0 { bail!("{path:?} is empty") } else { Ok(()) }
}

fn stat(root: BorrowedFd<'_>, path: &CString) -> Result<()> {
    let found = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW);
    found.map(drop).with_context(|| format!("cannot stat {path:?}"))
}

fn walk(root: BorrowedFd<'_>, path: &CString) -> Result<usize> {
    let directory = open(root, path, OFlags::DIRECTORY)?;
    let mut buffer = Vec::with_capacity(READ_BUFFER_BYTES);
    let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
    let mut files = 0;
    while let Some(entry) = entries.next() {
        let entry = entry.with_context(|| format!("cannot list {path:?}"))?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            stat(directory.as_fd(), &name.to_owned())?;
            files += 1;
        }
    }
    Ok(files)
}

fn c_string(path: &Path) -> Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    CString::new(path.as_os_str().as_bytes()).context("a path has a NUL in it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_of_tree_sees_every_file() {
        let directory = tempfile::tempdir().unwrap();
        data::tree(directory.path(), 25, 10, 100).unwrap();
        for what in [ProbeKind::Open, ProbeKind::Read, ProbeKind::Stat, ProbeKind::Walk] {
            let path = directory.path().to_owned();
            let probe =
                TreeProbe { what, directory: path, files: 25, per_directory: 10, threads: 2, hot: Some(0) };
            assert!(probe.here().unwrap() > 0.0);
            let more = TreeProbe { files: 26, ..probe };
            assert!(more.here().is_err(), "{what:?}");
        }
    }
}
