//! Sources that the agent's configuration names: published as soon as it is ready, and requested by name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Kind;

use super::{Milestone, Publications};
use crate::api::publication::{NamedSource, PublicationRequest, PublicationStatus};
use crate::api::{ApiResult, Failure};

/// The prefix of the keys of their publications.
const SOURCE_KEY_PREFIX: &str = "source-";

/// A source that has a name.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// The name of the source.
    pub name: String,
    /// The request to publish it: without a target, trusted, and kept.
    pub request: PublicationRequest,
    /// The path at which containers see it.
    pub mount_location: Option<PathBuf>,
}

impl SourceConfig {
    fn key(&self) -> String {
        format!("{SOURCE_KEY_PREFIX}{}", self.name)
    }
}

impl Publications {
    /// All named sources, with the states of their publications.
    pub fn sources(&self) -> Vec<NamedSource> {
        let named = |source: &SourceConfig| NamedSource {
            name: source.name.clone(),
            source: source
                .request
                .source
                .expose()
                .parse::<bdnfs::source::Uri>()
                .map_or_else(|_| String::new(), |uri| uri.to_string()),
            mount_location: source.mount_location.clone(),
            publication: self.status(&source.key()).ok(),
        };
        self.config.sources.iter().map(named).collect()
    }

    /// Publishes the source with this name, or joins that, as [`publish`](Self::publish) does.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for a name that the configuration has not.
    pub async fn publish_source(
        self: &Arc<Self>,
        name: &str,
        wait: Duration,
    ) -> ApiResult<PublicationStatus> {
        let Some(source) = self.config.sources.iter().find(|source| source.name == name) else {
            let name = name.escape_debug();
            let text = format!(
                "no such source: \"{name}\"; the agent's configuration has no section [sources.{name}]"
            );
            return Err(Failure::new(Kind::NotFound, text));
        };
        // Nobody waited for what failed: it is tried again.
        let failed = self.table.lock().get(&source.key()).filter(|found| found.failure().is_some()).cloned();
        if let Some(failed) = failed {
            self.forget(&failed);
        }
        self.publish(&source.key(), source.request.clone(), wait, Milestone::Published).await
    }

    /// Publishes all that are not; ends those that the configuration has no longer.
    pub(super) async fn publish_sources(self: &Arc<Self>) {
        let is_configured = |key: &str| {
            let published = self.table.lock().get(key).cloned();
            let source = self.config.sources.iter().find(|source| source.key() == key);
            source.zip(published).is_some_and(|(source, published)| published.is_same(&source.request))
        };
        for publication in self.all().iter().filter(|one| one.key.starts_with(SOURCE_KEY_PREFIX)) {
            if !is_configured(&publication.key) {
                let _ = self.unpublish(&publication.key).await;
            }
        }
        for source in &self.config.sources {
            if let Err(failure) = self.publish_source(&source.name, Duration::ZERO).await {
                tracing::warn!("the source {:?} is not published: {failure}", source.name);
            }
        }
    }
}
