//! `load_checkpoint_config`: which saved checkpoints a job is given to resume from.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The default path of loaded checkpoints in a job.
const DEFAULT_FOLDER: &str = "/tmp/loaded_checkpoints";
/// The type of the latest checkpoint, and of one that is named, in truss's words.
const LATEST_TYPE: &str = "baseten_latest_checkpoint";
const NAMED_TYPE: &str = "baseten_named_checkpoint";

/// The checkpoints that a job is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointLoading {
    /// The checkpoints to load; as Truss has it, the latest of the job's own project where none are named.
    pub checkpoints: Vec<CheckpointReference>,
    /// The directory that they lie below.
    pub download_folder: PathBuf,
}

impl Default for CheckpointLoading {
    fn default() -> Self {
        Self { checkpoints: vec![CheckpointReference::default()], download_folder: DEFAULT_FOLDER.into() }
    }
}

/// A checkpoint that a job is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointReference {
    /// The project; `None`: that of the job that saved the checkpoint, or the job's own.
    pub project_name: Option<String>,
    /// The ID of the job that saved it; `None`: any.
    pub job_id: Option<String>,
    /// The checkpoint's name; `None`: the latest.
    pub checkpoint_name: Option<String>,
}

/// The checkpoints that a `load_checkpoint_config` asks for; `None` where it is not enabled.
pub(super) fn loading(config: Value) -> Option<CheckpointLoading> {
    let is_enabled = config.get("enabled") == Some(&Value::Bool(true));
    is_enabled.then(|| serde_json::from_value(config).unwrap_or_default())
}

/// Whether a `load_checkpoint_config` asks for checkpoints that can't be loaded, or names one by keys that its type has not.
pub(super) fn cannot_load(config: &Value) -> bool {
    let items = config.get("checkpoints").and_then(Value::as_array);
    config.get("enabled") == Some(&Value::Bool(true))
        && items.is_some_and(|items| items.iter().any(|item| !is_loadable(item)))
}

/// Whether an item of `checkpoints` is the latest or a named checkpoint, with the keys of that and no others, as truss has it. One
/// without a type is what its keys make it.
fn is_loadable(item: &Value) -> bool {
    let is = |typ: &str| item.get("typ").is_none_or(|value| value == typ);
    let has = |key: &str| item.get(key).is_some_and(|value| !value.is_null());
    let lacks = |keys: &[&str]| keys.iter().all(|key| item.get(key).is_none());
    let is_latest = is(LATEST_TYPE) && lacks(&["checkpoint_name", "run_id", "target"]);
    let is_named = is(NAMED_TYPE)
        && has("checkpoint_name")
        && has("job_id")
        && lacks(&["project_name", "run_id", "target"]);
    is_latest || is_named
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn load_checkpoint_config_is_read_as_by_truss() {
        assert_eq!(loading(json!({"enabled": false})), None);
        assert_eq!(loading(Value::Null), None);
        let latest = loading(json!({"enabled": true})).expect("enabled");
        assert_eq!(latest.checkpoints, [CheckpointReference::default()]);
        assert_eq!(latest.download_folder, PathBuf::from("/tmp/loaded_checkpoints"));
        let some = loading(json!({"enabled": true, "download_folder": "/x", "checkpoints": [
            {"typ": "baseten_latest_checkpoint", "job_id": null, "project_name": "p"},
            {"typ": "baseten_named_checkpoint", "job_id": "j", "checkpoint_name": "step-1"},
        ]}));
        let some = some.expect("enabled");
        let named = |project: Option<&str>, job: Option<&str>, name: Option<&str>| CheckpointReference {
            project_name: project.map(str::to_owned),
            job_id: job.map(str::to_owned),
            checkpoint_name: name.map(str::to_owned),
        };
        assert_eq!(some.checkpoints, [named(Some("p"), None, None), named(None, Some("j"), Some("step-1"))]);
        assert_eq!(some.download_folder, PathBuf::from("/x"));
    }

    #[test]
    fn load_checkpoint_config_with_keys_of_another_type_is_refused() {
        for item in [
            json!({"typ": "loops_checkpoint", "run_id": "r", "checkpoint_name": "c", "target": "trainer"}),
            json!({"run_id": "r", "checkpoint_name": "c"}),
            json!({"typ": "baseten_named_checkpoint", "checkpoint_name": "c"}),
            json!({"typ": "baseten_named_checkpoint", "checkpoint_name": "c", "job_id": null}),
            json!({"typ": "baseten_named_checkpoint", "checkpoint_name": "c", "job_id": "j", "project_name": "p"}),
            json!({"typ": "baseten_latest_checkpoint", "checkpoint_name": "c"}),
            json!({"typ": "baseten_latest_checkpoint", "job_id": "j", "run_id": "r"}),
        ] {
            assert!(cannot_load(&json!({"enabled": true, "checkpoints": [item]})), "{item}");
            assert!(!cannot_load(&json!({"enabled": false, "checkpoints": [item]})), "{item}");
        }
        for item in [
            json!({}),
            json!({"typ": "baseten_latest_checkpoint", "job_id": "j", "project_name": "p"}),
            json!({"checkpoint_name": "c", "job_id": "j"}),
        ] {
            assert!(!cannot_load(&json!({"enabled": true, "checkpoints": [item]})), "{item}");
        }
        assert!(!cannot_load(&json!({"enabled": true})));
    }
}
