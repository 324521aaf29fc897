//! The shape of a configuration: which keys a mapping may have, which values they take, and what a job does with each.

use std::path::{Component, Path};

use serde_json::Value;

use super::Rules;
use crate::checkpoint::check_text;
use crate::error::{Error, Kind, Result};
use crate::source::fields::{Fields, kind};
use crate::source::{Diagnostics, DocumentPath};

/// The longest name of a job, in bytes: a line or two, where Linux takes 128 KiB in a variable.
const MAX_LABEL_BYTES: usize = 4096;

/// The values that a key may have.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Text,
    /// The name of a project or a team.
    Name,
    /// A text shown to people, see [`check_label`].
    Label,
    Whole,
    Flag,
    /// A text, one of these.
    Word(&'static [&'static str]),
    Texts,
    /// A mapping of texts, and of names of secrets.
    Variables,
    /// A mapping like [`Variables`](Self::Variables), also of what [`scalar`] makes a text of.
    Scalars,
    /// A mapping with these keys.
    Keys(&'static [JobKey]),
    /// A list of such mappings.
    List(&'static [JobKey]),
    /// A text, or a mapping with these keys.
    TextOr(&'static [JobKey]),
    /// Checked elsewhere, or of no interest.
    Any,
}

/// Whether a key must be there, and may be null.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyPresence {
    Required,
    Optional,
    Nullable,
}

/// The effect of a key on a job.
#[derive(Clone, Copy)]
pub(super) enum KeyEffect {
    /// The key has an effect.
    Done,
    /// The key has no effect, for this reason, of which `bdnfs check` and the job warn.
    Ignored(&'static str),
    /// The key is refused with this reason, unless the value asks for nothing.
    Refused { asks: fn(&Value) -> bool, reason: &'static str },
}

/// A key of a mapping.
#[derive(Clone, Copy)]
pub(super) struct JobKey {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    presence: KeyPresence,
    /// `None` for what the key above it says.
    pub(super) effect: Option<KeyEffect>,
}

/// The keys of a reference to a secret: only its name.
pub(super) const REFERENCE: &[JobKey] = &[JobKey::required("name", Shape::Text)];

impl JobKey {
    pub(super) const fn required(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, presence: KeyPresence::Required, effect: None }
    }

    pub(super) const fn optional(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, presence: KeyPresence::Optional, effect: None }
    }

    pub(super) const fn nullable(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, presence: KeyPresence::Nullable, effect: None }
    }

    pub(super) const fn done(self) -> Self {
        Self { effect: Some(KeyEffect::Done), ..self }
    }

    pub(super) const fn ignored(self, reason: &'static str) -> Self {
        Self { effect: Some(KeyEffect::Ignored(reason)), ..self }
    }

    pub(super) const fn refused(self, asks: fn(&Value) -> bool, reason: &'static str) -> Self {
        Self { effect: Some(KeyEffect::Refused { asks, reason }), ..self }
    }
}

/// Checks that a mapping has the keys of `known` and no others, and that their values are as these say.
pub(super) fn check_keys(fields: &Fields<'_>, known: &[JobKey], rules: Rules, found: &mut Diagnostics) {
    let names: Vec<_> = known.iter().map(|key| key.name).collect();
    fields.unknown(&names, !rules.lenient, found);
    for key in known {
        let place = fields.place.key(key.name);
        match fields.map.get(key.name) {
            None if key.presence == KeyPresence::Required => found.reject(&place, "is missing"),
            Some(Value::Null) if key.presence == KeyPresence::Nullable => {}
            Some(value) => check_value(value, key.shape, &place, rules, found),
            None => {}
        }
    }
}

/// Makes sure that `text` can be the name of a job: any text that its environment can hold. `what` is the text's name in the error.
///
/// # Errors
/// [`Kind::Invalid`].
pub fn check_label(what: &str, text: &str) -> Result<()> {
    let wrong = if text.contains('\0') {
        "contains a NUL, which no process can be given".to_owned()
    } else if text.len() > MAX_LABEL_BYTES {
        format!("is longer than {MAX_LABEL_BYTES} bytes")
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Invalid, format!("{what} {wrong}")))
}

