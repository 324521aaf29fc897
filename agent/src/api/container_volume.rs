//! Volumes of containers, as they travel over the control socket: a directory of a project or a team that a container, pod or task
//! writes to, bound where its runtime wants it.
//!
//! `PUT /v1/volumes/{key}` asks for one, `DELETE` ends it; both may be repeated. What was written is saved after the end, and
//! no request waits for that.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;

use bdnfs::checkpoint::{CheckpointId, LOOSE};
use bdnfs::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::cache_scope::CacheScope;
use super::saving::SaveReport;

/// The number of characters of a container's or pod's id that form the id of the job that its checkpoints belong to.
const JOB_ID_LEN: usize = 8;

/// The kind of a container's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ContainerVolumeKind {
    /// A checkpoint directory of its own, saved while it is written.
    Checkpoints,
    /// The training cache of a project, which all its jobs and containers on the node share.
    ProjectCache,
    /// The training cache of a team, likewise.
    TeamCache,
}

impl ContainerVolumeKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Checkpoints, Self::ProjectCache, Self::TeamCache];

    /// The attribute of a volume that asks for it, whose value is the name of the project or team.
    pub fn attribute(self) -> &'static str {
        match self {
            Self::Checkpoints => "checkpoints",
            Self::ProjectCache => "projectCache",
            Self::TeamCache => "teamCache",
        }
    }

    /// The scope of its directory: a project or a team.
    pub fn scope(self) -> CacheScope {
        match self {
            Self::Checkpoints | Self::ProjectCache => CacheScope::Project,
            Self::TeamCache => CacheScope::Team,
        }
    }
}

impl fmt::Display for ContainerVolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.attribute())
    }
}

/// A directory of a project or a team, and where a container, pod or task is to see it. All but kind and name may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerVolumeRequest {
    /// The kind of volume.
    pub kind: ContainerVolumeKind,
    /// The name of the project or team. Written as earlier versions read it.
    #[serde(rename(serialize = "project"), alias = "project")]
    pub name: String,
    /// The id of the job that checkpoints belong to; they need one.
    #[serde(default)]
    pub id: Option<String>,
    /// The number of complete checkpoints of the project that stay in the mirror: each save removes older ones. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<NonZeroU32>,
    /// The tenant that the project or team belongs to, which the runtime knows and no author chooses; default: the agent's own.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The directory to bind it to, which the agent makes and removes. Its parent exists below one of the agent's `targets`.
    /// Without one the answer's path is the directory itself.
    #[serde(default)]
    pub target: Option<PathBuf>,
    /// The container, pod or task that it is for, as shown to users: `pod default/trainer-0`.
    #[serde(rename = "holder", default)]
    pub consumer: Option<String>,
    /// Whether an administrator wrote the request. Other authors get the kinds that `inline_volumes` names.
    #[serde(default)]
    pub trusted: bool,
}

impl ContainerVolumeRequest {
    /// Refuses a name that no project or team can have, an id that is missing, too much or none, and `keep` where nothing has
    /// generations.
    ///
    /// # Errors
    /// [`Kind::Invalid`].
    pub fn check(&self) -> Result<()> {
        let kind = self.kind;
        let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
        if self.keep.is_some() && kind != ContainerVolumeKind::Checkpoints {
            return invalid(format!("keep: cannot be used with {kind}"));
        }
        let checked = match (kind, &self.id) {
            (ContainerVolumeKind::Checkpoints, Some(id)) => {
                CheckpointId::new(&self.name, id, LOOSE, 0).map(drop)
            }
            (ContainerVolumeKind::Checkpoints, None) => invalid("the id of a job is missing".into()),
            (_, Some(_)) => return invalid(format!("id: cannot be used with {kind}")),
            (_, None) => kind.scope().check_name(&self.name),
        };
        checked.map_err(|e| e.context(kind.to_string()))
    }
}

/// The state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerVolumeState {
    /// The container may write to it.
    Published,
    /// Unpublished; what was written is being saved.
    Saving,
    /// Unpublished, but not all could be saved: the directory is kept.
    Unsaved,
}

impl fmt::Display for ContainerVolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Published => "published",
            Self::Saving => "saving",
            Self::Unsaved => "unsaved",
        })
    }
}

/// The status of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContainerVolumeStatus {
    /// The key of the volume.
    pub key: String,
    /// The kind of volume.
    pub kind: ContainerVolumeKind,
    /// The name of the project or team. Written as earlier versions read it.
    #[serde(rename(serialize = "project"), alias = "project")]
    pub name: String,
    /// The id of the job that its checkpoints belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The tenant that the project or team belongs to.
    pub tenant: String,
    /// The container, pod or task that it is for.
    #[serde(rename = "holder", default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The path of a published one: the target, else the directory itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The state.
    pub state: ContainerVolumeState,
    /// The last event, in one line.
    pub message: String,
    /// The checkpoints and their states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saving: Option<SaveReport>,
}

/// All volumes of containers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerVolumeList {
    /// The volumes, by key.
    pub volumes: Vec<ContainerVolumeStatus>,
}

/// The id of the job that the checkpoints of a container or pod with this id belong to: the first letters and digits of it.
pub fn job_id(container: &str) -> Option<String> {
    let id: String = container.chars().filter(char::is_ascii_alphanumeric).take(JOB_ID_LEN).collect();
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_id_of_a_pod_is_the_beginning_of_its_uid() {
        assert_eq!(job_id("3f1c9a2b-0d6e-4f0a-9c1b-2a3b4c5d6e7f").as_deref(), Some("3f1c9a2b"));
        assert_eq!(job_id("of docker").as_deref(), Some("ofdocker"));
        assert_eq!(job_id("../"), None);
    }

    #[test]
    fn volume_request_with_an_unknown_key_or_kind_is_refused_by_name() {
        let parse = |text: &str| serde_json::from_str::<ContainerVolumeRequest>(text);
        assert!(!parse(r#"{"kind": "projectCache", "name": "p"}"#).expect("enough").trusted);
        // What earlier versions wrote, and read.
        let written =
            serde_json::to_string(&parse(r#"{"kind": "teamCache", "project": "t"}"#).expect("enough"));
        assert!(written.expect("JSON").contains(r#""project":"t""#));
        for (text, words) in [
            (r#"{"kind": "teamCache", "name": ""}"#, "teamCache: the name of a team is empty"),
            (r#"{"kind": "teamCache", "name": "t", "id": "x"}"#, "id: cannot be used with teamCache"),
            (r#"{"kind": "projectCache", "name": "p", "keep": 2}"#, "keep: cannot be used with projectCache"),
            (r#"{"kind": "checkpoints", "name": "p"}"#, "checkpoints: the id of a job is missing"),
            (r#"{"kind": "checkpoints", "name": "p", "id": "../x"}"#, "checkpoints: bad job ID"),
        ] {
            let error = parse(text).expect("a request").check().expect_err(words).to_string();
            assert!(error.starts_with(words), "{error}");
        }
        for (text, word) in [
            (r#"{"kind": "checkpoints", "name": "p", "dir": "/"}"#, "dir"),
            (r#"{"kind": "scratch", "name": "p"}"#, "scratch"),
            (r#"{"kind": "checkpoints", "name": "p", "keep": 0}"#, "nonzero"),
        ] {
            assert!(parse(text).expect_err(word).to_string().contains(word));
        }
    }
}
