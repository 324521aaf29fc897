//! What all contents share.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::budget::Budget;
use crate::cache::Cache;

use super::Recent;

/// What every content needs.
#[derive(Debug)]
pub struct Means {
    /// The node cache.
    pub cache: Cache,
    /// The memory for flights.
    pub budget: Arc<Budget>,
    /// How many blocks are hashed and written at once. More than the machine has cores for would only take turns, and
    /// wait for each other at the file's lock.
    pub hands: Arc<Semaphore>,
    /// Blocks that arrived for readers.
    pub recent: Recent,
    /// Where flights run, and where their blocking parts do.
    pub runtime: Handle,
}
