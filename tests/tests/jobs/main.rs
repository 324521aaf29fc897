//! Jobs: what they read is local before their commands run, and stays so whatever happens elsewhere.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod admission;
mod cache_room;
mod caches;
mod checkpoint_writers;
mod checkpoints;
mod covered;
mod crash;
mod damage;
mod foreign_writers;
mod hostile_writers;
mod hub_caches;
mod killed;
mod killed_savers;
mod kit;
mod offline;
mod posted;
mod power_cut;
mod pushed;
mod resume;
mod run;
mod saved_caches;
mod saving;
mod stop;
mod volumes;
