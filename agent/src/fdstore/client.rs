//! The agent's end of the fd store: what it gives to it, and what it finds there.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::{Error, Kind, Result};
use bdnfs_fs::handover::MountDescriptors;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::invalidations::PendingInvalidations;
use super::wire::{self, Message, VERSION};
use super::{FDSTORE_ANSWER_TIMEOUT, HEARTBEAT_INTERVAL};
use crate::cache;
use crate::context::Context;

/// The file that the fd store holds locked, in the cache directory.
const FDSTORE_LOCK_FILE: &str = "holder.lock";
/// How long an fd store that was killed may take to be gone.
const FDSTORE_KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a killed fd store is looked for.
const FDSTORE_KILL_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The pause before an fd store is started again: one that dies at once is not started over and over.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// How long an fd store that runs as a service may take to be there: after a boot it starts beside the agent.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the service is tried.
const SERVICE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How many agents may wait to be let in: there is one at a time.
const LISTEN_BACKLOG: i32 = 4;

/// The fd store of a cache, as its agent sees it.
#[derive(Debug)]
pub struct FdStore {
    cache: PathBuf,
    /// The socket of an fd store that runs as a service, which this agent does not start.
    pub(super) service: Option<PathBuf>,
    hold: Duration,
    /// The connection to it, while there is one.
    pub(super) link: watch::Sender<Option<Arc<OwnedFd>>>,
    /// The connection: one message at a time, and one process.
    child: Mutex<Option<Child>>,
    /// The invalidations that it was asked for.
    pub(super) pending: PendingInvalidations,
}

/// A mount that the fd store has.
#[derive(Debug)]
pub struct StoredMount {
    /// The id of the mount.
    pub id: u64,
    /// The request of the mount with its secrets, as JSON.
    pub request: String,
    /// The descriptors of the mount.
    pub descriptors: MountDescriptors,
}

impl FdStore {
    /// The fd store of the cache in the directory `cache`, whose lock the caller has, and what an earlier agent left there.
    /// Without an agent it holds mounts for as long as `hold`; with 0 it holds nothing at all. Blocks for
    /// at most some ten seconds.
    ///
    /// # Errors
    /// [`Kind::Disk`]; [`Kind::Timeout`] where an fd store that does not answer can't be killed.
    pub fn find(cache: &Path, hold: Duration) -> Result<(Self, Vec<StoredMount>)> {
        let (link, child, pending) = Default::default();
        let store = Self { cache: cache.into(), service: None, hold, link, child, pending };
        let Err(owner) = store.lock()? else { return Ok((store, Vec::new())) };
        let stored = match store.take_all() {
            Ok((socket, stored)) => {
                store.link.send_replace(Some(Arc::new(socket)));
                stored
            }
            Err(error) => {
                tracing::error!("the mounts that the fd store (process {owner}) has are lost: {error}");
                store.kill(&owner)?;
                Vec::new()
            }
        };
        Ok((store, stored))
    }

    /// The fd store that runs as a service and listens at `socket`, and what an earlier agent left there. Blocks until it is there,
    /// for at most half a minute.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] where it does not answer.
    pub fn find_service(socket: &Path, hold: Duration) -> Result<(Self, Vec<StoredMount>)> {
        let (link, child, pending) = Default::default();
        let store = Self { cache: PathBuf::new(), service: Some(socket.into()), hold, link, child, pending };
        let (socket, stored) = store.await_service(|| store.take_all())?;
        store.link.send_replace(Some(Arc::new(socket)));
        Ok((store, stored))
    }

    /// Does `work` with an fd store that runs as a service, as soon as that is there.
    fn await_service<T>(&self, work: impl Fn() -> io::Result<T>) -> Result<T> {
        let begin = Instant::now();
        loop {
            match work() {
                Ok(done) => return Ok(done),
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                        && begin.elapsed() < SERVICE_TIMEOUT =>
                {
                    std::thread::sleep(SERVICE_POLL_INTERVAL);
                }
                Err(error) => {
                    let at = self.socket().display().to_string();
                    let text = format!("no fd store answers at {at}; start it: bdnfs fdstore --listen {at}");
                    return Err(Error::with(Kind::Unavailable, text, error));
                }
            }
        }
    }

    /// Whether there is an fd store that holds mounts for this agent.
    pub fn is_enabled(&self) -> bool {
        !self.hold.is_zero()
    }

