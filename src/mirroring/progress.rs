//! Progress of mirroring.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// The phase of a mirroring run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MirrorPhase {
    /// The mirror is asked for what it has.
    Querying,
    /// The origin is being listed.
    Listing,
    /// Content is being copied.
    Copying,
    /// Manifest and ref are being written.
    Finishing,
}

/// Progress of mirroring. Counted while it runs; read by a display.
#[derive(Debug, Default)]
pub struct MirrorProgress {
    state: AtomicU8,
    /// Regular files in the source.
    pub files: AtomicU64,
    /// Total size of the files, in bytes.
    pub bytes: AtomicU64,
    /// Files that are in the mirror.
    pub files_done: AtomicU64,
    /// Bytes that are in the mirror.
    pub bytes_done: AtomicU64,
    /// Bytes read from the origin.
    pub read: AtomicU64,
    /// Bytes written to the mirror, as it keeps them.
    pub written: AtomicU64,
}

impl MirrorProgress {
    /// The current phase.
    pub fn state(&self) -> MirrorPhase {
        const PHASES: [MirrorPhase; 4] =
            [MirrorPhase::Querying, MirrorPhase::Listing, MirrorPhase::Copying, MirrorPhase::Finishing];
        PHASES[usize::from(self.state.load(Relaxed)).min(PHASES.len() - 1)]
    }

    pub(super) fn enter(&self, state: MirrorPhase) {
        self.state.store(state as u8, Relaxed);
    }
}
