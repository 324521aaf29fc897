//! The result of resolving a mount request.

use std::sync::Arc;

use bdnfs::snapshot::Snapshot;

/// The snapshot of a request.
pub struct ResolvedSnapshot {
    /// The snapshot.
    pub snapshot: Arc<Snapshot>,
    /// The revision that the source was resolved to, as its origin names it.
    pub resolved: String,
    /// A note for the user.
    pub note: Option<String>,
}
