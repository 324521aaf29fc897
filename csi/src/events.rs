//! Events of the pods whose volumes are staged, which `kubectl describe pod` shows. They help people and nothing depends on them:
//! one that can't be posted is logged and forgotten.

use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs_agent::text;
use chrono::{SecondsFormat, Utc};
use reqwest::Method;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::api_server::{ApiServer, ApiServerConfig};

/// The number of posts that may be under way; further events are dropped.
const MAX_POSTS_IN_FLIGHT: usize = 16;

/// A pod, as events refer to it.
#[derive(Clone, Debug)]
pub struct PodReference {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub name: String,
    /// The UID of the pod.
    pub uid: String,
}

/// Posts events.
pub struct EventPoster {
    server: ApiServer,
    node: String,
    posts: Arc<Semaphore>,
}

impl EventPoster {
    /// Posts to the API server of `config`, for the node `node`.
    ///
    /// # Errors
    /// Those of [`ApiServer::new`].
    pub fn new(config: ApiServerConfig, node: String) -> Result<Self> {
        Ok(Self {
            server: ApiServer::new(config)?,
            node,
            posts: Arc::new(Semaphore::new(MAX_POSTS_IN_FLIGHT)),
        })
    }

    /// Posts an event about `pod`, in the background.
    pub fn post(
        self: &Arc<Self>,
        pod: &PodReference,
        is_warning: bool,
        reason: &'static str,
        message: String,
    ) {
        let Ok(permit) = Arc::clone(&self.posts).try_acquire_owned() else { return };
        let (poster, pod) = (Arc::clone(self), pod.clone());
        tokio::spawn(async move {
            let kind = if is_warning { "Warning" } else { "Normal" };
            if let Err(error) = poster.send(&pod, kind, reason, &message).await {
                tracing::warn!(
                    "cannot post the event {reason} of {}/{}: {}",
                    pod.namespace,
                    pod.name,
                    text::line(&error)
                );
            }
            drop(permit);
        });
    }

    async fn send(&self, pod: &PodReference, kind: &str, reason: &str, message: &str) -> Result<()> {
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        let object = json!({
            "kind": "Pod", "apiVersion": "v1", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid,
        });
        let event = json!({
            "kind": "Event", "apiVersion": "v1", "type": kind, "reason": reason, "message": message, "count": 1,
            "metadata": {"generateName": format!("{}.", pod.name), "namespace": pod.namespace},
            "involvedObject": object, "source": {"component": "bdnfs", "host": self.node},
            "firstTimestamp": now, "lastTimestamp": now,
        });
        let path = format!("/api/v1/namespaces/{}/events", pod.namespace);
        self.server.write(Method::POST, &path, "application/json", &event).await.map(drop)
    }
}
