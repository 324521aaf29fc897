//! Containers: publications of the agent, and the runtimes that ask for them.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod campaign;
mod cdi;
mod commands;
mod containers_page;
mod docker;
mod kit;
mod moved_targets;
mod oci;
mod oci_hook;
mod publications;
mod restarts;
mod slurm;
mod unclaimed_binds;
mod upgrade;
mod waiting_requests;
mod writable_volumes;
