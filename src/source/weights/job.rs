//! A training job of `truss_train` (`TrainingJob`, version 0.18) around its weights: what the model rejects is rejected
//! here, so that a job which would never be taken is not mounted first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::source::diagnostic::{Diagnostics, DocumentPath};
use crate::source::fields::{Fields, kind};

/// The values that a key may have.
#[derive(Clone, Copy)]
enum ValueShape {
    Text,
    Whole,
    Flag,
    /// One of these texts.
    Word(&'static [&'static str]),
    Texts,
    /// A mapping of texts, and of names of secrets.
    Variables,
    /// A mapping with these keys.
    Keys(&'static [JobKey]),
    /// Checked elsewhere, or of many forms.
    Other,
}

/// A key: its name, its values, and whether it is required or may be null.
type JobKey = (&'static str, ValueShape, KeyPresence);

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyPresence {
    Required,
    Optional,
    Nullable,
}

use KeyPresence::{Nullable, Optional, Required};

const JOB: &[JobKey] = &[
    (
        "image",
        ValueShape::Keys(&[
            ("base_image", ValueShape::Text, Required),
            ("docker_auth", ValueShape::Other, Nullable),
        ]),
        Required,
    ),
    ("compute", ValueShape::Keys(COMPUTE), Optional),
    ("runtime", ValueShape::Keys(RUNTIME), Optional),
    ("interactive_session", ValueShape::Keys(SESSION), Nullable),
    ("name", ValueShape::Text, Nullable),
    ("priority", ValueShape::Whole, Nullable),
    ("workspace", ValueShape::Keys(WORKSPACE), Nullable),
    ("weights", ValueShape::Other, Optional),
    ("enable_baseten_workdir", ValueShape::Flag, Optional),
];
const COMPUTE: &[JobKey] = &[
    ("node_count", ValueShape::Whole, Optional),
    ("cpu_count", ValueShape::Whole, Optional),
    ("memory", ValueShape::Text, Optional),
    ("accelerator", ValueShape::Other, Nullable),
    ("availability_model", ValueShape::Word(&["dedicated", "spot"]), Optional),
];
const RUNTIME: &[JobKey] = &[
    ("start_commands", ValueShape::Texts, Optional),
    ("environment_variables", ValueShape::Variables, Optional),
    ("enable_cache", ValueShape::Flag, Nullable),
    ("checkpointing_config", ValueShape::Keys(CHECKPOINTING), Optional),
    ("load_checkpoint_config", ValueShape::Keys(LOADING), Nullable),
    ("cache_config", ValueShape::Keys(CACHE), Nullable),
];
const CHECKPOINTING: &[JobKey] = &[
    ("enabled", ValueShape::Flag, Optional),
    ("checkpoint_path", ValueShape::Text, Nullable),
    ("volume_size_gib", ValueShape::Whole, Nullable),
];
const LOADING: &[JobKey] = &[
    ("enabled", ValueShape::Flag, Optional),
    ("checkpoints", ValueShape::Other, Optional),
    ("download_folder", ValueShape::Text, Optional),
];
const CACHE: &[JobKey] = &[
    ("enabled", ValueShape::Flag, Optional),
    ("enable_legacy_hf_mount", ValueShape::Flag, Optional),
    ("require_cache_affinity", ValueShape::Flag, Optional),
    ("mount_base_path", ValueShape::Text, Optional),
];
const SESSION: &[JobKey] = &[
    ("trigger", ValueShape::Word(&["on_startup", "on_failure", "on_demand"]), Optional),
    ("timeout_minutes", ValueShape::Whole, Optional),
    ("session_provider", ValueShape::Word(&["vs_code", "cursor", "ssh"]), Optional),
    ("auth_provider", ValueShape::Word(&["github", "microsoft"]), Optional),
];
const WORKSPACE: &[JobKey] = &[
    ("workspace_root", ValueShape::Text, Nullable),
    ("external_dirs", ValueShape::Texts, Optional),
    ("exclude_dirs", ValueShape::Texts, Optional),
];
/// A secret in a job's environment: only its name.
const REFERENCE: &[JobKey] = &[("name", ValueShape::Text, Required)];

/// The commands of a job and their environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCommands {
    /// The name that its user gave it.
    pub name: Option<String>,
    /// Its commands, one after the other.
    pub start_commands: Vec<String>,
    /// Their environment.
    pub environment: BTreeMap<String, Variable>,
}

