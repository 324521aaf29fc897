//! Secrets, which are never shown, and the stores that hold them by name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A text that is never shown. It can be serialized, since it is sent between processes of one user.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Makes a secret of `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the request that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A store of secrets by name. [`crate::auth::load`] reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretStore {
    /// The environment of a command, as it was when that started.
    Environment {
        /// The secrets by their names.
        secrets: BTreeMap<String, Secret>,
        /// The name of the variables, for messages.
        variable: String,
    },
    /// A directory with a file for each, as Kubernetes mounts a Secret.
    Directory(PathBuf),
    /// A TOML file with a string for each, which only its owner may access.
    File(PathBuf),
}

impl SecretStore {
    /// Whether it holds secrets itself, and not only references to them.
    pub fn holds_secrets(&self) -> bool {
        matches!(self, Self::Environment { secrets, .. } if !secrets.is_empty())
    }
}

impl fmt::Display for SecretStore {
    /// For messages: `the directory /run/secrets`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment { variable, .. } => write!(f, "the environment ({variable})"),
            Self::Directory(path) => write!(f, "the directory {}", path.display()),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}
