//! The identity of a node, by which other nodes know it, and its name, by which people do.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use bdnfs::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::context::Context;
use crate::random;

/// The file in the directory of volumes with the identity of the node that they are on.
const NODE_FILE: &str = "node.json";
/// The file with the name of the machine (proc_sys_kernel(5)).
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// The identity of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// An id that no other node has: 32 hexadecimal digits.
    pub id: String,
}

impl NodeIdentity {
    /// The identity of the node whose volumes lie in the directory `volumes`; chosen when it is first asked for. Touches the local
    /// disk.
    ///
    /// # Errors
    /// [`Kind::Disk`], [`Kind::NoSpace`].
    pub fn of(volumes: &Path) -> Result<Self> {
        let path = volumes.join(NODE_FILE);
        let failed = || format!("cannot write {}", path.display());
        match fs::read(&path) {
            Ok(text) => {
                return serde_json::from_slice(&text).map_err(|e| {
                    Error::with(Kind::Corrupt, format!("{} is damaged; remove it", path.display()), e)
                });
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::disk(format!("cannot read {}", path.display()), error)),
        }
        let chosen = Self { id: random::id()? };
        let draft = NamedTempFile::new_in(volumes).with_context(failed)?;
        serde_json::to_writer(&draft, &chosen).map_err(std::io::Error::from).with_context(failed)?;
        draft.as_file().sync_all().with_context(failed)?;
        match draft.persist_noclobber(&path) {
            // Another process was first.
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Self::of(volumes),
            persisted => persisted.map(|_| chosen).map_err(|error| error.error).with_context(failed),
        }
    }
}

/// The name of this machine. Touches no disk.
pub fn host_name() -> String {
    fs::read_to_string(HOST_NAME_FILE).unwrap_or_default().trim().to_owned()
}
