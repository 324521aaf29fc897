//! What the commands ask of a cache's owner.

use hyper::Method;

use super::{Client, Trouble};
use crate::api::cache::{Evicted, Pinned, Selection, Summary, Verified};

impl Client {
    /// What the cache holds.
    pub async fn cache(&self) -> Result<Summary, Trouble> {
        self.ask(Method::GET, "/v1/cache").await
    }

    /// Removes what is selected and not in use.
    pub async fn evict(&self, selection: &Selection) -> Result<Evicted, Trouble> {
        self.call(Method::POST, "/v1/cache/evict", Some(selection)).await
    }

    /// Pins what is selected, or with `pin` false unpins it.
    pub async fn pin(&self, selection: &Selection, pin: bool) -> Result<Pinned, Trouble> {
        let path = if pin { "/v1/cache/pin" } else { "/v1/cache/unpin" };
        self.call(Method::POST, path, Some(selection)).await
    }

    /// Reads everything, and removes what is not right. Giving up the wait gives up the verification.
    pub async fn verify(&self) -> Result<Verified, Trouble> {
        self.ask(Method::POST, "/v1/cache/verify").await
    }
}
