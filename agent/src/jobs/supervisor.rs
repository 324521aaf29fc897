//! `bdnfs launch`: the supervisor of one job, a process of its own.
//!
//! The agent starts it when all that the job reads is local. It reads one [`SupervisorOrder`] from its standard input, after the
//! mount points that it is to unmount when there comes none, makes the mount namespace in which the job's sources lie where
//! the job expects them (`namespace`), runs the job's
//! `commands` in it, keeps what they print (`log`), and writes down how they ended. It needs the agent for nothing of
//! that: one that crashes finds the job again by the lock that this process holds, and by what it left in the job's
//! directory. Every process that the commands start stays below this one, however it detaches itself, and ends with the job
//! (`processes`). A job without an agent is attached to the command that runs it: its supervisor is there before its first
//! mount, and when that command is gone, it kills the job's commands. A second process like it then unmounts their sources:
//! it gets no order, and stays in the namespace of the host until that command has unmounted them, or is gone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::Result;
use bdnfs::source::{Secret, SecretJsonError};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::api::job::JobExit;
use crate::context::Context;
use crate::durable::{drop_spare, keep_spare, write_json_with_spare};
use crate::{runtime, volumes};

mod commands;
pub mod log;
mod mount_point;
mod namespace;
mod processes;
mod written_files;

use namespace::HiddenPlaces;
pub use namespace::{TMPFS_OVERLAY_BYTES, check_places};

/// The file that the supervisor holds locked as long as it lives.
const LOCK_FILE: &str = "lock";
/// The file that it holds locked until it ends the commands, or they have ended.
const COMMANDS_LOCK_FILE: &str = "commands.lock";
/// The file with its [`SupervisorInfo`].
const STARTED_FILE: &str = "started.json";
/// The file with the [`CommandsEnd`].
const ENDED_FILE: &str = "ended.json";
/// The directory on which the root of the job's mount namespace is put together.
pub const ROOT_DIRECTORY: &str = "root";

/// The time that killed processes may take to vanish: one that waits for a broken disk may never.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which killed processes are looked for.
const KILL_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The order of a supervisor. It travels over a pipe, for there are secrets in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct SupervisorOrder {
    /// The job's own directory.
    pub directory: PathBuf,
    /// The directory of all jobs, whose other mounts this job's processes don't see.
    pub jobs: PathBuf,
    /// Bind mounts of the job: a mounted source, and the absolute path where the job sees it.
    pub sources: Vec<(PathBuf, PathBuf)>,
    /// The volumes of the job.
    pub volume: VolumeBinds,
    /// The commands, one after the other, each for a shell of its own.
    pub commands: Vec<String>,
    /// The whole environment of the commands.
    pub environment: BTreeMap<String, Secret>,
    /// The working directory of the commands.
    pub workdir: PathBuf,
    /// The umask of the commands.
    pub umask: u32,
    /// The grace period between SIGTERM and SIGKILL, in seconds.
    pub grace: u64,
    /// Whether the job ends when the other end of the standard input is closed.
    pub attached: bool,
}

/// The part of all volumes that a job sees.
#[derive(Debug, Serialize, Deserialize)]
pub struct VolumeBinds {
    /// The directory of all volumes, which the job doesn't see.
    pub root: PathBuf,
    /// The directory of homes that other nodes share, which the job doesn't see either.
    #[serde(default)]
    pub shared_root: Option<PathBuf>,
    /// The directory of the job's own volume, locked as long as the job lives.
    pub own: PathBuf,
    /// The directories or files of the caches that it shares with others, locked likewise.
    #[serde(default)]
    pub shared: Vec<PathBuf>,
    /// Writable bind mounts: a directory of those, and the absolute path where the job sees it.
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// The path at which the job sees its checkpoint directory, if it has one.
    #[serde(default)]
    pub checkpoints: Option<PathBuf>,
}

/// The supervisor of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SupervisorInfo {
    /// The process id.
    pub pid: i32,
    /// The mount namespace of all that belongs to the job, by its inode.
    pub namespace: u64,
    /// The id of that namespace, which no later one has. Unknown for one of an older release, and before Linux 6.11.
    #[serde(default)]
    pub namespace_id: Option<u64>,
    /// The directories whose new entries live in memory, for the job alone.
    #[serde(default)]
    pub covered: Vec<PathBuf>,
    /// The mount locations in its training caches that hide files of these.
    #[serde(default)]
    pub hiding: Vec<PathBuf>,
    /// The boot in which it ran: in another one its numbers are somebody else's. Unknown for one of an older release.
    #[serde(default)]
    pub boot: Option<String>,
    /// The directory of the job's own volume. Unknown for one of an older release.
    #[serde(default)]
    pub volume: Option<PathBuf>,
}

impl SupervisorInfo {
    /// Whether the machine was started anew since it ran.
    pub fn is_of_earlier_boot(&self) -> bool {
        let is_other = |boot: &String| bdnfs::boot::id_line().is_ok_and(|now| now != *boot);
        self.boot.as_ref().is_some_and(is_other)
    }
}

