//! The training caches on a node, as they travel over the control socket.

use serde::{Deserialize, Serialize};

/// A training cache whose home lies on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainingCacheStatus {
    /// The tenant that the project or team belongs to.
    pub tenant: String,
    /// The source name of the cache, `cache://project/llama`, which is the same on every node.
    pub source: String,
    /// When it was last updated or saved for a job or a container, in seconds since 1970.
    pub used_at: i64,
}

/// All training caches whose homes lie on the node; none where nodes share them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrainingCacheList {
    /// The caches, by tenant.
    pub caches: Vec<TrainingCacheStatus>,
}
