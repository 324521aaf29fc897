//! Publications, as they travel over the control socket: a source for a container, pod or task, staged by the agent and bound
//! where its runtime wants it.
//!
//! `PUT /v1/publications/{key}` asks for one or joins it, `DELETE` ends it; both may be repeated. The request's own failure
//! comes as a [`Failure`], whose kind says what the runtime is to do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::{Access, Secret, TreeLayout};
use serde::{Deserialize, Serialize};

use super::{Failure, MirrorRequest};

/// The file in the directory of a Slurm job whose removal ends the publications there.
pub const SLURM_STATE_FILE: &str = "state";
/// The number of hexadecimal digits of a digest that distinguish the publications of a runtime.
const KEY_DIGEST_LEN: usize = 32;
/// The longest key: it is the name of a file.
const MAX_KEY_LEN: usize = 128;

/// A source, and where a container, pod or task is to see it. All paths are absolute; all but the source may be left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublicationRequest {
    /// The source's URI; a secret, since a URL may be signed.
    pub source: Secret,
    /// Patterns of the files to take; `None`: all.
    #[serde(default)]
    pub allow: Option<Vec<String>>,
    /// Patterns of the files to leave out.
    #[serde(default)]
    pub ignore: Vec<String>,
    /// The access to the source: credentials and endpoints.
    #[serde(default)]
    pub access: Access,
    /// The secrets that came with the request, by their names. Where `access` names none, the only one is used.
    #[serde(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// The mirror to copy it to first; default: the agent's own.
    #[serde(default)]
    pub mirror: Option<MirrorRequest>,
    /// The tenant that the data belongs to, which the runtime knows and no author chooses; default: the agent's own.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Owner of all files.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Group of all files.
    #[serde(default)]
    pub gid: Option<u32>,
    /// The directory to bind it to, which the agent makes and removes. Its parent exists below one of the agent's `targets`.
    /// Without one the answer's path is the base.
    #[serde(default)]
    pub target: Option<PathBuf>,
    /// The container, pod or task that it is for, as shown to users: `pod default/llama-0`.
    #[serde(rename = "holder", default)]
    pub consumer: Option<String>,
    /// Whether it is published before all of it is local.
    #[serde(default)]
    pub staging: Staging,
    /// The layout of the tree; default: that of the origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<TreeLayout>,
    /// Whether an administrator wrote the request. Other authors may not choose endpoints, mirrors and owners, and never get
    /// the credentials of the node.
    #[serde(default)]
    pub trusted: bool,
    /// Whether it stays without further requests. Else a pending one is dropped after five minutes.
    #[serde(default)]
    pub keep: bool,
}

impl PublicationRequest {
    /// Whether a URL in it is signed, so that it serves for a while only.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a URL that is none.
    pub fn is_signed(&self) -> Result<bool> {
        let mirror = self.mirror.as_ref().map(MirrorRequest::without_secrets).transpose()?;
        Ok(super::bare(&self.source)?.1 || mirror.is_some_and(|(_, had)| had))
    }
}

/// Whether a source is published before or after it is staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Staging {
    /// After every byte is local, verified and leased.
    #[default]
    Wait,
    /// At once; bytes are fetched as they are read.
    Lazy,
}

/// The status of a publication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublicationStatus {
    /// The key of the publication.
    pub key: String,
    /// Staging, published or failed.
    pub state: PublicationState,
    /// The source, without a signature.
    pub source: String,
    /// The tenant that the data belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The container, pod or task that it is for.
    #[serde(rename = "holder", default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The path of a published one: the target, else the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// The target that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PathBuf>,
    /// The snapshot's id, in hexadecimal, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The part of the source that is local, once that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<PublicationProgress>,
    /// The last event, in one line.
    pub message: String,
    /// The reason why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Whether what it shows is damaged: its base is lost, or not all of it is local any more.
    #[serde(default)]
    pub abnormal: bool,
}

/// The state of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublicationState {
    /// The source is being mirrored, mounted, admitted or staged.
    Staging,
    /// The source is mounted at the path.
    Published,
    /// The publication failed and left nothing behind.
    Failed,
}

impl fmt::Display for PublicationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Staging => "staging",
            Self::Published => "published",
            Self::Failed => "failed",
        })
    }
}

/// The staging progress of a publication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationProgress {
    /// Number of regular files.
    pub files: u64,
    /// Bytes of the files that are local.
    pub bytes_done: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// Bytes per second that are fetched.
    pub rate: u64,
    /// Seconds that the rest will take at that rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// All publications.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublicationList {
    /// The publications, by key.
    pub publications: Vec<PublicationStatus>,
}

/// A source that the agent's configuration names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedSource {
    /// The name in the configuration.
    pub name: String,
    /// The source, without a signature.
    pub source: String,
    /// The path at which containers see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_location: Option<PathBuf>,
    /// The publication of the source; its path is the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publication: Option<PublicationStatus>,
}

/// All sources that the agent's configuration names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceList {
    /// The sources, by name.
    pub sources: Vec<NamedSource>,
}

/// The key of the publication that `runtime` (`csi`, `docker`) calls `id`, at `target` where it has several.
pub fn publication_key(runtime: &str, id: &str, target: Option<&Path>) -> String {
    let target = target.map_or(&b""[..], |target| target.as_os_str().as_encoded_bytes());
    let mut digest = bdnfs::digest::Digest::of(&[id.as_bytes(), b"\0", target].concat()).to_string();
    digest.truncate(KEY_DIGEST_LEN);
    format!("{runtime}-{digest}")
}

/// Whether `key` can be the key of a publication or volume: letters, digits, `.`, `_` and `-`, the first a letter or digit.
pub fn is_publication_key(key: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    key.len() <= MAX_KEY_LEN
        && key.starts_with(|c: char| c.is_ascii_alphanumeric())
        && key.bytes().all(is_fit)
}

/// Makes sure that `key` can be the key of a publication or volume.
///
/// # Errors
/// [`Kind::Invalid`].
pub fn check_publication_key(key: &str) -> Result<()> {
    if is_publication_key(key) {
        return Ok(());
    }
    let text = format!(
        "invalid key {key:?}: expected up to {MAX_KEY_LEN} letters, digits, dots, underscores and dashes, the first a \
         letter or digit"
    );
    Err(Error::new(Kind::Invalid, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publication_request_with_an_unknown_key_is_refused_by_name() {
        let minimal: PublicationRequest = serde_json::from_str(r#"{"source": "hf://o/m"}"#).expect("enough");
        assert!(!minimal.trusted && !minimal.keep && minimal.staging == Staging::Wait);
        let error = serde_json::from_str::<PublicationRequest>(r#"{"source": "hf://o/m", "cacheDir": "/"}"#);
        assert!(error.expect_err("unknown").to_string().contains("cacheDir"));
    }

    #[test]
    fn publication_request_debug_shows_no_secrets() {
        let text = r#"{"source": "https://h/x?sig=hush", "secrets": {"hf": "hush"}}"#;
        let request: PublicationRequest = serde_json::from_str(text).expect("a request");
        assert!(!format!("{request:?}").contains("hush"), "{request:?}");
    }

    #[test]
    fn publication_key_of_any_id_and_target_is_a_valid_file_name() {
        let [one, other] =
            ["/a", "/b"].map(|target| publication_key("csi", "../x y", Some(Path::new(target))));
        assert!(one != other && one.starts_with("csi-") && is_publication_key(&one), "{one}");
        for key in ["", ".", "../x", "a/b", "-x", "a b", &"x".repeat(MAX_KEY_LEN + 1)] {
            assert!(!is_publication_key(key), "{key}");
        }
    }
}
