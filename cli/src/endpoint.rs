//! The daemon that a command talks to.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::CacheConfig;

use crate::cache;

/// The daemon that a command talks to.
pub enum Endpoint {
    /// The agent of this node, by its socket.
    Agent(PathBuf),
    /// The daemon of a cache, which may have to be started.
    CacheOwner(CacheConfig),
}

impl Endpoint {
    /// The agent of this node where one runs and no cache is named, else the daemon of the cache.
    pub fn find(cache: &cache::CacheArgs) -> Result<Self> {
        let agent = socket::well_known().filter(|_| !cache.has_directory());
        match agent.filter(|socket| Client::new(socket).is_served()) {
            Some(socket) => Ok(Self::Agent(socket)),
            None => cache.open().map(Self::CacheOwner),
        }
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Agent(socket) => socket.clone(),
            Self::CacheOwner(cache) => socket::of_cache(&cache.dir),
        }
    }
}
