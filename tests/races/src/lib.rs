//! The units that threads share, compiled from their own files against Shuttle's locks, channels and atomics: a test then
//! chooses which thread takes the next step, at each of them, and finds by thousands of such orders what a race would break,
//! and waits that never end.

// What `crate::` means in the units.
use bdnfs::{block, digest, error, extent, tier};

#[path = "../../../src/budget.rs"]
pub mod budget;
#[path = "../../../src/flight.rs"]
pub mod flight;

/// Which blocks of a blob are there.
pub mod presence {
    include!(concat!(env!("OUT_DIR"), "/presence.rs"));
}
