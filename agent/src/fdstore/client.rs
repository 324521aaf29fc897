//! The agent's end of the fd store: what it gives to it, and what it finds there.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::error::{Error, Kind, Result};
use bdnfs_fs::handover::MountDescriptors;
use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, shutdown,
    socket_with,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::invalidations::PendingInvalidations;
use super::lock::FdStoreLock;
use super::wire::{self, Message, VERSION};
use super::{FDSTORE_ANSWER_TIMEOUT, HEARTBEAT_INTERVAL, note};
use crate::api::socket;
use crate::cache;
use crate::context::Context;

/// The time that a killed fd store may take to be gone, when the agent starts.
const FDSTORE_KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// The time that mounts and unmounts wait for an fd store to end, or to accept: it is tried again.
const FDSTORE_RETRY_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of heartbeats in a row that may find the connection full: for half a minute the fd store has received nothing.
const REFUSED_HEARTBEATS_LIMIT: u32 = 15;
/// The time that an fd store that runs as a service may take to be there: after a boot it starts beside the agent.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval at which the service is tried.
const SERVICE_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The number of agents that may wait to be accepted: there is one at a time.
const LISTEN_BACKLOG: i32 = 4;

/// The fd store of a cache, as its agent sees it.
#[derive(Debug)]
pub struct FdStore {
    cache: PathBuf,
    pub(super) lock: FdStoreLock,
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
        let store = Self::new(cache, None, hold);
        let Err(owner) = store.lock.take()? else { return Ok((store, Vec::new())) };
        let stored = match store.take_all() {
            Ok((socket, stored)) => {
                store.link.send_replace(Some(Arc::new(socket)));
                stored
            }
            // Most likely it held nothing any more.
            Err(error) if has_ended(&error) && store.lock.take_within(FDSTORE_RETRY_TIMEOUT)?.is_ok() => {
                tracing::info!(
                    "the fd store (process {owner}) ended just now: {error}; mounts that it still had are mounted again"
                );
                Vec::new()
            }
            Err(error) => {
                tracing::error!("the mounts that the fd store (process {owner}) has are lost: {error}");
                store.lock.kill_owner(&owner, FDSTORE_KILL_TIMEOUT)?;
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
        let store = Self::new(Path::new(""), Some(socket), hold);
        let (socket, stored) = store.await_service()?;
        store.link.send_replace(Some(Arc::new(socket)));
        Ok((store, stored))
    }

    /// The fd store of the cache in the directory `cache` for an agent whose mounts end with it: it holds nothing. It does not
    /// run yet.
    pub(super) fn empty(cache: &Path) -> Self {
        Self::new(cache, None, Duration::ZERO)
    }

    fn new(cache: &Path, service: Option<&Path>, hold: Duration) -> Self {
        let (link, child, pending) = Default::default();
        let service = service.map(Path::to_owned);
        Self { cache: cache.into(), lock: FdStoreLock::new(cache), service, hold, link, child, pending }
    }

    /// Receives all that an fd store has that runs as a service, as soon as that is there.
    fn await_service(&self) -> Result<(OwnedFd, Vec<StoredMount>)> {
        let begin = Instant::now();
        loop {
            match self.take_all() {
                Ok(done) => return Ok(done),
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                        && begin.elapsed() < SERVICE_TIMEOUT =>
                {
                    std::thread::sleep(SERVICE_POLL_INTERVAL);
                }
                Err(error) => return Err(self.no_service(error)),
            }
        }
    }

    fn no_service(&self, error: io::Error) -> Error {
        let at = self.socket().display().to_string();
        let text = format!("no fd store answers at {at}; start it: bdnfs fdstore --listen {at}");
        Error::with(Kind::Unavailable, text, error)
    }

    /// Whether there is an fd store that holds mounts for this agent.
    pub fn is_enabled(&self) -> bool {
        !self.hold.is_zero()
    }

    /// Stores the mount `id`: its `request` with its secrets as JSON, and its descriptors. Starts the fd store, or connects to the
    /// service, where there is no connection. Returns the connection: the fd store has the mount while that is the
    /// [current](Self::is_current) one. Blocks.
    ///
    /// # Errors
    /// [`Kind::Disk`], [`Kind::Timeout`], [`Kind::Unavailable`]: then it is to be [connected](Self::connect_or_start) again.
    pub fn put(&self, id: u64, request: String, descriptors: &MountDescriptors) -> Result<Arc<OwnedFd>> {
        let mut child = self.child.lock();
        let link = self.link_or_start(&mut child)?;
        let (note, file) = note::pack(request).context("cannot store the request")?;
        let descriptors: Vec<_> = descriptors.iter().chain(file.as_ref().map(AsFd::as_fd)).collect();
        send(&link, &Message::Keep { id, note }, &descriptors).context("cannot send to the fd store")?;
        Ok(link)
    }

    /// Whether `link` is the connection to the fd store still: it was not lost.
    pub fn is_current(&self, link: &Arc<OwnedFd>) -> bool {
        self.link.borrow().as_ref().is_some_and(|now| Arc::ptr_eq(now, link))
    }

    /// Starts an fd store where there is none, or connects to the service. Blocks, for a moment.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn connect_or_start(&self) -> Result<()> {
        self.link_or_start(&mut self.child.lock()).map(drop)
    }