    /// Stores the mount `id`: its `request` with its secrets as JSON, and its descriptors. Starts the fd store where there
    /// is none. Blocks.
    ///
    /// # Errors
    /// [`Kind::Disk`], [`Kind::Timeout`].
    pub fn put(&self, id: u64, request: String, descriptors: &MountDescriptors) -> Result<()> {
        let mut child = self.child.lock();
        let link = self.link.borrow().clone();
        let link = match link {
            Some(link) => link,
            None => self.start(&mut child).map_err(|e| e.context("cannot start the fd store"))?,
        };
        let descriptors: Vec<_> = descriptors.iter().collect();
        wire::send(link.as_fd(), &Message::Keep { id, note: request }, &descriptors)
            .context("cannot send to the fd store")
    }

    /// Removes the mount `id`.
    pub fn remove(&self, id: u64) {
        // Without an fd store there is nothing to remove.
        self.send(&Message::Forget { id }, &[]);
    }

    /// Sends a message without an answer. False where there is no fd store.
    pub(super) fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        let link = self.link.borrow().clone();
        let _one_at_a_time = self.child.lock();
        link.is_some_and(|link| wire::send(link.as_fd(), message, descriptors).is_ok())
    }

    /// Sends the fd store a heartbeat at each interval. Never ends.
    pub async fn send_heartbeats(&self) {
        loop {
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            let link = self.link.borrow().clone();
            // A message that is being sent counts as a heartbeat.
            if let (Some(link), Some(_turn)) = (link, self.child.try_lock()) {
                let _ = wire::send(link.as_fd(), &self.greeting(), &[]);
            }
        }
    }

    fn greeting(&self) -> Message {
        Message::Hello { version: VERSION, hold: self.hold.as_secs(), beats: true }
    }

    /// Waits until there was an fd store and it has ended: then nothing is stored.
    pub async fn lost(&self) {
        let mut links = self.link.subscribe();
        // The sender lives as long as `self`.
        let link = links.wait_for(Option::is_some).await.ok().and_then(|link| link.clone());
        let watched = link.as_ref().and_then(|link| link.try_clone().ok());
        if let Some(watched) = watched {
            // SAFETY: what an `OwnedFd` stands for stays the same and open for as long as it lives, and it moves in here.
            let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
            if let Ok(watched) = watched {
                self.receive_until_end(&watched).await;
            }
        }
        self.pending.give_up_all();
        self.link.send_if_modified(|now| {
            let same = now.as_ref().zip(link.as_ref()).is_some_and(|(now, link)| Arc::ptr_eq(now, link));
            if same {
                *now = None;
            }
            same
        });
        tokio::time::sleep(RESTART_PAUSE).await;
    }

    /// The lock, if it is free; else the process id that its owner wrote there.
    pub(super) fn lock(&self) -> Result<std::result::Result<File, String>> {
        let directory = CacheDirectory::open(&self.cache)?;
        let open = || {
            let mut lock = directory.file(FDSTORE_LOCK_FILE, OFlags::RDWR | OFlags::CREATE)?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Ok(lock)),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut owner = String::new();
                    lock.read_to_string(&mut owner)?;
                    Ok(Err(owner.trim().to_owned()))
                }
                Err(error) => Err(io::Error::from(error)),
            }
        };
        open().with_context(|| format!("cannot lock {}", self.cache.join(FDSTORE_LOCK_FILE).display()))
    }

    /// Waits until the lock is free.
    fn await_lock(&self) -> Result<File> {
        let begin = Instant::now();
        loop {
            match self.lock()? {
                Ok(lock) => return Ok(lock),
                Err(owner) if begin.elapsed() > FDSTORE_KILL_TIMEOUT => {
                    let text =
                        format!("the fd store of {} (process {owner}) does not end", self.cache.display());
                    return Err(Error::new(Kind::Timeout, text));
                }
                Err(_) => std::thread::sleep(FDSTORE_KILL_POLL_INTERVAL),
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.service.clone().unwrap_or_else(|| self.cache.join("holder.sock"))
    }

    /// Connects to the fd store, and says that there is an agent.
    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = new_socket()?;
        set_socket_timeout(&socket, Timeout::Send, Some(FDSTORE_ANSWER_TIMEOUT))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(FDSTORE_ANSWER_TIMEOUT))?;
        connect(&socket, &SocketAddrUnix::new(self.socket())?)?;
        wire::send(socket.as_fd(), &self.greeting(), &[])?;
        Ok(socket)
    }

    /// Receives all that the fd store has, which keeps it too.
    fn take_all(&self) -> io::Result<(OwnedFd, Vec<StoredMount>)> {
        let socket = self.connect()?;
        wire::send(socket.as_fd(), &Message::Give, &[])?;
        let mut stored = Vec::new();
        loop {
            match wire::receive(socket.as_fd())?.ok_or_else(|| io::Error::other("it has ended"))? {
                (Message::Keep { id, note: request }, descriptors) => {
                    let descriptors = MountDescriptors::new(descriptors);
                    let descriptors =
                        descriptors.ok_or_else(|| io::Error::other("descriptors are missing"))?;
                    stored.push(StoredMount { id, request, descriptors });
                }
                (Message::Done, _) => return Ok((socket, stored)),
                (message, _) => tracing::warn!("the fd store sent {message:?}, which was skipped"),
            }
        }
    }

    /// Starts an fd store, or waits for the service, and connects to it.
    fn start(&self, child: &mut Option<Child>) -> Result<Arc<OwnedFd>> {
        if self.service.is_some() {
            let link = Arc::new(self.await_service(|| self.connect())?);
            self.link.send_replace(Some(Arc::clone(&link)));
            return Ok(link);
        }
        if let Some(mut before) = child.take() {
            // The lock tells more: without a link to it, it has ended or is about to.
            let _ = before.try_wait();
        }
        let lock = self.await_lock()?;
        let (listener, link) = self.listen().with_context(|| self.socket().display().to_string())?;
        let log = cache::open_log(&self.cache)?;
        let spawn = || {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("bdnfs").arg("hold").env_clear().current_dir("/");
            command.stdin(Stdio::from(listener)).stdout(Stdio::from(lock.try_clone()?)).stderr(log);
            // The new fd store then writes its process id there.
            lock.set_len(0)?;
            command.spawn()
        };
        *child = Some(spawn().context("cannot start a process")?);
        let link = Arc::new(link);
        self.link.send_replace(Some(Arc::clone(&link)));
        Ok(link)
    }

    /// Listens for the fd store that is about to be started, and connects there.
    fn listen(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let listener = listen_at(&self.socket())?;
        Ok((listener, self.connect()?))
    }

    /// Kills an fd store that does not answer, so that no process waits for its mounts. `owner` is the process id
    /// that it has where it runs: in another container that is another process here, which is left alone.
    fn kill(&self, owner: &str) -> Result<()> {
        if let Some(process) = self.find_process(owner) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        } else if self.lock()?.is_err() {
            let cache = self.cache.display();
            let text = format!(
                "the fd store of {cache} (process {owner}) does not answer, and is not among the processes here: restart it where it runs"
            );
            return Err(Error::new(Kind::Timeout, text));
        }
        self.await_lock().map(drop)
    }

    /// The process with the id `pid`, if it is the fd store: its standard output is the locked file.
    pub(super) fn find_process(&self, pid: &str) -> Option<OwnedFd> {
        let id = Pid::from_raw(pid.parse().ok()?)?;
        // Opened first, so that the process that is checked is the one that is killed.
        let process = pidfd_open(id, PidfdFlags::empty()).ok()?;
        let file = |path: PathBuf| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let output = file(PathBuf::from(format!("/proc/{id}/fd/1")))?;
        (file(self.cache.join(FDSTORE_LOCK_FILE))? == output).then_some(process)
    }
}

