//! What is kept of a mount, so that it can be made again after the daemon has ended.

use serde::{Deserialize, Serialize};

use crate::api::MountRequest;

/// The record of a mount. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// Its number.
    pub id: u64,
    /// When it was mounted, in seconds since 1970.
    pub since: u64,
    /// What was asked for, without its secrets.
    pub request: MountRequest,
    /// Whether it had some: then its origin can't be read again.
    pub bereft: bool,
    /// The snapshot's id, in hexadecimal.
    pub snapshot: String,
    /// What the source was resolved to, as its origin names it.
    pub resolved: String,
    /// Whether all of it was to be local.
    pub staged: bool,
}

impl Kept {
    /// The name of its record.
    pub fn name(&self) -> String {
        self.id.to_string()
    }
}
