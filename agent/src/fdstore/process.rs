//! The holder's own process: `bdnfs hold`, which an agent starts. It tells its number where its lock is.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bdnfs_fs::handover::{self, MountDescriptors};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, accept_with};

use super::keeper::PATIENCE;
use super::wire::{self, Message, VERSION};

/// How long the agent that started it may take to speak to it.
const FIRST: Duration = Duration::from_secs(60);

/// `bdnfs hold`: its standard input is the socket that it listens at, its standard output the lock that makes it the one.
pub fn run() -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    rustix::thread::set_name(c"bdnfs-holder").context("cannot name the process")?;
    println!("{}", std::process::id());
    Holder { names: teller()?, kept: BTreeMap::new(), agent: None, hold: None, alone_since: Instant::now() }
        .serve()
}

/// How many names may wait to be looked up anew. One that is too many is read more slowly for a while, that is all.
const NAMES: usize = 1024;

/// A name that the kernel is to look up anew: on which device, in which directory.
type Name = (OwnedFd, u64, Vec<u8>);

/// Starts what tells the kernel: by itself, since it may have to wait for an agent's answers.
fn teller() -> Result<SyncSender<Name>> {
    let (names, named) = mpsc::sync_channel::<Name>(NAMES);
    let tell = move || {
        named.iter().for_each(|(device, parent, name)| handover::invalidate_dentry(device, parent, &name))
    };
    std::thread::Builder::new().name("teller".to_owned()).spawn(tell).context("cannot start a thread")?;
    Ok(names)
}

/// What it holds, and for whom.
struct Holder {
    names: SyncSender<Name>,
    kept: BTreeMap<u64, Kept>,
    agent: Option<OwnedFd>,
    /// How long to hold without an agent, once the first one has told.
    hold: Option<Duration>,
    /// When the last one left.
    alone_since: Instant,
}

/// A mount that is held.
struct Kept {
    note: String,
    held: MountDescriptors,
}

/// What there is to do.
#[derive(Default)]
struct Events {
    agent: bool,
    caller: bool,
    /// Mounts that have ended.
    ended: Vec<u64>,
}

impl Holder {
    fn serve(mut self) -> Result<()> {
        loop {
            let hold = self.hold.unwrap_or(FIRST);
            let patience = hold.saturating_sub(self.alone_since.elapsed());
            if self.agent.is_none() && patience.is_zero() {
                let (seconds, mounts) = (hold.as_secs(), self.kept.len());
                tracing::warn!("no agent has come for {seconds} s: {mounts} mounts are let go");
                return Ok(());
            }
            let events = self.wait(patience).context("cannot wait")?;
            for id in events.ended {
                self.kept.remove(&id);
            }
            if events.agent {
                self.hear();
            }
            if events.caller {
                self.welcome();
            }
            if self.agent.is_none() && self.kept.is_empty() && self.hold.is_some() {
                return Ok(());
            }
        }
    }

    fn wait(&self, patience: Duration) -> io::Result<Events> {
        let mut polled = vec![PollFd::from_borrowed_fd(listener(), PollFlags::IN)];
        let mut timeout = None;
        match &self.agent {
            Some(agent) => polled.push(PollFd::new(agent, PollFlags::IN)),
            None => {
                // Only now: each request wakes who waits for a mount's end.
                polled.extend(
                    self.kept
                        .values()
                        .map(|kept| PollFd::from_borrowed_fd(kept.held.device(), PollFlags::empty())),
                );
                timeout = Timespec::try_from(patience).ok();
            }
        }
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Events::default()),
            Err(error) => return Err(error.into()),
        }
        let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
        let caller = happened.next().unwrap_or(false);
        let agent = self.agent.is_some() && happened.next().unwrap_or(false);
        let ended = self.kept.keys().zip(happened).filter(|(_, ended)| *ended).map(|(id, _)| *id).collect();
        Ok(Events { agent, caller, ended })
    }

    /// Hears one message of the agent, or that it has gone.
    fn hear(&mut self) {
        let Some(agent) = &self.agent else { return };
        let done = match wire::receive(agent.as_fd()) {
            Ok(Some((message, descriptors))) => {
                obey(&mut self.kept, &mut self.hold, &self.names, agent, message, descriptors)
            }
            Ok(None) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the agent has ended")),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            tracing::info!("{} mounts wait for the next agent: {error}", self.kept.len());
            self.agent = None;
            self.alone_since = Instant::now();
            // What it took and will not answer: their callers must not be stuck with nobody there.
            for kept in self.kept.values() {
                let _ = kept.held.requeue_requests();
            }
        }
    }

    /// Lets the next agent in. The one before it has ended, since only one owns the cache.
    fn welcome(&mut self) {
        match accept_with(listener(), SocketFlags::CLOEXEC) {
            Ok(agent) if wire::is_trusted(agent.as_fd()) => {
                // It must not be able to hold up what comes after it.
                let _ = set_socket_timeout(&agent, Timeout::Send, Some(PATIENCE));
                self.agent = Some(agent);
            }
            Ok(_) => tracing::warn!("another user was turned away"),
            Err(error) => tracing::warn!("cannot let an agent in: {error}"),
        }
    }
}

/// Does what the agent says.
fn obey(
    kept: &mut BTreeMap<u64, Kept>,
    hold: &mut Option<Duration>,
    names: &SyncSender<Name>,
    agent: &OwnedFd,
    message: Message,
    descriptors: Vec<OwnedFd>,
) -> io::Result<()> {
    match message {
        Message::Hello { version: VERSION, hold: seconds } => *hold = Some(Duration::from_secs(seconds)),
        Message::Hello { version, .. } => {
            kept.clear();
            return Err(io::Error::other(format!("it speaks version {version}, not {VERSION}")));
        }
        Message::Keep { id, note } => {
            let held = MountDescriptors::new(descriptors).ok_or(ErrorKind::InvalidData)?;
            kept.insert(id, Kept { note, held });
        }
        Message::Forget { id } => drop(kept.remove(&id)),
        Message::Give => {
            for (id, Kept { note, held }) in kept {
                let descriptors: Vec<_> = held.iter().collect();
                wire::send(agent.as_fd(), &Message::Keep { id: *id, note: note.clone() }, &descriptors)?;
            }
            wire::send(agent.as_fd(), &Message::Done, &[])?;
        }
        Message::Expire { parent, name } => {
            let device = descriptors.into_iter().next().ok_or(ErrorKind::InvalidData)?;
            // Too many, or none can be told any more: then new opens are served like those before.
            let _ = names.try_send((device, parent, name));
        }
        Message::Done => {}
    }
    Ok(())
}

/// Where agents come.
fn listener() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}
