//! Locality: labels of a node that say which snapshots it has whole, and which training caches, which pods may prefer; and the
//! taint that keeps pods away until the node can serve them.
//!
//! Each turn compares the node with what the agent has, and patches what differs, so nothing is to be remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::Uri;
use bdnfs_agent::api::cache::CacheSummary;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::training_cache_list::TrainingCacheList;
use bdnfs_agent::text;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api_server::{ApiServer, ApiServerConfig};

/// The prefix of the labels.
const LABEL_PREFIX: &str = "bdnfs.io/has-";
/// The number of hexadecimal digits of a digest that follow it. Two sources that share them cost a pod nothing but a worse node.
const KEY_DIGITS: usize = 16;
/// The maximum number of labels that a node has for snapshots, and likewise for training caches: of those that were used last. Each
/// is in memory wherever nodes are watched.
const MAX_LABELS: usize = 64;
/// The taint that a node may start with.
const NOT_READY_TAINT: &str = "bdnfs.io/agent-not-ready";
/// The interval at which a node that is not ready is checked.
const NOT_READY_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The time in which the agent must list the training caches.
const TRAINING_CACHES_TIMEOUT: Duration = Duration::from_secs(10);
/// A JSON merge patch (RFC 7386).
const MERGE_PATCH: &str = "application/merge-patch+json";

/// The node object to patch, and how often.
#[derive(Clone, Debug)]
pub struct LocalityConfig {
    /// The API server, whose service account may get and patch nodes, and get CSINodes.
    pub api_server: ApiServerConfig,
    /// The least time between two patches.
    pub interval: Duration,
}

/// The label of nodes that have a snapshot of a source whole, by the source's [identity](Uri::identity), or the home of a training
/// cache, by the name of its source. Revisions of the Hub share it: a branch moves, and most of its blobs stay. Each tenant has
/// labels of its own, since it shares no data.
pub fn source_label(tenant: &str, identity: &str) -> String {
    let (uri, endpoint) = identity.split_once(" at ").map_or((identity, None), |(uri, at)| (uri, Some(at)));
    let uri = match uri.parse() {
        Ok(Uri::Hf { kind, id, path, .. }) => Uri::Hf { kind, id, revision: None, path }.to_string(),
        _ => uri.to_owned(),
    };
    let digest = Digest::of(format!("{tenant}\n{uri}\n{}", endpoint.unwrap_or_default()).as_bytes());
    format!("{LABEL_PREFIX}{}", &digest.to_string()[..KEY_DIGITS])
}

/// Keeps the labels and the taint of a node up to date.
pub struct NodePatcher {
    server: ApiServer,
    agent: Client,
    node: String,
    driver: String,
    interval: Duration,
}

impl NodePatcher {
    /// Patches `node`, where the driver `driver` runs beside `agent`, as `config` says.
    ///
    /// # Errors
    /// Those of [`ApiServer::new`].
    pub fn new(config: LocalityConfig, agent: Client, node: String, driver: String) -> Result<Self> {
        let LocalityConfig { api_server, interval } = config;
        Ok(Self { server: ApiServer::new(api_server)?, agent, node, driver, interval })
    }

    /// Patches the node at each interval. Never ends.
    pub async fn run(self) {
        let mut is_ready = false;
        loop {
            is_ready = self.patch().await.unwrap_or_else(|error| {
                tracing::warn!("cannot label node {}: {}", self.node, text::line(&error));
                // The taint of a node that was ready has gone.
                is_ready
            });
            tokio::time::sleep(if is_ready { self.interval } else { NOT_READY_POLL_INTERVAL }).await;
        }
    }

