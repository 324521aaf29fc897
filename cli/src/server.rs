//! Who answers a command: the agent of this node, or whoever owns a cache.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::CacheConfig;

use crate::cache;

/// Who is asked.
pub enum Server {
    /// The agent that listens here, whatever its cache.
    Agent(PathBuf),
    /// Whoever owns this cache, or comes to own it.
    Owner(CacheConfig),
}

impl Server {
    /// The node's agent where no cache is named and there is one.
    pub fn find(cache: &cache::Args) -> Result<Self> {
        let agent = socket::well_known().filter(|_| !cache.names_directory());
        match agent.filter(|socket| Client::new(socket).is_served()) {
            Some(socket) => Ok(Self::Agent(socket)),
            None => cache.make().map(Self::Owner),
        }
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        match self {
            Self::Agent(socket) => socket.clone(),
            Self::Owner(cache) => socket::of_cache(&cache.dir),
        }
    }
}
