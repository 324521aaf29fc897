//! A container as its runtime describes it to a hook: the state on standard input, and the bundle that the state names.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::source::{AuthMethod, Severity, TreeLayout};
use bdnfs::weights::{self, Rules, WeightsSource};
use bdnfs_agent::api::publication::publication_key;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::source::Source;

/// The annotation that names weights.
const WEIGHTS_ANNOTATION: &str = "io.bdnfs.weights";
/// The status of a container for which poststop hooks are run.
const STOPPED_STATUS: &str = "stopped";
/// The longest state or configuration that is read: both are written by the runtime.
const MAX_STATE_BYTES: u64 = 16 << 20;

/// The state of a container, of which a hook needs this much.
#[derive(Debug, Deserialize)]
pub struct ContainerState {
    /// The id that the runtime gave the container.
    pub id: String,
    status: String,
    /// The first process of the container, which has its mount namespace; 0 once it has ended.
    #[serde(default)]
    pub pid: i32,
    bundle: PathBuf,
}

impl ContainerState {
    /// Reads the state as JSON.
    pub fn read(from: impl Read) -> Result<Self> {
        serde_json::from_reader(from.take(MAX_STATE_BYTES))
            .context("standard input is not the state of a container")
    }

    /// Whether the container has ended.
    pub fn has_ended(&self) -> bool {
        self.status == STOPPED_STATUS
    }

    /// The prefix of the keys of its publications. Runtimes may give the same id to different bundles.
    pub fn key_prefix(&self) -> String {
        format!("{}-", publication_key("oci", &self.id, Some(&self.bundle)))
    }
}

/// The bundle of a container.
#[derive(Debug)]
pub struct Bundle {
    /// The directory that will be the root of the container.
    pub root: PathBuf,
    weights: Option<String>,
}

/// A source that a container's annotation names.
#[derive(Debug)]
pub struct ContainerWeights {
    /// The source of the weights.
    pub source: Source,
    /// The directory in the container.
    pub mount_location: PathBuf,
    /// Patterns of files to include; `None` for all.
    pub allow: Option<Vec<String>>,
    /// Patterns of files to exclude.
    pub ignore: Vec<String>,
    /// Patterns of files that may be executed.
    pub executable: Vec<String>,
    /// The layout of the tree.
    pub layout: Option<TreeLayout>,
    /// The authorization method for the source.
    pub auth: Option<AuthMethod>,
}

#[derive(Deserialize)]
struct RuntimeConfig {
    root: RootConfig,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RootConfig {
    path: PathBuf,
}

impl Bundle {
    /// Reads the configuration of a container.
    pub fn read(state: &ContainerState) -> Result<Self> {
        let path = state.bundle.join("config.json");
        let config = File::open(&path).map_err(anyhow::Error::from);
        let config = config.and_then(|file| Ok(serde_json::from_reader(file.take(MAX_STATE_BYTES))?));
        let RuntimeConfig { root, mut annotations } =
            config.with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { root: state.bundle.join(root.path), weights: annotations.remove(WEIGHTS_ANNOTATION) })
    }

    /// The weights that the annotation names.
    pub fn weights(&self) -> Result<Vec<ContainerWeights>> {
        self.weights.as_deref().map_or(Ok(Vec::new()), parse)
    }
}

/// Parses the value of the annotation: a list of weights with the keys of Truss.
fn parse(annotation: &str) -> Result<Vec<ContainerWeights>> {
    let list: Value = serde_json::from_str(annotation)
        .with_context(|| format!("annotation {WEIGHTS_ANNOTATION} is not a JSON list of weights"))?;
    let (accepted, findings) =
        weights::read(&json!({"weights": list}), Rules { bdnfs_schema: true, lenient: false });
    if let Some(reject) = findings.iter().find(|finding| finding.verdict == Severity::Reject) {
        bail!("annotation {WEIGHTS_ANNOTATION}: {}: {}", reject.place, reject.text);
    }
    let entry = |weights: WeightsSource| ContainerWeights {
        source: weights.source.into(),
        mount_location: weights.mount_location,
        allow: weights.allow_patterns,
        ignore: weights.ignore_patterns.unwrap_or_default(),
        executable: weights.executable_patterns.unwrap_or_default(),
        layout: weights.layout,
        auth: weights.auth,
    };
    Ok(accepted.into_iter().map(|accepted| entry(accepted.weights)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_state_has_ended_only_when_stopped() {
        let state = |status: &str, bundle: &str| {
            let text = format!(
                r#"{{"ociVersion": "1.0.2", "id": "a", "status": "{status}", "bundle": "{bundle}"}}"#
            );
            ContainerState::read(text.as_bytes()).expect("a state")
        };
        // runc says creating, crun created.
        assert!(!state("creating", "/b").has_ended() && !state("created", "/b").has_ended());
        assert!(state("stopped", "/b").has_ended());
        assert_eq!(state("created", "/b").key_prefix(), state("stopped", "/b").key_prefix());
        assert_ne!(state("created", "/b").key_prefix(), state("created", "/c").key_prefix());
        ContainerState::read(&b"{}"[..]).expect_err("no state");
    }

    #[test]
    fn annotation_has_the_keys_of_truss() {
        let text = r#"[{"source": "hf://o/m@main", "mount_location": "/models/m", "allow_patterns": ["*.json"],
            "auth_secret_name": "hf"}, {"source": "s3://b/p", "mount_location": "/models/p"}]"#;
        let weights = parse(text).expect("valid");
        assert_eq!(weights[0].source.uri().to_string(), "hf://models/o/m@main");
        assert_eq!(weights[0].allow, Some(vec!["*.json".to_owned()]));
        assert_eq!(weights[0].auth.as_ref().and_then(AuthMethod::secret), Some("hf"));
        assert_eq!(weights[1].mount_location, PathBuf::from("/models/p"));
    }

    #[test]
    fn annotation_with_an_error_is_refused_by_its_place() {
        for (text, place) in [
            ("hf://o/m", "not a JSON list"),
            (r#"[{"source": "hf://o/m"}]"#, "weights[0]"),
            (r#"[{"source": "hf://o/m", "mount_location": "models"}]"#, "weights[0].mount_location"),
            (r#"[{"source": "hf://o/m", "mount_location": "/../x"}]"#, "weights[0].mount_location"),
            (
                r#"[{"source": "hf://o/m", "mount_location": "/m", "endpoint": "http://x"}]"#,
                "weights[0].endpoint",
            ),
        ] {
            let error = format!("{:#}", parse(text).expect_err(text));
            assert!(
                error.contains(WEIGHTS_ANNOTATION) && error.contains(place) && !error.contains('\n'),
                "{error}"
            );
        }
    }
}
