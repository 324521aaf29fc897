//! Requests of container runtimes about publications.

use std::time::Duration;

use hyper::Method;

use super::{Client, ClientError};
use crate::api::publication::{PublicationList, PublicationRequest, PublicationStatus, SourceList};

impl Client {
    /// Asks for a publication, or joins it, and waits at most `wait` (rounded up to seconds) until it is published. Giving up the
    /// wait does not give up the publication.
    pub async fn publish(
        &self,
        key: &str,
        request: &PublicationRequest,
        wait: Duration,
    ) -> Result<PublicationStatus, ClientError> {
        let path = format!("/v1/publications/{key}?wait={}", whole_seconds(wait));
        self.call(Method::PUT, &path, Some(request)).await
    }

    /// Ends a publication, whatever its state; also one that is not known.
    pub async fn unpublish(&self, key: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/publications/{key}")).await
    }

    /// A publication. It is answered from memory.
    pub async fn publication(&self, key: &str) -> Result<PublicationStatus, ClientError> {
        self.ask(Method::GET, &format!("/v1/publications/{key}")).await
    }

    /// All publications.
    pub async fn publications(&self) -> Result<PublicationList, ClientError> {
        self.ask(Method::GET, "/v1/publications").await
    }

    /// The sources that the agent's configuration names.
    pub async fn sources(&self) -> Result<SourceList, ClientError> {
        self.ask(Method::GET, "/v1/sources").await
    }

    /// Publishes a source that the agent's configuration names, or joins that, and waits at most `wait` (rounded up to seconds).
    pub async fn publish_source(&self, name: &str, wait: Duration) -> Result<PublicationStatus, ClientError> {
        self.ask(Method::PUT, &format!("/v1/sources/{name}?wait={}", whole_seconds(wait))).await
    }
}

/// A wait as requests have it. Rounded up: who asks until a moment has come would not wait for the last part of a second.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}
