//! The fd store's own process: `bdnfs fdstore-process`, which an agent starts, and which writes its process id where its lock is;
//! or `bdnfs fdstore`, a service that agents connect to, and which stays when it holds nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bdnfs::error::{Error, Kind, Result};
use bdnfs_fs::handover::MountDescriptors;
use crossbeam::channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use rustix::process::Signal;

use super::FDSTORE_ANSWER_TIMEOUT;
use super::heartbeat::{Heartbeats, STOPPED_CHECK_INTERVAL, signal_peer};
use super::invalidator::{self, Invalidation};
use super::wire::{self, Message, VERSION};
use crate::context::Context;
use crate::{open_files, runtime, text};

/// The time in which the agent that started it must connect.
const FIRST_AGENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval at which a full queue is checked.
const FULL_QUEUE_INTERVAL: Duration = Duration::from_millis(10);

/// Runs an fd store: its standard input is the socket that it listens at, its standard output the locked file.
///
/// # Errors
/// [`Kind::Disk`] where the kernel has no thread or no poll for it.
pub fn run() -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    runtime::set_process_name(c"bdnfs-fdstore")?;
    writeln!(io::stdout(), "{}", std::process::id()).context("cannot tell that it runs")?;
    FdStoreProcess::new(false)?.serve()
}

/// Runs an fd store as a service: an agent connects to the socket at `path`, and so does the next one.
///
/// # Errors
/// [`Kind::Busy`] where another one listens there; [`Kind::Disk`].
pub fn run_service(path: &Path) -> Result<()> {
    let cannot = || format!("cannot listen at {}", path.display());
    open_files::raise_limit();
    // New files are for its user alone.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(cannot)?;
    }
    let lock = path.with_added_extension("lock");
    let lock = File::options().write(true).create(true).truncate(false).open(lock).with_context(cannot)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Err(Error::new(Kind::Busy, format!("another fd store listens at {}", path.display())));
    }
    // The same path as that of an fd store that an agent starts.
    let listener = super::client::listen_at(path).with_context(cannot)?;
    rustix::stdio::dup2_stdin(&listener).with_context(cannot)?;
    runtime::set_process_name(c"bdnfs-fdstore")?;
    tracing::info!(
        "bdnfs {} holds mounts for the agent that connects to {}",
        env!("CARGO_PKG_VERSION"),
        path.display()
    );
    FdStoreProcess::new(true)?.serve()
}

/// The process of an fd store, and the agent that is connected.
struct FdStoreProcess {
    store: HeldMounts,
    agent: Option<OwnedFd>,
    heartbeats: Heartbeats,
    /// When the last agent ended that had run for a while.
    alone_since: Instant,
    /// Whether it is a service, which goes on when it holds nothing.
    stays: bool,
}

/// The descriptors and mounts that the process keeps.
struct HeldMounts {
    mounts: BTreeMap<u64, HeldMount>,
    /// The hold time without an agent, once the first agent has sent it.
    hold: Option<Duration>,
    invalidations: Sender<Invalidation>,
}

/// A mount that the process holds.
struct HeldMount {
    /// The request with its secrets, as JSON.
    request: String,
    descriptors: MountDescriptors,
}

/// The events that `poll` reported.
#[derive(Default)]
struct PollEvents {
    /// The agent sent a message, or has ended.
    agent: bool,
    /// An agent connects.
    connection: bool,
    /// Mounts that have ended.
    ended: Vec<u64>,
}

impl FdStoreProcess {
    fn new(stays: bool) -> Result<Self> {
        let store = HeldMounts { mounts: BTreeMap::new(), hold: None, invalidations: invalidator::start()? };
        let now = Instant::now();
        Ok(Self { store, agent: None, heartbeats: Heartbeats::new(now), alone_since: now, stays })
    }

