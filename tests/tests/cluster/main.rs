//! Clusters: nodes that share what one of them fetched.

mod agents;
mod life;
mod network;
mod nodes;
mod sim;
mod staging;
mod trust;
