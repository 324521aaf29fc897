//! The agent: its commands, restart, takeover, metrics, traces, API and packaging.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod commands;
mod fdstore;
mod looked_at_mounts;
mod metrics;
mod mounts_model;
mod moved_mounts;
mod native;
mod native_use;
mod openapi;
mod output;
mod packaging;
mod reader_kills;
mod restart;
mod signals;
mod takeover;
mod top;
mod traces;
mod upgrade;
