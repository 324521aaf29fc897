//! Sources: the Hub, buckets, web servers; credentials; servers that misbehave.

mod changed;
mod clouds;
mod configuration;
mod credentials;
mod hub;
mod hub_origin;
mod origin_faults;
mod server_faults;
