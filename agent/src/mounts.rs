//! The mounts of an agent.
//!
//! ```text
//! MountManager ── table of what is mounted, and of what could not be mounted again
//!   ├─ Mounter ────── request ──> snapshot (lookup) ──> mount that serves
//!   ├─ SourceHistory  what sources were, for mounts without a network
//!   ├─ MountRecords ─ what a restart must not forget
//!   └─ Handover ───── descriptors ──> fd store, which keeps the mounts alive while there is no agent
//! restore: records and fd store ──> mounts, at the start        shutdown: mounts ──> fd store or gone, at the end
//! ```

mod attachment;
mod checkpoint_source;
mod conversion;
mod handover;
mod history;
mod lookup;
mod manager;
mod mount;
mod mounter;
mod record;
mod reservation;
mod resolved_snapshot;
mod restore;
pub mod shutdown;

pub use handover::Handover;
pub use history::SourceHistory;
pub use manager::MountManager;
pub use mount::ManagedMount;
pub use mounter::{MountDefaults, Mounter};
#[cfg(feature = "fuzz")]
pub(crate) use record::MountRecord;
pub use record::{REQUEST_SECRETS, recorded_mountpoints};
pub use resolved_snapshot::ResolvedSnapshot;
pub use restore::{MountPurpose, restore};
