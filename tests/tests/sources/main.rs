//! Sources: the Hub, buckets, web servers; credentials; servers that misbehave.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod certificates;
mod cloud_faults;
mod clouds;
mod configuration;
mod credentials;
mod hub;
mod hub_cache;
mod hub_locations;
mod hub_origin;
mod messages;
mod name_servers;
mod origin_faults;
mod refuted_files;
mod server_faults;
mod small_files;
mod source_changes;