    /// Patches labels that differ, and returns whether pods can be served.
    async fn patch(&self) -> Result<bool> {
        let summary = match self.agent.cache().await {
            Ok(summary) => summary,
            Err(error) if error.is_gone() => return Ok(false),
            Err(error) => return Err(Error::new(Kind::Unavailable, error.to_string())),
        };
        let caches = self.training_caches().await;
        let path = format!("/api/v1/nodes/{}", self.node);
        let node = self.server.get(&path).await?;
        let mut patch = json!({});
        let labels = label_changes(&node, &labels(&summary, caches.as_ref()), caches.is_some());
        if !labels.is_empty() {
            patch["metadata"]["labels"] = json!(labels);
        }
        let taints = node["spec"]["taints"].as_array().map_or(&[][..], Vec::as_slice);
        let others: Vec<_> = taints.iter().filter(|taint| taint["key"] != NOT_READY_TAINT).collect();
        let is_tainted = others.len() < taints.len();
        let is_registered = !is_tainted || self.is_registered().await?;
        if is_tainted && is_registered {
            patch["spec"]["taints"] = json!(others);
            // The list is replaced as a whole: what others have added meanwhile must not be lost.
            patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"].clone();
        }
        if patch != json!({}) {
            self.server.write(Method::PATCH, &path, MERGE_PATCH, &patch).await?;
        }
        Ok(is_registered)
    }

    /// The training caches on the node; `None` where they are not known now, which is no reason to leave the rest undone.
    async fn training_caches(&self) -> Option<TrainingCacheList> {
        let known = match timeout(TRAINING_CACHES_TIMEOUT, self.agent.training_caches()).await {
            // An earlier agent, which does not know them.
            Ok(Err(error)) if error.is(Kind::NotFound) => {
                return Some(TrainingCacheList { caches: Vec::new() });
            }
            Ok(known) => known.map_err(|error| error.to_string()),
            Err(_) => {
                Err(format!("the agent does not list them within {} s", TRAINING_CACHES_TIMEOUT.as_secs()))
            }
        };
        known.inspect_err(|error| tracing::warn!("labels for training caches stay as they are: {error}")).ok()
    }

    /// Whether the kubelet has said that the driver runs here.
    async fn is_registered(&self) -> Result<bool> {
        let csi_node = match self.server.get(&format!("/apis/storage.k8s.io/v1/csinodes/{}", self.node)).await
        {
            // The kubelet makes it with its first driver.
            Err(error) if error.kind() == Kind::NotFound => return Ok(false),
            found => found?,
        };
        let drivers = csi_node["spec"]["drivers"].as_array();
        Ok(drivers.is_some_and(|drivers| drivers.iter().any(|driver| driver["name"] == *self.driver)))
    }
}

/// The labels of what a cache has whole, and of training caches, as far as they are known.
fn labels(summary: &CacheSummary, caches: Option<&TrainingCacheList>) -> BTreeSet<String> {
    let is_whole = |files: u64, local: u64| files > 0 && local == files;
    let mut whole: Vec<_> =
        summary.snapshots.iter().filter(|one| is_whole(one.files, one.files_local)).collect();
    whole.sort_by_key(|one| std::cmp::Reverse(one.used_at));
    let whole = whole.into_iter().map(|one| source_label(&one.tenant, &one.source));
    let mut homes: Vec<_> = caches.into_iter().flat_map(|list| &list.caches).collect();
    homes.sort_by_key(|one| std::cmp::Reverse(one.used_at));
    let homes = homes.into_iter().map(|one| source_label(&one.tenant, &one.source));
    first(whole).chain(first(homes)).collect()
}

/// The first different labels, as many as may be.
fn first(labels: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    let mut known = BTreeSet::new();
    labels.filter(move |label| known.insert(label.clone())).take(MAX_LABELS)
}

