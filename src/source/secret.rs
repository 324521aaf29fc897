//! Secrets, which are never shown, and the stores that hold them by name.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
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

/// An error of JSON that may hold secrets. Its text repeats keys, and no value: the parser's own quotes what it did not expect, which
/// may be a secret at the wrong place.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SecretJsonError(String);

impl From<serde_json::Error> for SecretJsonError {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        // What it says of syntax has no value, unlike most of what it says of data.
        let is_plain =
            !error.is_data() || text.starts_with("missing field") || text.starts_with("unknown field");
        Self(if is_plain {
            text
        } else {
            format!("line {} column {}: invalid value or type", error.line(), error.column())
        })
    }
}

impl From<SecretJsonError> for io::Error {
    fn from(error: SecretJsonError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Secrets by their names, which all clones share: a replaced one is found by the next lookup.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, Secret>", into = "BTreeMap<String, Secret>")]
pub struct SharedSecrets(Arc<RwLock<BTreeMap<String, Secret>>>);

impl SharedSecrets {
    /// The secret called `name`.
    pub fn get(&self, name: &str) -> Option<Secret> {
        self.0.read().get(name).cloned()
    }

    /// Sets the secret called `name`. False where it is the same.
    pub fn replace(&self, name: &str, secret: Secret) -> bool {
        self.0.write().insert(name.to_owned(), secret.clone()).as_ref() != Some(&secret)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }
}

impl From<BTreeMap<String, Secret>> for SharedSecrets {
    fn from(secrets: BTreeMap<String, Secret>) -> Self {
        Self(Arc::new(RwLock::new(secrets)))
    }
}

impl From<SharedSecrets> for BTreeMap<String, Secret> {
    fn from(SharedSecrets(secrets): SharedSecrets) -> Self {
        secrets.read().clone()
    }
}

impl PartialEq for SharedSecrets {
    fn eq(&self, other: &Self) -> bool {
        // One after the other: both may be the same lock.
        let other = other.0.read().clone();
        *self.0.read() == other
    }
}

impl Eq for SharedSecrets {}

/// A store of secrets by name. [`crate::auth::load`] reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretStore {
    /// The environment of a command, as it was when that started.
    Environment {
        /// The secrets by their names.
        secrets: SharedSecrets,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_secret_json_repeats_no_value() {
        let text = r#"{"name": 1, "store": "hush"}"#;
        let parse = serde_json::from_str::<BTreeMap<String, u32>>;
        let error = parse(text).expect_err("a string is no number");
        assert!(error.to_string().contains("hush"), "{error}");
        let error = SecretJsonError::from(error);
        assert_eq!(error.to_string(), "line 1 column 27: invalid value or type");
        assert_eq!(io::Error::from(error).to_string(), "line 1 column 27: invalid value or type");
        let error = SecretJsonError::from(parse(r#"{"name": 1"#).expect_err("cut off"));
        assert_eq!(error.to_string(), "EOF while parsing an object at line 1 column 10");
    }
}
