//! The mounted file system: reads, names and attributes, errors, interrupts, crashes; mount(8) and who may mount.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod crash;
mod errors;
mod fstab_page;
mod idmap;
mod interrupt;
mod mount8;
mod posix;
mod read;
mod unprivileged;
