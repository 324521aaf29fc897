//! A secret that is a JSON object, read key by key.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::{Error, Kind, Result};

/// The name of a kind of credentials and the expected format, for messages.
#[derive(Clone, Copy)]
pub(super) struct CredentialFormat {
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
}

impl CredentialFormat {
    /// The error for credentials that are `how`.
    pub(super) fn invalid(self, how: impl fmt::Display) -> Error {
        Error::new(Kind::Invalid, format!("{} {how}; expected {}", self.name, self.expected))
    }
}

/// A secret that is a JSON object of strings. Unknown keys are ignored.
pub(super) struct SecretJson {
    map: Map<String, Value>,
    format: CredentialFormat,
}

impl SecretJson {
    pub(super) fn parse(text: &str, format: CredentialFormat) -> Result<Self> {
        // The parser's own message may quote what it read, so only the position is shown.
        let value: Value = serde_json::from_str(text).map_err(|e| {
            format.invalid(format!("are not JSON (line {}, column {})", e.line(), e.column()))
        })?;
        match value {
            Value::Object(map) => Ok(Self { map, format }),
            _ => Err(format.invalid("are not a JSON object")),
        }
    }

    /// The string under the first of `keys` that exists.
    pub(super) fn optional(&self, keys: &[&str]) -> Result<Option<String>> {
        let Some(key) = keys.iter().find(|key| self.map.get(**key).is_some_and(|v| !v.is_null())) else {
            return Ok(None);
        };
        match &self.map[*key] {
            Value::String(text) if !text.is_empty() => Ok(Some(text.clone())),
            _ => Err(self.format.invalid(format!("are wrong: {key:?} must be a string that is not empty"))),
        }
    }

    /// The object under `key`, if it exists.
    pub(super) fn within(&self, key: &str) -> Result<Option<Self>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { map: map.clone(), format: self.format })),
            Some(_) => Err(self.invalid(format!("are wrong: {key:?} must be an object"))),
        }
    }

    /// All keys with their strings.
    ///
    /// # Errors
    /// Where one is not a string.
    pub(super) fn strings(&self) -> Result<Vec<(String, String)>> {
        self.map.keys().map(|key| Ok((key.clone(), self.required(&[key])?))).collect()
    }

    /// Whether there is anything under `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The error for credentials that are `how`.
    pub(super) fn invalid(&self, how: impl fmt::Display) -> Error {
        self.format.invalid(how)
    }

    /// The string under the first of `keys` that exists; messages name the first of them as missing.
    pub(super) fn required(&self, keys: &[&str]) -> Result<String> {
        self.optional(keys)?.ok_or_else(|| self.format.invalid(format!("lack {:?}", keys[0])))
    }
}
