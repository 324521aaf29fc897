//! The units that threads share, compiled from their own files against Shuttle's locks, channels and atomics: a test then
//! chooses which thread takes the next step, at each of them, and finds by thousands of such orders what a race would break,
//! and waits that never end.

pub mod copied_memory;
pub mod room;

// What `crate::` means in the units.
use bdnfs::{blob, block, digest, error, extent, manifest, tier};
use bdnfs_agent::api;

#[path = "../../../src/budget.rs"]
pub mod budget;
#[path = "../../../src/flight.rs"]
pub mod flight;

/// Leases, which keep blobs from being evicted.
pub mod leases {
    include!(concat!(env!("OUT_DIR"), "/leases.rs"));
}

/// Which blocks of a blob are there.
pub mod presence {
    include!(concat!(env!("OUT_DIR"), "/presence.rs"));
}

/// The queue of what waits for room.
pub mod admission {
    include!(concat!(env!("OUT_DIR"), "/admission.rs"));
}

/// The open handles of a mount.
pub mod ledger {
    include!(concat!(env!("OUT_DIR"), "/ledger.rs"));
}
