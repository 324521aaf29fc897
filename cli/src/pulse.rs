//! Whether a mount is alive, and who serves it: a question to its root that a stuck mount can't hold up.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// What the root of every mount says: the control socket of the daemon that serves it.
const CONTROL: &str = "user.bdnfs.control";
/// The answer lies in the daemon's memory; one that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest path that Linux takes.
const PATH_MAX: usize = 4096;

/// What a mount's root answered.
#[derive(Debug)]
pub enum Pulse {
    /// It is served by the daemon at this socket.
    Alive(PathBuf),
    /// Its daemon is gone.
    Dead,
    /// Nothing, in time.
    Silent,
    /// It can't be asked: it is another user's, for one.
    Unknown(io::Error),
}

impl Pulse {
    /// The socket of the daemon that serves it, if that lives.
    pub fn socket(&self) -> Option<&PathBuf> {
        match self {
            Self::Alive(socket) => Some(socket),
            _ => None,
        }
    }
}

/// Takes the pulse of one mount.
pub fn of(mountpoint: &Path) -> Pulse {
    all([mountpoint]).pop().unwrap_or(Pulse::Silent)
}

/// Takes the pulses of several at once, in their order.
pub fn all<'a>(mountpoints: impl IntoIterator<Item = &'a Path>) -> Vec<Pulse> {
    let asked: Vec<_> = mountpoints.into_iter().map(ask).collect();
    let end = Instant::now() + PATIENCE;
    asked
        .iter()
        .map(|answer| answer.recv_timeout(end - Instant::now().min(end)).unwrap_or(Pulse::Silent))
        .collect()
}

/// Asks from a thread of its own, which a stuck mount may keep for good.
fn ask(mountpoint: &Path) -> Receiver<Pulse> {
    let (tell, answer) = sync_channel(1);
    let mountpoint = mountpoint.to_owned();
    std::thread::spawn(move || {
        // Nobody listens any more when it took too long.
        let _ = tell.send(read(&mountpoint));
    });
    answer
}

fn read(mountpoint: &Path) -> Pulse {
    let mut socket = vec![0; PATH_MAX];
    match rustix::fs::getxattr(mountpoint, CONTROL, &mut socket) {
        Ok(len) => {
            socket.truncate(len);
            Pulse::Alive(OsString::from_vec(socket).into())
        }
        Err(Errno::NOTCONN) => Pulse::Dead,
        Err(error) => Pulse::Unknown(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_a_mount_has_none() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(matches!(of(dir.path()), Pulse::Unknown(_)));
    }
}
