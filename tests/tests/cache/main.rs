//! The cache of a node: what is fetched, kept, evicted and repaired, and what survives a power cut.

mod commands;
mod disk_full;
mod lazy;
mod power_loss;