    fn serve(mut self) -> Result<()> {
        loop {
            let hold = self.store.hold.unwrap_or(FIRST_AGENT_TIMEOUT);
            let is_idle = self.stays && self.store.mounts.is_empty();
            let left = if is_idle { Duration::MAX } else { hold.saturating_sub(self.alone_since.elapsed()) };
            if self.agent.is_none() && left.is_zero() {
                let (seconds, mounts) =
                    (hold.as_secs(), text::count(self.store.mounts.len() as u64, "mount"));
                tracing::warn!("no agent connected for {seconds} s; ending {mounts}");
                if !self.stays {
                    return Ok(());
                }
                self.store.mounts.clear();
                continue;
            }
            let events = self.wait(left).context("cannot poll")?;
            for id in events.ended {
                self.store.mounts.remove(&id);
            }
            if events.agent {
                self.receive();
            } else {
                self.check_agent();
            }
            if events.connection {
                // The agent before it may have ended with mounts on their way to here.
                while self.has_message() {
                    self.receive();
                }
                self.accept();
            }
            let is_done = self.agent.is_none() && self.store.mounts.is_empty() && self.store.hold.is_some();
            if is_done && !self.stays {
                return Ok(());
            }
        }
    }

    fn wait(&self, left: Duration) -> io::Result<PollEvents> {
        let mut polled = vec![PollFd::from_borrowed_fd(listener(), PollFlags::IN)];
        let timeout = match &self.agent {
            Some(agent) if self.store.invalidations.is_full() => {
                // The end of the connection is reported all the same.
                polled.push(PollFd::new(agent, PollFlags::empty()));
                Some(FULL_QUEUE_INTERVAL)
            }
            Some(agent) => {
                polled.push(PollFd::new(agent, PollFlags::IN));
                Some(STOPPED_CHECK_INTERVAL)
            }
            None => {
                // Only without an agent: each request wakes the waiters for a mount's end.
                let devices = self.store.mounts.values().map(|entry| entry.descriptors.device());
                polled.extend(devices.map(|device| PollFd::from_borrowed_fd(device, PollFlags::empty())));
                Some(left)
            }
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(PollEvents::default()),
            Err(error) => return Err(error.into()),
        }
        let mut reported = polled.iter().map(|polled| !polled.revents().is_empty());
        let connection = reported.next().unwrap_or(false);
        let agent = self.agent.is_some() && reported.next().unwrap_or(false);
        let ended = self.store.mounts.keys().zip(reported).filter(|(_, ended)| *ended);
        let ended = ended.map(|(id, _)| *id).collect();
        Ok(PollEvents { agent, connection, ended })
    }