/// The supervisor's answer to its order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SupervisorReply {
    /// The commands run.
    Started(SupervisorInfo),
    /// The commands could not be started, and why.
    Failed(String),
}

/// Carries out the order on its standard input.
///
/// # Errors
/// Those that are also the answer; and those of writing how the commands ended.
pub fn run() -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    let prepared = receive_and_prepare();
    let reply = match &prepared {
        Ok(Some(prepared)) => SupervisorReply::Started(prepared.started.clone()),
        Ok(None) => return Ok(()),
        Err(error) => SupervisorReply::Failed(error.to_string()),
    };
    // The caller may be gone: the job continues.
    let reply = serde_json::to_string(&reply).context("cannot write the reply")?;
    let _ = writeln!(std::io::stdout(), "{reply}");
    let Some(PreparedJob { order, directory, .. }) = prepared? else { return Ok(()) };
    let end = commands::run(&order, &directory)?;
    directory.write(ENDED_FILE, &end)?;
    // Nothing more is written there that cannot be missed.
    drop_spare(&directory.path());
    Ok(())
}

/// A job whose commands are about to run.
struct PreparedJob {
    order: SupervisorOrder,
    directory: JobDirectory,
    started: SupervisorInfo,
}

/// Receives the order on the standard input, and prepares its commands. `None` where there comes none; then what this process
/// guards is unmounted.
fn receive_and_prepare() -> Result<Option<PreparedJob>> {
    runtime::set_process_name(c"bdnfs-launch")?;
    let lock = take_lock()?;
    let guarded: Vec<PathBuf> = receive()?.unwrap_or_default();
    let Some(order) = receive::<SupervisorOrder>()? else {
        guarded.iter().for_each(|mountpoint| namespace::detach(mountpoint));
        return Ok(None);
    };
    let (directory, started) = prepare(&order, lock)?;
    Ok(Some(PreparedJob { order, directory, started }))
}

/// Receives one line of JSON from the standard input; `None` if the sender is gone.
fn receive<T: DeserializeOwned>() -> Result<Option<T>> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the job's start request")?;
    if !line.ends_with('\n') {
        return Ok(None);
    }
    let received = serde_json::from_str(&line).map_err(SecretJsonError::from);
    received.map(Some).context("the job's start request is invalid")
}

/// The lock of the job, which is the standard error at first; then that is /dev/null.
fn take_lock() -> Result<File> {
    let lock = std::io::stderr().as_fd().try_clone_to_owned().context("cannot keep the lock")?;
    let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stderr(&null).context("cannot replace stderr")?;
    Ok(lock.into())
}

/// Prepares the commands: puts the sources in their places, and records which process this is.
fn prepare(order: &SupervisorOrder, lock: File) -> Result<(JobDirectory, SupervisorInfo)> {
    let mut locks = vec![lock];
    for volume in std::iter::once(&order.volume.own).chain(&order.volume.shared) {
        let locked = volumes::lock(volume, FlockOperation::NonBlockingLockShared);
        locks.push(locked.with_context(|| format!("cannot lock the volume {}", volume.display()))?);
    }
    let directory = JobDirectory::open(&order.directory, locks)?;
    rustix::process::set_child_subreaper(rustix::process::getpid().into())
        .context("cannot become a child subreaper")?;
    rustix::process::umask(Mode::from_bits_truncate(order.umask));
    let HiddenPlaces { covered, hiding } =
        namespace::enter(&order.sources, &order.volume, &order.jobs, &order.directory.join(ROOT_DIRECTORY))?;
    let workdir = order.workdir.display();
    std::env::set_current_dir(&order.workdir)
        .with_context(|| format!("cannot run in the directory {workdir}"))?;
    let (namespace, namespace_id) = (namespace::number("self")?, namespace::unique_id("self"));
    let (pid, boot) = (std::process::id() as i32, bdnfs::boot::id_line().ok());
    let volume = Some(order.volume.own.clone());
    let started = SupervisorInfo { pid, namespace, namespace_id, covered, hiding, boot, volume };
    directory.write(STARTED_FILE, &started)?;
    Ok((directory, started))
}

/// The job's own directory, held open: a source may hide its path.
#[derive(Debug)]
pub struct JobDirectory {
    directory: File,
    commands_lock: File,
    _locks: Vec<File>,
}

impl JobDirectory {
    fn open(path: &Path, locks: Vec<File>) -> Result<Self> {
        let directory = File::open(path);
        let directory = directory.with_context(|| format!("cannot open the directory {}", path.display()))?;
        // How the commands end is written down however full the disk is by then.
        keep_spare(path);
        Ok(Self { directory, commands_lock: lock_file(path, COMMANDS_LOCK_FILE)?, _locks: locks })
    }

    /// Lets everybody see that the commands are about to be ended, or have ended: what a process closes from now on may be half
    /// written.
    fn release_commands_lock(&self) {
        // Unlike a new file, that needs no space on the disk. It fails for a file that is not open.
        let _ = rustix::fs::flock(&self.commands_lock, FlockOperation::Unlock);
    }

