//! Events of the pods whose volumes are staged, which `kubectl describe pod` shows. They help people and nothing depends on them:
//! one that can't be posted is logged and forgotten.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs_agent::text;
use chrono::{SecondsFormat, Utc};
use serde_json::json;
use tokio::sync::Semaphore;

/// How long a post may take.
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// How many may be under way; more than that are dropped.
const MAX_POSTS: usize = 16;

/// Where events are posted, and as whom.
#[derive(Clone, Debug)]
pub struct EventConfig {
    /// The URL of the API server.
    pub api_server: String,
    /// The certificates of its authority (PEM).
    pub authority: PathBuf,
    /// The file with the token of the service account. It is read anew each time.
    pub token: PathBuf,
}

/// A pod, as events refer to it.
#[derive(Clone, Debug)]
pub struct PodReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its id.
    pub uid: String,
}

/// Posts events.
pub struct EventPoster {
    config: EventConfig,
    client: reqwest::Client,
    node: String,
    posts: Arc<Semaphore>,
}

impl EventPoster {
    /// Posts as `config` says, for the node `node`.
    ///
    /// # Errors
    /// [`Kind::Disk`] or [`Kind::Invalid`] where there are no certificates.
    pub fn new(config: EventConfig, node: String) -> Result<Self> {
        let path = &config.authority;
        let of_no_use = |kind, e: Box<dyn std::error::Error + Send + Sync>| {
            Error::with(kind, format!("cannot use the authority of the API server, {}", path.display()), e)
        };
        let pem = std::fs::read(path).map_err(|e| of_no_use(Kind::Disk, e.into()))?;
        let invalid = |e: reqwest::Error| of_no_use(Kind::Invalid, e.into());
        let authorities = reqwest::Certificate::from_pem_bundle(&pem).map_err(invalid)?;
        let client = reqwest::Client::builder().tls_certs_only(authorities).timeout(POST_TIMEOUT).build();
        let client = client.map_err(invalid)?;
        Ok(Self { config, client, node, posts: Arc::new(Semaphore::new(MAX_POSTS)) })
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
        let failed = |e| Error::with(Kind::Unavailable, "the API server did not take it", e);
        let token = tokio::task::spawn_blocking({
            let path = self.config.token.clone();
            move || std::fs::read_to_string(path)
        });
        let token = token.await.map_err(|e| Error::with(Kind::Interrupted, "the token was not read", e))?;
        let token = token.map_err(|e| Error::disk("cannot read the token of the service account", e))?;
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
        let url = format!("{}/api/v1/namespaces/{}/events", self.config.api_server, pod.namespace);
        let request =
            self.client.post(url).bearer_auth(token.trim()).header("content-type", "application/json");
        let answer = request.body(event.to_string()).send().await.map_err(failed)?;
        answer.error_for_status().map(drop).map_err(failed)
    }
}