/// The changes to a node's labels: `None` for those that go. Where not all that are wanted are known, none goes: a label does not
/// tell what it is for.
fn label_changes(
    node: &Value,
    wanted: &BTreeSet<String>,
    all_known: bool,
) -> BTreeMap<String, Option<&'static str>> {
    let known: BTreeSet<_> = node["metadata"]["labels"]
        .as_object()
        .map(|labels| labels.keys().filter(|key| key.starts_with(LABEL_PREFIX)).cloned().collect())
        .unwrap_or_default();
    let gone = known.difference(wanted).filter(|_| all_known).map(|key| (key.clone(), None));
    let new = wanted.difference(&known).map(|key| (key.clone(), Some("true")));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use bdnfs_agent::api::training_cache_list::TrainingCacheStatus;

    use super::*;

    fn summary(snapshots: &[(&str, u64, i64)]) -> CacheSummary {
        let snapshot = |&(source, local, used_at): &(&str, u64, i64)| {
            json!({
                "tenant": "team", "source": source, "snapshot": "00", "files": 2, "files_local": local, "bytes": 1,
                "bytes_local": 1, "used_at": used_at, "pinned": false, "in_use_by": [],
            })
        };
        let snapshots: Vec<_> = snapshots.iter().map(snapshot).collect();
        let usage = json!({"used": 0, "capacity": null, "free": 0, "reserve": 0, "evicted": 0});
        let summary = json!({"cache": "/c", "usage": usage, "tenants": [], "snapshots": snapshots});
        serde_json::from_value(summary).expect("a summary")
    }

    #[test]
    fn source_label_is_equal_across_revisions_and_differs_by_tenant_and_endpoint() {
        let of = |identity: &str| source_label("team", identity);
        assert_eq!(of("hf://models/o/m@main"), of("hf://models/o/m@0123456789"));
        assert_eq!(of("hf://models/o/m"), of("hf://models/o/m@v1"));
        assert_ne!(of("hf://models/o/m/x"), of("hf://models/o/m"));
        assert_ne!(of("hf://models/o/m at https://h"), of("hf://models/o/m"));
        assert_eq!(of("hf://models/o/m@v1 at https://h"), of("hf://models/o/m at https://h"));
        assert_ne!(of("s3://b/p"), source_label("other", "s3://b/p"));
        // What was printed for a manifest is in it for long.
        assert_eq!(of("s3://b/p").len(), LABEL_PREFIX.len() + KEY_DIGITS);
    }

    #[test]
    fn node_labels_are_of_the_newest_complete_snapshots_and_training_caches() {
        let sources: Vec<_> = (0..70).map(|number| format!("s3://b/{number}")).collect();
        let mut snapshots: Vec<_> =
            sources.iter().zip(0..).map(|(source, used_at)| (source.as_str(), 2, used_at)).collect();
        snapshots.push(("s3://partial", 1, 100));
        let cache = |number: i64| TrainingCacheStatus {
            tenant: "team".into(),
            source: format!("cache://project/{number}"),
            used_at: number,
        };
        let caches = TrainingCacheList { caches: (0..70).map(cache).collect() };
        let labels = labels(&summary(&snapshots), Some(&caches));
        assert_eq!(labels.len(), 2 * MAX_LABELS);
        assert!(labels.contains(&source_label("team", "cache://project/69")));
        assert!(!labels.contains(&source_label("team", "cache://project/0")));
        assert!(labels.contains(&source_label("team", "s3://b/69")));
        assert!(!labels.contains(&source_label("team", "s3://b/0")));
        assert!(!labels.contains(&source_label("team", "s3://partial")));
    }

    #[test]
    fn label_changes_keep_labels_of_others_and_of_what_is_not_known() {
        let node = json!({"metadata": {"labels": {"bdnfs.io/has-a": "true", "bdnfs.io/has-b": "true", "zone": "1"}}});
        let wanted = ["bdnfs.io/has-b", "bdnfs.io/has-c"].map(str::to_owned).into();
        let changes = label_changes(&node, &wanted, true);
        assert_eq!(json!(changes), json!({"bdnfs.io/has-a": null, "bdnfs.io/has-c": "true"}));
        assert_eq!(json!(label_changes(&node, &wanted, false)), json!({"bdnfs.io/has-c": "true"}));
        assert!(label_changes(&json!({}), &BTreeSet::new(), true).is_empty());
    }
}