    /// A path that leads there whatever is mounted where.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }

    /// Writes a file that is there whole, and durably, or not at all.
    fn write(&self, name: &str, what: &impl Serialize) -> Result<()> {
        write_json_with_spare(&self.path(), name, what).with_context(|| format!("cannot write {name}"))
    }
}

/// Locks the job in `directory` for the supervisor that is about to be started, so that it counts as supervised from then
/// on.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk), also where it has a supervisor already.
pub fn lock(directory: &Path) -> Result<File> {
    lock_file(directory, LOCK_FILE)
}

fn lock_file(directory: &Path, name: &str) -> Result<File> {
    let create = OFlags::WRONLY | OFlags::CREATE;
    let lock = CacheDirectory::open(directory)?.file(name, create);
    let lock = lock.with_context(|| format!("cannot create {}", directory.join(name).display()))?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .context("this job has a supervisor already")?;
    Ok(lock)
}

/// The files in the job's `directory` that its supervisor holds locked, as long as it lives and until it ends the commands, and the
/// one with the exit of these.
pub fn lock_and_exit_files(directory: &Path) -> (PathBuf, PathBuf, PathBuf) {
    (directory.join(LOCK_FILE), directory.join(COMMANDS_LOCK_FILE), directory.join(ENDED_FILE))
}

/// Whether a supervisor of the job in `directory` lives.
pub fn is_supervised(directory: &Path) -> bool {
    volumes::is_locked(&directory.join(LOCK_FILE))
}

/// Reads which supervisor the job in `directory` has or had; `None` where its commands were never started.
pub fn read_info(directory: &Path) -> Option<SupervisorInfo> {
    read(&directory.join(STARTED_FILE))
}

/// Reads the exit of the commands of the job in `directory`; `None` where its supervisor did not write one.
pub fn read_exit(directory: &Path) -> Option<JobExit> {
    read(&directory.join(ENDED_FILE))
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Kills what is left of a job whose supervisor was killed, all that lives in its mount namespace, and waits until it is gone.
pub fn kill_rest(supervisor: &SupervisorInfo) {
    if supervisor.is_of_earlier_boot() {
        return;
    }
    let begin = Instant::now();
    while begin.elapsed() < KILL_TIMEOUT {
        if namespace::kill_members(supervisor.namespace, supervisor.namespace_id) == 0 {
            return;
        }
        // Others may have been started meanwhile.
        std::thread::sleep(KILL_POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;
    use crate::durable::tests::{fill, mount_small_disk};

    #[test]
    fn exit_of_commands_that_filled_the_disk_is_written() {
        let home = tempfile::tempdir().unwrap();
        if !mount_small_disk(home.path()) {
            return;
        }
        let directory = JobDirectory::open(home.path(), Vec::new()).unwrap();
        fill(home.path());
        let exit = JobExit { code: Some(3), ..JobExit::default() };
        directory.write(ENDED_FILE, &exit).unwrap();
        assert_eq!(read_exit(home.path()), Some(exit));
    }

    /// A process in a mount namespace of its own; `None` where none can be made.
    fn process_in_namespace() -> Option<Child> {
        let mut child = Command::new("unshare").args(["--mount", "sleep", "1000"]).spawn().ok()?;
        let (own, pid) = (namespace::number("self").unwrap(), child.id().to_string());
        while namespace::number(&pid).is_ok_and(|number| number == own) {
            if child.try_wait().unwrap().is_some() {
                return None;
            }
            std::thread::sleep(KILL_POLL_INTERVAL);
        }
        Some(child)
    }

    /// Makes the information that a supervisor in the namespace of `child` leaves.
    fn info(child: &Child) -> SupervisorInfo {
        let pid = child.id().to_string();
        let (namespace, namespace_id) = (namespace::number(&pid).unwrap(), namespace::unique_id(&pid));
        let (covered, hiding, boot) = (Vec::new(), Vec::new(), bdnfs::boot::id_line().ok());
        SupervisorInfo { pid: 0, namespace, namespace_id, covered, hiding, boot, volume: None }
    }

    fn assert_killed(mut child: Child) {
        kill_rest(&info(&child));
        // A zombie has no namespace.
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn kill_rest_spares_processes_of_another_boot() {
        let Some(mut child) = process_in_namespace() else { return };
        kill_rest(&SupervisorInfo { boot: Some("another".to_owned()), ..info(&child) });
        assert!(child.try_wait().unwrap().is_none(), "it is not of the job");
        assert_killed(child);
    }

    #[test]
    fn kill_rest_spares_processes_of_a_later_namespace_with_the_same_number() {
        let (Some(ended), Some(mut later)) = (process_in_namespace(), process_in_namespace()) else { return };
        // The kernel gives it that number as soon as the first one is gone.
        let left = SupervisorInfo { namespace: info(&later).namespace, ..info(&ended) };
        if left.namespace_id.is_some() {
            kill_rest(&left);
            assert!(later.try_wait().unwrap().is_none(), "it is not of the job");
        }
        assert_killed(ended);
        assert_killed(later);
    }
}