    /// Whether there is something to receive of the agent, be it that it has ended.
    fn has_message(&self) -> bool {
        let Some(agent) = &self.agent else { return false };
        let mut polled = [PollFd::new(agent, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Ends the connection to the agent, which hears of it though an invalidation in the queue has the descriptor, too.
    fn drop_agent(&mut self) {
        // Fails only where the agent has ended.
        let _ = self.agent.take().map(|agent| shutdown(agent, Shutdown::Both));
    }

    /// Receives one message of the agent, or that it has ended.
    fn receive(&mut self) {
        let Some(agent) = &self.agent else { return };
        let done = match wire::receive(agent.as_fd()) {
            Ok(Some((message, descriptors))) => {
                if let Message::Hello { beats, .. } = message {
                    self.heartbeats.record_greeting(Instant::now(), beats);
                }
                self.store.handle(agent, message, descriptors)
            }
            Ok(None) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the agent has ended")),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            if let count @ 1.. = self.store.mounts.len() as u64 {
                tracing::info!("keeping {} for the next agent: {error}", text::count(count, "mount"));
            }
            self.drop_agent();
            // Agents that die as soon as they have started must not keep requests waiting for ever.
            if self.heartbeats.is_running() {
                self.alone_since = Instant::now();
            }
            // Requests that it read and will not answer: their callers must not be stuck.
            for entry in self.store.mounts.values() {
                let _ = entry.descriptors.requeue_requests();
            }
        }
    }

    /// Continues an agent that is stopped; kills one that hangs, so that the next can have its cache. Its end is noticed as any
    /// other.
    fn check_agent(&mut self) {
        let Some(agent) = &self.agent else { return };
        if self.heartbeats.continue_if_stopped(agent) {
            tracing::warn!(
                "the agent was stopped by a signal and was continued: readers of its mounts waited for it"
            );
        }
        // The agent's messages are not received while the queue is full.
        if self.store.invalidations.is_full() || !self.heartbeats.count_missed(Instant::now()) {
            return;
        }
        self.heartbeats = Heartbeats::new(Instant::now());
        if signal_peer(agent, Signal::KILL) {
            tracing::warn!(
                "the agent sent no heartbeat for half a minute and was killed: the next one takes over"
            );
        } else {
            tracing::warn!("the agent sends no heartbeat, and cannot be killed from here: restart it");
        }
    }

    /// Accepts the next agent. The one before it has ended, since only one owns the cache.
    fn accept(&mut self) {
        match accept_with(listener(), SocketFlags::CLOEXEC) {
            Ok(agent) if wire::is_trusted(agent.as_fd()) => {
                // A slow agent must not hold up others.
                let _ = set_socket_timeout(&agent, Timeout::Send, Some(FDSTORE_ANSWER_TIMEOUT));
                self.drop_agent();
                self.agent = Some(agent);
                if self.store.mounts.is_empty() {
                    self.alone_since = Instant::now();
                }
                self.heartbeats = Heartbeats::new(Instant::now());
            }
            Ok(_) => tracing::warn!("rejected a connection of another user"),
            Err(error) => tracing::warn!("cannot accept a connection: {error}"),
        }
    }
}

impl HeldMounts {
    /// Handles one message of the agent.
    fn handle(&mut self, agent: &OwnedFd, message: Message, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match message {
            Message::Hello { version, hold, .. } => {
                self.hold = Some(Duration::from_secs(hold));
                // An agent of this version or an older one expects no answer.
                if version > VERSION {
                    wire::send(agent.as_fd(), &Message::Hello { version: VERSION, hold, beats: false }, &[])?;
                }
            }
            Message::Keep { id, note: request } => {
                let descriptors = MountDescriptors::new(descriptors).ok_or(ErrorKind::InvalidData)?;
                self.mounts.insert(id, HeldMount { request, descriptors });
            }
            Message::Forget { id } => drop(self.mounts.remove(&id)),
            Message::Give => {
                for (id, HeldMount { request, descriptors }) in &self.mounts {
                    let descriptors: Vec<_> = descriptors.iter().collect();
                    let message = Message::Keep { id: *id, note: request.clone() };
                    wire::send(agent.as_fd(), &message, &descriptors)?;
                }
                wire::send(agent.as_fd(), &Message::Done, &[])?;
            }
            Message::Expire { parent, name } => self.invalidate(parent, name, descriptors, None)?,
            Message::Invalidate { id, node, name } => {
                // Without it, the agent invalidates by itself when it has waited.
                let acknowledge = agent.try_clone().ok().map(|agent| (agent, id));
                self.invalidate(node, name, descriptors, acknowledge)?;
            }
            Message::Done | Message::Invalidated { .. } => {}
            Message::Unknown => wire::send(agent.as_fd(), &Message::Unknown, &[])?,
        }
        Ok(())
    }

    /// Queues an invalidation on the device that is the first of `descriptors`.
    fn invalidate(
        &self,
        node: u64,
        name: Vec<u8>,
        descriptors: Vec<OwnedFd>,
        acknowledge: Option<(OwnedFd, u64)>,
    ) -> io::Result<()> {
        let device = descriptors.into_iter().next().ok_or(ErrorKind::InvalidData)?;
        // The queue is full only if the agent has ended: its last messages must not keep the next one waiting.
        let _ = self.invalidations.try_send(Invalidation { device, node, name, acknowledge });
        Ok(())
    }
}

/// The socket that agents connect to.
fn listener() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}

#[cfg(test)]
mod tests;
