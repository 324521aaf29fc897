//! A secret that is a JSON object, read key by key.

use std::fmt;

use serde_json::{Map, Value};

use crate::error::{Error, Kind, Result};

/// What credentials are called and what they look like, for messages.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) form: &'static str,
}

impl Form {
    /// The error for credentials of this form that are `how`.
    pub(super) fn wrong(self, how: impl fmt::Display) -> Error {
        Error::new(Kind::Invalid, format!("{} {how}; expected {}", self.name, self.form))
    }
}

/// A JSON object whose values are texts. Keys that nobody asks for are left alone.
pub(super) struct Object {
    map: Map<String, Value>,
    form: Form,
}

impl Object {
    pub(super) fn parse(text: &str, form: Form) -> Result<Self> {
        // The parser's own message may quote what it read; only the place is told.
        let value: Value = serde_json::from_str(text)
            .map_err(|e| form.wrong(format!("are no JSON (line {}, column {})", e.line(), e.column())))?;
        match value {
            Value::Object(map) => Ok(Self { map, form }),
            _ => Err(form.wrong("are no JSON object")),
        }
    }

    /// The text under the first of `keys` that is there.
    pub(super) fn optional(&self, keys: &[&str]) -> Result<Option<String>> {
        let Some(key) = keys.iter().find(|key| self.map.get(**key).is_some_and(|v| !v.is_null())) else {
            return Ok(None);
        };
        match &self.map[*key] {
            Value::String(text) if !text.is_empty() => Ok(Some(text.clone())),
            _ => Err(self.form.wrong(format!("are wrong: {key:?} must be a text that is not empty"))),
        }
    }

    /// The object under `key`, if it is there.
    pub(super) fn within(&self, key: &str) -> Result<Option<Self>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { map: map.clone(), form: self.form })),
            Some(_) => Err(self.wrong(format!("are wrong: {key:?} must be an object"))),
        }
    }

    /// All keys with their texts.
    ///
    /// # Errors
    /// Where one is no text.
    pub(super) fn texts(&self) -> Result<Vec<(String, String)>> {
        self.map.keys().map(|key| Ok((key.clone(), self.required(&[key])?))).collect()
    }

    /// Whether there is anything under `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The error for credentials of this form that are `how`.
    pub(super) fn wrong(&self, how: impl fmt::Display) -> Error {
        self.form.wrong(how)
    }

    /// The text under the first of `keys` that is there, which one has to be. The first of `keys` is the one to ask for.
    pub(super) fn required(&self, keys: &[&str]) -> Result<String> {
        self.optional(keys)?.ok_or_else(|| self.form.wrong(format!("are without {:?}", keys[0])))
    }
}
