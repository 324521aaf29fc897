//! `bdnfs launch`: the supervisor of one job, a process of its own.
//!
//! The daemon starts it when all that the job reads is local. It reads one [`Order`] from its standard input, makes the
//! mount namespace in which the job's sources lie where the job expects them ([`namespace`]), runs the job's commands in
//! it, keeps what they print ([`log`]), and writes down how they ended. It needs the daemon for nothing of that: one that
//! crashes finds the job again by the lock that this process holds, and by what it left in the job's directory. Every
//! process that the commands start stays below this one, however it detaches itself, and ends with the job
//! ([`offspring`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bdnfs::source::Secret;
use rustix::fs::{FlockOperation, Mode};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::api::job::JobExit;
use crate::text;

pub mod log;
mod namespace;
mod offspring;
mod supervise;

/// What the file is called that the supervisor holds locked as long as it lives.
pub const LOCK: &str = "lock";
/// What the file is called that says who supervises.
pub const STARTED: &str = "started.json";
/// What the file is called that says how the job ended.
pub const ENDED: &str = "ended.json";
/// What the directory is called on which a job's root is put together.
pub const SCRATCH: &str = "root";

/// What the supervisor is to do. It travels over a pipe, for there are secrets in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The job's own directory.
    pub directory: PathBuf,
    /// The directory of all jobs. What is mounted in it is no concern of this job's processes.
    pub jobs: PathBuf,
    /// What is to appear where: a mount, and an absolute path.
    pub sources: Vec<(PathBuf, PathBuf)>,
    /// The commands, one after the other, each for a shell of its own.
    pub commands: Vec<String>,
    /// Their environment, all of it.
    pub environment: BTreeMap<String, Secret>,
    /// Where they run.
    pub workdir: PathBuf,
    /// The permissions that their files lack.
    pub umask: u32,
    /// How long they may take to end when they are asked to, in seconds.
    pub grace: u64,
    /// Whether the job ends with whoever holds the other end of the standard input.
    pub attached: bool,
}

/// Who supervises a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Started {
    /// The supervisor.
    pub pid: i32,
    /// The mount namespace of all that belongs to the job, by its inode.
    pub namespace: u64,
}

/// What the supervisor says once it can.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The commands run.
    Started(Started),
    /// They don't, and why.
    Failed(String),
}

/// Does what it is told on its standard input.
pub fn run() -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    rustix::thread::set_name(c"bdnfs-launch").context("cannot name the process")?;
    let lock = inherited()?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the order")?;
    if !line.ends_with('\n') {
        bail!("the order broke off");
    }
    let order: Order = serde_json::from_str(&line).context("the order is not one")?;
    drop(line);
    let prepared = prepare(&order, lock);
    let answer = match &prepared {
        Ok((_, started)) => Answer::Started(started.clone()),
        Err(error) => Answer::Failed(text::line(error.as_ref())),
    };
    // Whoever asked may have gone: what has begun goes on.
    let _ = writeln!(std::io::stdout(), "{}", serde_json::to_string(&answer)?);
    let (home, _) = prepared?;
    let exit = supervise::run(&order, &home)?;
    home.write(ENDED, &exit)
}

/// The lock of the job, which came as the standard error; from here on that is nothing.
fn inherited() -> Result<File> {
    let lock = std::io::stderr().as_fd().try_clone_to_owned().context("cannot keep the lock")?;
    let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stderr(&null).context("cannot let stderr go")?;
    Ok(lock.into())
}

/// All that must be so before the first command: the sources are in their places, and it is
/// written down who this is.
fn prepare(order: &Order, lock: File) -> Result<(Home, Started)> {
    let home = Home::open(&order.directory, lock)?;
    rustix::process::set_child_subreaper(rustix::process::getpid().into())
        .context("cannot become the parent of orphans")?;
    rustix::process::umask(Mode::from_bits_truncate(order.umask));
    namespace::enter(&order.sources, &order.jobs, &order.directory.join(SCRATCH))?;
    let workdir = order.workdir.display();
    std::env::set_current_dir(&order.workdir)
        .with_context(|| format!("cannot run in the directory {workdir}"))?;
    let started = Started { pid: std::process::id() as i32, namespace: namespace::number("self")? };
    home.write(STARTED, &started)?;
    Ok((home, started))
}

/// The job's own directory, held open: a source may hide its path.
#[derive(Debug)]
pub struct Home {
    directory: File,
    _lock: File,
}

impl Home {
    fn open(path: &Path, lock: File) -> Result<Self> {
        let directory = File::open(path);
        let directory = directory.with_context(|| format!("cannot use the directory {}", path.display()))?;
        Ok(Self { directory, _lock: lock })
    }

    /// A path that leads there whatever is mounted where.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }

    /// Writes a file that is there whole, and durably, or not at all.
    fn write(&self, name: &str, what: &impl Serialize) -> Result<()> {
        let write = || {
            let mut draft = NamedTempFile::new_in(self.path())?;
            serde_json::to_writer(&mut draft, what)?;
            draft.as_file().sync_all()?;
            draft.persist(self.path().join(name)).map_err(|e| e.error)?;
            self.directory.sync_all()
        };
        write().with_context(|| format!("cannot write {name}"))
    }
}

/// Locks the job in `directory` for the supervisor that is about to be started: whoever looks finds it supervised from then
/// on, and never between two of its moments.
pub fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let lock = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .context("somebody supervises this job already")?;
    Ok(lock)
}

/// Whether a supervisor of the job in `directory` lives.
pub fn is_supervised(directory: &Path) -> bool {
    let Ok(lock) = File::open(directory.join(LOCK)) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Who supervises, or supervised, the job in `directory`, if its commands were ever begun.
pub fn started(directory: &Path) -> Option<Started> {
    read(&directory.join(STARTED))
}

/// How the job in `directory` ended, if that was written down.
pub fn ended(directory: &Path) -> Option<JobExit> {
    read(&directory.join(ENDED))
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Kills what is left of a job whose supervisor was killed: all that lives in its mount namespace.
pub fn kill_rest(started: &Started) {
    for pid in namespace::members(started.namespace) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
