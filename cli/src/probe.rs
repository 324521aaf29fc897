//! Health of mounts: whether one answers and which agent serves it, asked without getting stuck on one that hangs.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, bounded};
use rustix::io::Errno;

/// The extended attribute of a mount's root with the control socket of its agent.
const CONTROL_XATTR: &str = "user.bdnfs.control";
/// The time in which a mount must answer. The answer lies in the agent's memory: one that takes longer hangs.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest path of Linux, in bytes.
const PATH_MAX: usize = 4096;

/// The health of a mount.
#[derive(Debug)]
pub enum MountHealth {
    /// The agent at this socket serves it.
    Alive(PathBuf),
    /// The agent of the mount is gone.
    Dead,
    /// The mount does not answer in time.
    Unresponsive,
    /// The mount may not be asked, as that of another user.
    Unknown(io::Error),
}

impl MountHealth {
    /// The socket of the agent that serves it, if it is alive.
    pub fn socket(&self) -> Option<&PathBuf> {
        match self {
            Self::Alive(socket) => Some(socket),
            _ => None,
        }
    }
}

/// Probes one mount.
pub fn mount(mountpoint: &Path) -> MountHealth {
    mounts([mountpoint]).pop().unwrap_or(MountHealth::Unresponsive)
}

/// Probes several mounts at once; the result has their order.
pub fn mounts<'a>(mountpoints: impl IntoIterator<Item = &'a Path>) -> Vec<MountHealth> {
    let probes: Vec<_> = mountpoints.into_iter().map(start).collect();
    let end = Instant::now() + PROBE_TIMEOUT;
    probes
        .iter()
        .map(|probe| probe.recv_timeout(end - Instant::now().min(end)).unwrap_or(MountHealth::Unresponsive))
        .collect()
}

/// Starts a probe on a thread of its own, which a mount that hangs may keep for good.
fn start(mountpoint: &Path) -> Receiver<MountHealth> {
    let (sender, answer) = bounded(1);
    let mountpoint = mountpoint.to_owned();
    std::thread::spawn(move || {
        // After the timeout there is no receiver.
        let _ = sender.send(read(&mountpoint));
    });
    answer
}

fn read(mountpoint: &Path) -> MountHealth {
    let mut socket = vec![0; PATH_MAX];
    match rustix::fs::getxattr(mountpoint, CONTROL_XATTR, &mut socket) {
        Ok(len) => {
            socket.truncate(len);
            MountHealth::Alive(OsString::from_vec(socket).into())
        }
        Err(Errno::NOTCONN) => MountHealth::Dead,
        Err(error) => MountHealth::Unknown(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_of_a_plain_directory_is_unknown() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(matches!(mount(dir.path()), MountHealth::Unknown(_)));
    }
}
