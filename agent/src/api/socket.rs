//! The control socket: its path, and which users it and its clients trust.

use std::io;
use std::path::{Path, PathBuf};

/// The longest path of a unix socket on Linux, in bytes (`sun_path`, less its NUL).
const MAX_SOCKET_PATH: usize = 107;
/// The variable that names another socket than the usual one for an agent, whatever its cache.
const SOCKET_PATH_VARIABLE: &str = "BDNFS_SOCKET";
/// The path of the node agent's socket, below the directory of runtime files (/run).
const WELL_KNOWN_SOCKET_PATH: &str = "bdnfs/agent.sock";

/// The control socket of the agent of the cache in `dir`.
pub fn of_cache(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// The socket at which an agent listens whatever its cache; `None` for a user without a directory for that.
pub fn well_known() -> Option<PathBuf> {
    let env = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(path) = env(SOCKET_PATH_VARIABLE) {
        return Some(path);
    }
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/run").join(WELL_KNOWN_SOCKET_PATH));
    }
    env("XDG_RUNTIME_DIR").map(|directory| directory.join(WELL_KNOWN_SOCKET_PATH))
}

/// Refuses a path that is too long for a socket.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`].
pub fn check_length(path: &Path) -> io::Result<()> {
    if path.as_os_str().len() <= MAX_SOCKET_PATH {
        return Ok(());
    }
    let text = format!("the path of a socket has at most {MAX_SOCKET_PATH} bytes; name a shorter one");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Whether a peer of this user is one to talk to: the same user, or root.
pub fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}
