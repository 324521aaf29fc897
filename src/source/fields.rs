//! Reading a mapping of a configuration key by key: what is wrong is noted, and reading goes on.

use serde_json::{Map, Value};

use super::diagnostic::{Diagnostics, DocumentPath};

/// A mapping and where it stands.
pub(crate) struct Fields<'a> {
    pub(crate) map: &'a Map<String, Value>,
    pub(crate) place: DocumentPath,
}

impl<'a> Fields<'a> {
    /// Reads `value` as a mapping.
    pub(crate) fn of(value: &'a Value, place: DocumentPath, found: &mut Diagnostics) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self { map, place }),
            other => {
                found.reject(&place, format!("must be a mapping, not {}", kind(other)));
                None
            }
        }
    }

    /// The required string at `key`.
    pub(crate) fn required(&self, key: &str, found: &mut Diagnostics) -> Option<&'a str> {
        match self.map.get(key) {
            Some(value) => text(value, &self.place.key(key), found),
            None => {
                found.reject(&self.place.key(key), "is missing");
                None
            }
        }
    }

    /// The optional string at `key`.
    pub(crate) fn optional(&self, key: &str, found: &mut Diagnostics) -> Option<&'a str> {
        self.present(key).and_then(|value| text(value, &self.place.key(key), found))
    }

    /// The optional list of strings at `key`.
    pub(crate) fn strings(&self, key: &str, found: &mut Diagnostics) -> Option<Vec<String>> {
        let place = self.place.key(key);
        let items = list(self.present(key)?, &place, found)?;
        let text = |(i, item)| text(item, &place.index(i), found).map(str::to_owned);
        let texts: Vec<_> = items.iter().enumerate().filter_map(text).collect();
        (texts.len() == items.len()).then_some(texts)
    }

    /// The value at `key`, unless it is null.
    pub(crate) fn present(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Reports each key that is not in `known`.
    pub(crate) fn unknown(&self, known: &[&str], strict: bool, found: &mut Diagnostics) {
        for key in self.map.keys().filter(|key| !known.contains(&key.as_str())) {
            let place = self.place.key(key);
            let text = format!("is not a known key; known keys are {}", known.join(", "));
            if strict {
                found.reject(&place, text);
            } else {
                found.warn(&place, format!("{text}; it is ignored"));
            }
        }
    }
}

/// Reads `value` as a list.
pub(crate) fn list<'a>(
    value: &'a Value,
    place: &DocumentPath,
    found: &mut Diagnostics,
) -> Option<&'a [Value]> {
    match value {
        Value::Array(items) => Some(items),
        Value::String(_) => {
            found.reject(place, "must be a list, not a string; put it in brackets: [\"...\"]");
            None
        }
        other => {
            found.reject(place, format!("must be a list, not {}", kind(other)));
            None
        }
    }
}

fn text<'a>(value: &'a Value, place: &DocumentPath, found: &mut Diagnostics) -> Option<&'a str> {
    match value {
        Value::String(text) => Some(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            found.reject(
                place,
                format!("must be a string, not {}; quote it if a string is meant", kind(value)),
            );
            None
        }
        other => {
            found.reject(place, format!("must be a string, not {}", kind(other)));
            None
        }
    }
}

/// The type of a value, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
