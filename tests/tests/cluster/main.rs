//! Clusters: nodes that share what one of them fetched.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod agents;
mod life;
mod network;
mod nodes;
mod sim;
mod staging;
mod trust;