    fn link_or_start(&self, child: &mut Option<Child>) -> Result<Arc<OwnedFd>> {
        let link = self.link.borrow().clone();
        link.map_or_else(|| self.start(child).map_err(|e| e.context("cannot start the fd store")), Ok)
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
        link.is_some_and(|link| send(&link, message, descriptors).is_ok())
    }

    /// Sends the fd store a heartbeat at each interval, and gives up one that has received nothing for half a minute. Never ends.
    pub async fn send_heartbeats(&self) {
        let mut refused = 0;
        loop {
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            let link = self.link.borrow().clone();
            // A message that is being sent counts as a heartbeat.
            let (Some(link), Some(_turn)) = (link, self.child.try_lock()) else { continue };
            let sent = wire::try_send(link.as_fd(), &self.greeting());
            refused =
                if sent.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) { refused + 1 } else { 0 };
            if refused >= REFUSED_HEARTBEATS_LIMIT {
                refused = 0;
                give_up(&link);
            }
        }
    }

    fn greeting(&self) -> Message {
        Message::Hello { version: VERSION, hold: self.hold.as_secs(), beats: self.is_enabled() }
    }

    /// Waits until there was an fd store and it has ended: then nothing is stored. Dropping the future forgets nothing.
    pub async fn await_loss(&self) {
        let mut links = self.link.subscribe();
        // The sender lives as long as `self`.
        let link = links.wait_for(Option::is_some).await.ok().and_then(|link| link.clone());
        let watched = link.as_ref().and_then(|link| link.try_clone().ok());
        if let Some(watched) = watched {
            // SAFETY: what an `OwnedFd` stands for stays the same and open for as long as it lives, and it moves in here.
            let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
            if let Ok(watched) = watched {
                self.pending.receive_until_end(&watched).await;
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
    }

    fn socket(&self) -> PathBuf {
        self.service.clone().unwrap_or_else(|| self.cache.join("holder.sock"))
    }

    /// Connects to the fd store, and says that there is an agent.
    fn connect(&self) -> io::Result<OwnedFd> {
        let socket = new_socket()?;
        // One that does not accept is tried again.
        set_socket_timeout(&socket, Timeout::Send, Some(FDSTORE_RETRY_TIMEOUT))?;
        connect(&socket, &SocketAddrUnix::new(self.socket())?)?;
        set_socket_timeout(&socket, Timeout::Send, Some(FDSTORE_ANSWER_TIMEOUT))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(FDSTORE_ANSWER_TIMEOUT))?;
        wire::send(socket.as_fd(), &self.greeting(), &[])?;
        Ok(socket)
    }

    /// Receives all that the fd store has, which keeps it too.
    fn take_all(&self) -> io::Result<(OwnedFd, Vec<StoredMount>)> {
        let socket = self.connect()?;
        // One that a signal has stopped would never answer.
        self.continue_process(Some(&socket));
        wire::send(socket.as_fd(), &Message::Give, &[])?;
        let mut stored = Vec::new();
        loop {
            match wire::receive(socket.as_fd())?.ok_or_else(|| io::Error::other("it has ended"))? {
                (Message::Keep { id, note }, mut descriptors) => {
                    let request = note::unpack(note, &mut descriptors)?;
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

    /// Starts an fd store, in the place of one that hangs, or connects to the service.
    fn start(&self, child: &mut Option<Child>) -> Result<Arc<OwnedFd>> {
        if self.service.is_some() {
            let link = Arc::new(self.connect().map_err(|error| self.no_service(error))?);
            self.link.send_replace(Some(Arc::clone(&link)));
            return Ok(link);
        }
        if let Some(mut before) = child.take() {
            // The lock tells more: without a link to it, it has ended or is about to.
            let _ = before.try_wait();
        }
        let lock = match self.lock.take_within(FDSTORE_RETRY_TIMEOUT)? {
            Ok(lock) => lock,
            // A watcher must not end what holds the mounts of others.
            Err(owner) if !self.is_enabled() => return Err(not_ours(&owner)),
            // This agent has all that it holds.
            Err(owner) => self.lock.kill_owner(&owner, FDSTORE_RETRY_TIMEOUT)?,
        };
        let (listener, link) = self.listen().with_context(|| self.socket().display().to_string())?;
        let log = cache::open_log(&self.cache)?;
        let spawn = || {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("bdnfs").arg("fdstore-process").env_clear().current_dir("/");
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
}

/// Sends a message; an fd store that does not receive it is given up.
fn send(link: &OwnedFd, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let sent = wire::send(link.as_fd(), message, descriptors);
    if sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        give_up(link);
    }
    sent
}

/// Ends the connection to an fd store that hangs: it is [lost](FdStore::await_loss). What it has received it keeps.
fn give_up(link: &OwnedFd) {
    tracing::warn!("the fd store does not respond");
    // Fails only where it has ended.
    let _ = shutdown(link, Shutdown::Both);
}

/// Whether the process at the other end had ended before it was connected, or did without an answer.
fn has_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe
    )
}

fn not_ours(owner: &str) -> Error {
    Error::new(Kind::Busy, format!("the fd store of another agent (process {owner}) has the cache"))
}

/// Listens at `path`, in the place of a socket that was left behind.
pub(super) fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    socket::check_length(path)?;
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
mod tests;
