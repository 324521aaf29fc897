//! The training cache that a job asks for: directories of its project and its team that outlive it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job::Specification;
use crate::source::Diagnostics;

/// The default paths of the caches in a job.
const DEFAULT_BASE_PATH: &str = "/root/.cache";

/// The training cache of a job, by the keys of Truss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingCache {
    /// The directory below which the caches appear: absolute, without `..`.
    pub mount_base_path: PathBuf,
    /// Whether the job has to find what its project has cached: else it may begin with an empty cache.
    pub require_cache_affinity: bool,
    /// Whether `huggingface` appears beside the caches, a directory of the project's.
    pub enable_legacy_hf_mount: bool,
}

impl Default for TrainingCache {
    fn default() -> Self {
        Self {
            mount_base_path: DEFAULT_BASE_PATH.into(),
            require_cache_affinity: true,
            enable_legacy_hf_mount: false,
        }
    }
}

impl TrainingCache {
    /// The place of the project's cache.
    pub fn project_path(&self) -> PathBuf {
        self.mount_base_path.join("user_artifacts")
    }

    /// The place of the team's cache.
    pub fn team_path(&self) -> PathBuf {
        self.mount_base_path.join("team_artifacts")
    }

    /// The place of the directory of the Hub's library, where it is asked for.
    pub fn hub_path(&self) -> Option<PathBuf> {
        self.enable_legacy_hf_mount.then(|| self.mount_base_path.join("huggingface"))
    }

    /// All paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        [self.project_path(), self.team_path()].into_iter().chain(self.hub_path()).collect()
    }
}

/// The training cache that a document asks for: its `cache_config`, or the older `enable_cache`, which means the legacy directory,
/// too.
pub fn training_cache(document: &Value) -> Option<TrainingCache> {
    let job = Specification::find(document, &mut Diagnostics::default())?;
    let runtime = job.fields.present("runtime")?;
    if runtime["enable_cache"] == true {
        return Some(TrainingCache { enable_legacy_hf_mount: true, ..TrainingCache::default() });
    }
    let config = runtime.get("cache_config").filter(|config| config["enabled"] == true)?;
    let flag = |key: &str, default| config.get(key).and_then(Value::as_bool).unwrap_or(default);
    let default = TrainingCache::default();
    let base = config.get("mount_base_path").and_then(Value::as_str).map(PathBuf::from);
    Some(TrainingCache {
        mount_base_path: base.unwrap_or(default.mount_base_path),
        require_cache_affinity: flag("require_cache_affinity", default.require_cache_affinity),
        enable_legacy_hf_mount: flag("enable_legacy_hf_mount", default.enable_legacy_hf_mount),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn training_cache_is_read_as_by_truss() {
        let of = |runtime: Value| {
            let job = json!({"image": {"base_image": "x"}, "runtime": runtime});
            training_cache(&json!({"training_job": job}))
        };
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({"enable_cache": false, "cache_config": {"enabled": false}})), None);
        assert_eq!(of(json!({"cache_config": {"enabled": true}})), Some(TrainingCache::default()));
        let old = of(json!({"enable_cache": true})).expect("asked for");
        assert_eq!(old.paths().last(), Some(&PathBuf::from("/root/.cache/huggingface")));
        let config = json!({"enabled": true, "mount_base_path": "/c", "require_cache_affinity": false});
        let own = of(json!({"cache_config": config})).expect("asked for");
        assert!(!own.require_cache_affinity && !own.enable_legacy_hf_mount);
        assert_eq!(own.paths(), ["/c/user_artifacts", "/c/team_artifacts"].map(PathBuf::from));
    }
}