/// The value of a variable in a job's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Variable {
    /// The value itself.
    Text(String),
    /// The value of a secret.
    Secret {
        /// The secret's name.
        name: String,
    },
}

/// Reads the commands of a document: its `name` and its `runtime`. What is wrong with a training job, [`read`](super::read)
/// reports.
pub fn runs(document: &Value) -> (JobCommands, Diagnostics) {
    let mut found = Diagnostics::default();
    let Some(document) = Fields::of(document, DocumentPath::default(), &mut found) else {
        return (JobCommands::default(), found);
    };
    if !is_job(&document) {
        let known = [("name", ValueShape::Text, Nullable), ("runtime", ValueShape::Keys(RUNTIME), Optional)];
        known.into_iter().for_each(|key| check_key(&document, key, &mut found));
    }
    let runtime = document.present("runtime").unwrap_or(&Value::Null);
    let of = |key: &str| runtime.get(key).cloned().unwrap_or_default();
    let runs = JobCommands {
        name: document.present("name").and_then(Value::as_str).map(str::to_owned),
        // What can't be read was rejected.
        start_commands: serde_json::from_value(of("start_commands")).unwrap_or_default(),
        environment: serde_json::from_value(of("environment_variables")).unwrap_or_default(),
    };
    (runs, found)
}

/// Whether it is a training job: no other configuration has one of these keys.
fn is_job(document: &Fields<'_>) -> bool {
    ["image", "compute"].iter().any(|key| document.map.contains_key(*key))
}

/// Checks `document`, if it is a training job.
pub(super) fn check(document: &Fields<'_>, found: &mut Diagnostics) {
    if !is_job(document) {
        return;
    }
    check_keys(document, JOB, found);
    let runtime = document.present("runtime").and_then(Value::as_object);
    let set = |key| runtime.is_some_and(|runtime| runtime.get(key).is_some_and(|value| !value.is_null()));
    if set("enable_cache") && set("cache_config") {
        let text = "does not go with \"cache_config\", which has taken its place; leave it out";
        found.reject(&document.place.key("runtime").key("enable_cache"), text);
    }
}

fn check_keys(fields: &Fields<'_>, known: &[JobKey], found: &mut Diagnostics) {
    let names: Vec<_> = known.iter().map(|(name, ..)| *name).collect();
    // truss_train takes no other key, whoever asks.
    fields.unknown(&names, true, found);
    known.iter().for_each(|key| check_key(fields, *key, found));
}

fn check_key(fields: &Fields<'_>, (name, shape, need): JobKey, found: &mut Diagnostics) {
    let place = fields.place.key(name);
    match fields.map.get(name) {
        None if need == Required => found.reject(&place, "is missing"),
        Some(Value::Null) if need == Nullable => {}
        Some(value) => check_value(value, shape, &place, found),
        None => {}
    }
}

fn check_value(value: &Value, shape: ValueShape, place: &DocumentPath, found: &mut Diagnostics) {
    let expected = match (shape, value) {
        (ValueShape::Other, _)
        | (ValueShape::Text, Value::String(_))
        | (ValueShape::Flag, Value::Bool(_)) => return,
        (ValueShape::Whole, Value::Number(number)) if number.is_i64() || number.is_u64() => return,
        (ValueShape::Word(words), Value::String(text)) if words.contains(&text.as_str()) => return,
        (ValueShape::Texts, Value::Array(items)) => {
            let each = items.iter().enumerate();
            return each.for_each(|(i, item)| check_value(item, ValueShape::Text, &place.index(i), found));
        }
        (ValueShape::Variables, Value::Object(map)) => {
            for (name, value) in map {
                let shape = if value.is_object() { ValueShape::Keys(REFERENCE) } else { ValueShape::Text };
                check_value(value, shape, &place.key(name), found);
            }
            return;
        }
        (ValueShape::Keys(known), Value::Object(map)) => {
            return check_keys(&Fields { map, place: place.clone() }, known, found);
        }
        (ValueShape::Word(words), Value::String(_)) => {
            return found.reject(place, format!("must be one of {}", words.join(", ")));
        }
        (ValueShape::Text | ValueShape::Word(_), _) => "a string",
        (ValueShape::Whole, _) => "a whole number",
        (ValueShape::Flag, _) => "true or false",
        (ValueShape::Texts, _) => "a list of strings",
        (ValueShape::Variables | ValueShape::Keys(_), _) => "a mapping",
    };
    found.reject(place, format!("must be {expected}, not {}", kind(value)));
}
