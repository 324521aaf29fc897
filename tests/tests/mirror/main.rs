//! Mirrors: adding sources, reading from them, damage and collection.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod checkpoints;
mod damage;
mod local_mirrors;
mod public_mirrors;
mod publish;
mod refusals;
mod same_content;
mod services;
