//! Repairs: what was damaged in a mirror, and is made anew by a run that publishes.

use crate::error::Error;

/// The number of repaired faults that are listed one by one; `mirror verify` lists all.
const MAX_LISTED_REPAIRS: usize = 10;

/// Damage that a mirroring run found and repaired.
#[derive(Clone, Debug, Default)]
pub struct Repairs {
    /// The number of repaired faults.
    pub count: u64,
    /// The first ten of them, described.
    pub first: Vec<String>,
}

impl Repairs {
    pub(super) fn add(&mut self, fault: &Error) {
        tracing::info!(%fault, "repairing the mirror");
        self.count += 1;
        if self.first.len() < MAX_LISTED_REPAIRS {
            self.first.push(fault.to_string());
        }
    }
}
