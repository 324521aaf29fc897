//! Requests about the cache.

use hyper::Method;

use super::{Client, ClientError};
use crate::api::cache::{CacheSummary, EvictReport, PinReport, SnapshotSelection, VerifyReport};
use crate::api::training_cache_list::TrainingCacheList;

impl Client {
    /// The training caches whose homes lie on the agent's node.
    pub async fn training_caches(&self) -> Result<TrainingCacheList, ClientError> {
        self.ask(Method::GET, "/v1/training-caches").await
    }

    /// The content of the cache.
    pub async fn cache(&self) -> Result<CacheSummary, ClientError> {
        self.ask(Method::GET, "/v1/cache").await
    }

    /// Removes what is selected and not in use.
    pub async fn evict(&self, selection: &SnapshotSelection) -> Result<EvictReport, ClientError> {
        self.call(Method::POST, "/v1/cache/evict", Some(selection)).await
    }

    /// Pins what is selected, or with `pin` false unpins it.
    pub async fn pin(&self, selection: &SnapshotSelection, pin: bool) -> Result<PinReport, ClientError> {
        let path = if pin { "/v1/cache/pin" } else { "/v1/cache/unpin" };
        self.call(Method::POST, path, Some(selection)).await
    }

    /// Reads everything, and removes what is not right. Giving up the wait gives up the verification.
    pub async fn verify(&self) -> Result<VerifyReport, ClientError> {
        self.ask(Method::POST, "/v1/cache/verify").await
    }
}