/// Listens at `path`, in the place of a socket that was left behind.
pub(super) fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = new_socket()?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, LISTEN_BACKLOG)?;
    Ok(listener)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(cache: &Path) -> FdStore {
        let (link, child, pending) = Default::default();
        FdStore { cache: cache.into(), service: None, hold: Duration::from_secs(300), link, child, pending }
    }

    #[test]
    fn kill_with_a_reused_process_id_kills_nothing() {
        let cache = tempfile::tempdir().expect("a directory");
        let store = store(cache.path());
        let _lock = store.lock().expect("a lock").expect("free");
        let mut other = Command::new("sleep").arg("infinity").stdout(Stdio::null()).spawn().expect("sleep");
        let error = store.kill(&other.id().to_string()).expect_err("it is not the fd store");
        assert!(error.to_string().contains("restart it where it runs"), "{error}");
        assert!(other.try_wait().expect("a child").is_none(), "another process was killed");
        other.kill().expect("a child");
        other.wait().expect("a child");
    }

    #[test]
    fn kill_of_the_fdstore_frees_its_lock() {
        let cache = tempfile::tempdir().expect("a directory");
        let store = store(cache.path());
        let lock = store.lock().expect("a lock").expect("free");
        let mut owner = Command::new("sleep").arg("infinity").stdout(lock).spawn().expect("sleep");
        store.kill(&owner.id().to_string()).expect("killed");
        assert!(!owner.wait().expect("a child").success());
    }
}
