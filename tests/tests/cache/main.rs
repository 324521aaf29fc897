//! The cache of a node: what is fetched, kept, evicted and repaired, and what survives a power cut.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod bad_blocks;
mod broken_disk;
mod commands;
mod disk_full;
mod hostile_files;
mod lazy;
mod memory;
mod offline;
mod power_loss;
mod random_pages;
mod read_ahead;
mod rotten_manifests;
mod scrub;
