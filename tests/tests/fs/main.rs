//! The mounted file system: reads, names and attributes, errors, interrupts, crashes.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod crash;
mod errors;
mod interrupt;
mod mount;
mod posix;
mod read;