fn check_value(value: &Value, shape: Shape, place: &DocumentPath, rules: Rules, found: &mut Diagnostics) {
    let expected = match (shape, value) {
        (Shape::Any, _)
        | (Shape::Text | Shape::TextOr(_), Value::String(_))
        | (Shape::Flag, Value::Bool(_)) => return,
        (Shape::Name, Value::String(text)) => {
            // An empty one is none.
            let named = if text.is_empty() { Ok(()) } else { check_text("the name", text) };
            return named.unwrap_or_else(|error| found.reject(place, error.to_string()));
        }
        (Shape::Label, Value::String(text)) => {
            return check_label("the name", text)
                .unwrap_or_else(|error| found.reject(place, error.to_string()));
        }
        (Shape::Whole, Value::Number(number)) if number.is_i64() || number.is_u64() => return,
        (Shape::Word(words), Value::String(text)) if words.contains(&text.as_str()) => return,
        (Shape::Texts, Value::Array(items)) => {
            for (i, item) in items.iter().enumerate() {
                check_argument(item, &place.index(i), rules, found);
            }
            return;
        }
        (Shape::List(known), Value::Array(items)) => {
            let each = items.iter().enumerate();
            return each.for_each(|(i, item)| {
                check_value(item, Shape::Keys(known), &place.index(i), rules, found);
            });
        }
        (Shape::Variables | Shape::Scalars, Value::Object(map)) => {
            for (name, value) in map {
                let place = place.key(name);
                if name.is_empty() || name.contains(['=', '\0']) {
                    found
                        .reject(&place, "cannot be the name of a variable: it is empty or contains = or NUL");
                }
                if value.is_object() {
                    check_value(value, Shape::Keys(REFERENCE), &place, rules, found);
                } else if !matches!(shape, Shape::Scalars) || scalar(value).is_none() {
                    check_argument(value, &place, rules, found);
                }
            }
            return;
        }
        (Shape::Keys(known) | Shape::TextOr(known), Value::Object(map)) => {
            return check_keys(&Fields { map, place: place.clone() }, known, rules, found);
        }
        (Shape::Word(words), Value::String(_)) => {
            return found.reject(place, format!("must be one of {}", words.join(", ")));
        }
        (Shape::Text | Shape::Name | Shape::Label | Shape::Word(_), _) => "a string",
        (Shape::Whole, _) => "a whole number",
        (Shape::Flag, _) => "true or false",
        (Shape::Texts, _) => "a list of strings",
        (Shape::List(_), _) => "a list",
        (Shape::TextOr(_), _) => "a string or a mapping",
        (Shape::Variables | Shape::Scalars | Shape::Keys(_), _) => "a mapping",
    };
    found.reject(place, format!("must be {expected}, not {}", kind(value)));
}

/// The text that Truss makes of a truth value or a number; `None` for a number that it would write with an exponent.
pub(super) fn scalar(value: &Value) -> Option<String> {
    let text = match value {
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => return None,
    };
    let is_small = value.as_f64().is_some_and(|number| number != 0.0 && number.abs() < 1e-4);
    (!is_small && !text.contains('e') || value.is_boolean()).then_some(text)
}

/// Checks a text that a process gets: as an argument or in its environment, where a NUL ends it.
fn check_argument(value: &Value, place: &DocumentPath, rules: Rules, found: &mut Diagnostics) {
    check_value(value, Shape::Text, place, rules, found);
    if value.as_str().is_some_and(|text| text.contains('\0')) {
        found.reject(place, "contains a NUL, which no process can be given");
    }
}

/// Whether caches can appear below `path`.
pub fn is_cache_base(path: &Path) -> bool {
    path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_base_is_absolute_and_without_parent_directories() {
        assert!(is_cache_base(Path::new("/root/.cache")));
        for path in ["cache", "", "/a/../b"] {
            assert!(!is_cache_base(Path::new(path)), "{path}");
        }
    }
}
