//! Jobs: what they read is local before their commands run, and stays so whatever happens elsewhere.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod admission;
mod api;
mod back_pressure;
mod begun_caches;
mod cache_affinity;
mod cache_libraries;
mod cache_programs;
mod cache_room;
mod caches;
mod checkpoint_writers;
mod checkpoints;
mod crash;
mod damage;
mod failing_disk;
mod failing_mirror;
mod foreign_writers;
mod frozen_disk;
mod hostile_writers;
mod hub_caches;
mod keep;
mod killed_savers;
mod kills;
mod kit;
mod mount_locations;
mod network;
mod offline;
mod power_cut;
mod resume;
mod run;
mod saved_caches;
mod saving;
mod shared_caches;
mod stop;
mod truss_push;
mod unreadable_records;
mod unsaved_checkpoints;
mod volumes;
