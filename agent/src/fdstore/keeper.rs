//! The agent's end: what it gives to its holder, and what it finds there.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use bdnfs_fs::handover::{DentryInvalidator, MountDescriptors};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::FlockOperation;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::wire::{self, Message, VERSION};

/// A holder answers from memory: one that takes longer is stuck, and mounts would be stuck with it.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long a holder that was killed may take to be gone.
const FAREWELL: Duration = Duration::from_secs(20);
/// A holder that does not live is not started over and over.
const PAUSE: Duration = Duration::from_secs(1);

/// The holder of a cache, as its agent sees it.
#[derive(Debug)]
pub struct Keeper {
    cache: PathBuf,
    log: PathBuf,
    hold: Duration,
    /// The connection to it, while there is one.
    link: watch::Sender<Option<Arc<OwnedFd>>>,
    /// One message at a time, and one holder.
    child: Mutex<Option<Child>>,
}

/// A mount that was held.
#[derive(Debug)]
pub struct Found {
    /// Its number.
    pub id: u64,
    /// What was said of it.
    pub note: String,
    /// Its descriptors.
    pub held: MountDescriptors,
}

impl Keeper {
    /// The holder of the cache in the directory `cache`, whose lock the caller has, and what an earlier agent left there.
    /// What is given to it, it holds for as long as `hold` without an agent; not at all, if that is no time. It logs to
    /// `log`. Blocks for at most some ten seconds.
    pub fn find(cache: &Path, log: &Path, hold: Duration) -> Result<(Self, Vec<Found>)> {
        let (link, child) = (watch::Sender::new(None), Mutex::new(None));
        let keeper = Self { cache: cache.into(), log: log.into(), hold, link, child };
        let Err(owner) = keeper.lock()? else { return Ok((keeper, Vec::new())) };
        let found = match keeper.take() {
            Ok((socket, found)) => {
                keeper.link.send_replace(Some(Arc::new(socket)));
                found
            }
            Err(error) => {
                tracing::error!("what the holder {owner} holds is lost, since it can't be had: {error:#}");
                keeper.end(&owner)?;
                Vec::new()
            }
        };
        Ok((keeper, found))
    }

    /// Whether anything is held at all.
    pub fn holds(&self) -> bool {
        !self.hold.is_zero()
    }

    /// Has the mount `id` held. Blocks.
    pub fn keep(&self, id: u64, note: String, held: &MountDescriptors) -> Result<()> {
        let mut child = self.child();
        let link = self.link.borrow().clone();
        let link = match link {
            Some(link) => link,
            None => self.start(&mut child).context("cannot start a holder")?,
        };
        let descriptors: Vec<_> = held.iter().collect();
        wire::send(link.as_fd(), &Message::Keep { id, note }, &descriptors)
            .context("the holder does not take it")
    }

    /// Has the mount `id` held no more.
    pub fn forget(&self, id: u64) {
        // Where there is no holder, nothing is held.
        self.tell(&Message::Forget { id }, &[]);
    }

    /// Sends what can wait for no answer. False: there is no holder.
    fn tell(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> bool {
        let link = self.link.borrow().clone();
        let _one_at_a_time = self.child();
        link.is_some_and(|link| wire::send(link.as_fd(), message, descriptors).is_ok())
    }

    /// Waits until there was a holder and it has ended: then nothing is held.
    pub async fn lost(&self) {
        let mut links = self.link.subscribe();
        // The sender lives as long as `self`.
        let link = links.wait_for(Option::is_some).await.ok().and_then(|link| link.clone());
        let watched = link.as_ref().and_then(|link| link.try_clone().ok());
        if let Some(watched) = watched {
            // SAFETY: what an `OwnedFd` stands for stays the same and open for as long as it lives, and it moves in here.
            let watched = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
            if let Ok(watched) = watched {
                // It says nothing unless it is asked, and then what it says is waited for elsewhere.
                let _ = watched.readable().await;
            }
        }
        self.link.send_if_modified(|now| {
            let same = now.as_ref().zip(link.as_ref()).is_some_and(|(now, link)| Arc::ptr_eq(now, link));
            if same {
                *now = None;
            }
            same
        });
        tokio::time::sleep(PAUSE).await;
    }

    /// The lock, if nobody has it; else what its owner wrote there.
    fn lock(&self) -> Result<std::result::Result<File, String>> {
        let path = self.cache.join("holder.lock");
        let open = || {
            let mut lock = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
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
        open().with_context(|| format!("cannot use {}", path.display()))
    }

    fn socket(&self) -> PathBuf {
        self.cache.join("holder.sock")
    }

    /// Connects to the holder, and tells it that there is an agent.
    fn connect(&self) -> Result<OwnedFd> {
        let socket = new_socket()?;
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        connect(&socket, &SocketAddrUnix::new(self.socket())?)?;
        wire::send(socket.as_fd(), &Message::Hello { version: VERSION, hold: self.hold.as_secs() }, &[])?;
        Ok(socket)
    }

    /// Takes what the holder has; it keeps it all the same.
    fn take(&self) -> Result<(OwnedFd, Vec<Found>)> {
        let socket = self.connect()?;
        wire::send(socket.as_fd(), &Message::Give, &[])?;
        let mut found = Vec::new();
        loop {
            match wire::receive(socket.as_fd())?.ok_or_else(|| anyhow!("it has ended"))? {
                (Message::Keep { id, note }, descriptors) => {
                    let held = MountDescriptors::new(descriptors)
                        .ok_or_else(|| anyhow!("descriptors are missing"))?;
                    found.push(Found { id, note, held });
                }
                (Message::Done, _) => return Ok((socket, found)),
                (message, _) => return Err(anyhow!("it said {message:?}")),
            }
        }
    }

    /// Starts a holder, and connects to it.
    fn start(&self, child: &mut Option<Child>) -> Result<Arc<OwnedFd>> {
        if let Some(mut before) = child.take() {
            // The lock tells more: without a link to it, it has ended or is about to.
            let _ = before.try_wait();
        }
        let begin = Instant::now();
        let lock = loop {
            match self.lock()? {
                Ok(lock) => break lock,
                Err(owner) if begin.elapsed() > FAREWELL => {
                    return Err(anyhow!("process {owner} is still there"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        match fs::remove_file(self.socket()) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let listener = new_socket()?;
        bind(&listener, &SocketAddrUnix::new(self.socket())?)?;
        listen(&listener, 4)?;
        let link = Arc::new(self.connect()?);
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bdnfs").arg("hold").env_clear().current_dir("/");
        command.stdin(Stdio::from(listener)).stdout(Stdio::from(lock.try_clone()?));
        // Then its number comes here, from itself.
        lock.set_len(0)?;
        *child = Some(command.stderr(crate::cache::open_log(&self.log)?).spawn()?);
        self.link.send_replace(Some(Arc::clone(&link)));
        Ok(link)
    }

    /// Ends a holder that does not answer, so that nobody waits for what it holds. It is the one that has the lock, so no
    /// other process can be meant by its number.
    fn end(&self, owner: &str) -> Result<()> {
        if let Some(pid) = owner.parse().ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let begin = Instant::now();
        while self.lock()?.is_err() {
            if begin.elapsed() > FAREWELL {
                return Err(anyhow!("the holder {owner} of {} can't be ended", self.cache.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock()
    }
}

impl DentryInvalidator for Keeper {
    fn invalidate(&self, device: BorrowedFd<'_>, parent: u64, name: &[u8]) -> bool {
        self.tell(&Message::Expire { parent, name: name.to_owned() }, &[device])
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}
