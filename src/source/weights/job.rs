//! A training job of `truss_train` (`TrainingJob`, version 0.18) around its weights: what the model rejects is rejected
//! here, so that a job which would never be taken is not mounted first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::source::diagnostic::{Diagnostics, DocumentPath};
use crate::source::fields::{Fields, kind};

/// What may stand at a place.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Whole,
    Flag,
    /// One of these texts.
    Word(&'static [&'static str]),
    Texts,
    /// A mapping of texts, and of names of secrets.
    Variables,
    /// A mapping with these keys.
    Keys(&'static [Key]),
    /// What is judged elsewhere, or has many forms.
    Other,
}

/// A key: what it is called, what it may be, and whether it has to be there, may be null.
type Key = (&'static str, Shape, Need);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Required,
    Optional,
    Nullable,
}

use Need::{Nullable, Optional, Required};

const JOB: &[Key] = &[
    (
        "image",
        Shape::Keys(&[("base_image", Shape::Text, Required), ("docker_auth", Shape::Other, Nullable)]),
        Required,
    ),
    ("compute", Shape::Keys(COMPUTE), Optional),
    ("runtime", Shape::Keys(RUNTIME), Optional),
    ("interactive_session", Shape::Keys(SESSION), Nullable),
    ("name", Shape::Text, Nullable),
    ("priority", Shape::Whole, Nullable),
    ("workspace", Shape::Keys(WORKSPACE), Nullable),
    ("weights", Shape::Other, Optional),
    ("enable_baseten_workdir", Shape::Flag, Optional),
];
const COMPUTE: &[Key] = &[
    ("node_count", Shape::Whole, Optional),
    ("cpu_count", Shape::Whole, Optional),
    ("memory", Shape::Text, Optional),
    ("accelerator", Shape::Other, Nullable),
    ("availability_model", Shape::Word(&["dedicated", "spot"]), Optional),
];
const RUNTIME: &[Key] = &[
    ("start_commands", Shape::Texts, Optional),
    ("environment_variables", Shape::Variables, Optional),
    ("enable_cache", Shape::Flag, Nullable),
    ("checkpointing_config", Shape::Keys(CHECKPOINTING), Optional),
    ("load_checkpoint_config", Shape::Keys(LOADING), Nullable),
    ("cache_config", Shape::Keys(CACHE), Nullable),
];
const CHECKPOINTING: &[Key] = &[
    ("enabled", Shape::Flag, Optional),
    ("checkpoint_path", Shape::Text, Nullable),
    ("volume_size_gib", Shape::Whole, Nullable),
];
const LOADING: &[Key] = &[
    ("enabled", Shape::Flag, Optional),
    ("checkpoints", Shape::Other, Optional),
    ("download_folder", Shape::Text, Optional),
];
const CACHE: &[Key] = &[
    ("enabled", Shape::Flag, Optional),
    ("enable_legacy_hf_mount", Shape::Flag, Optional),
    ("require_cache_affinity", Shape::Flag, Optional),
    ("mount_base_path", Shape::Text, Optional),
];
const SESSION: &[Key] = &[
    ("trigger", Shape::Word(&["on_startup", "on_failure", "on_demand"]), Optional),
    ("timeout_minutes", Shape::Whole, Optional),
    ("session_provider", Shape::Word(&["vs_code", "cursor", "ssh"]), Optional),
    ("auth_provider", Shape::Word(&["github", "microsoft"]), Optional),
];
const WORKSPACE: &[Key] = &[
    ("workspace_root", Shape::Text, Nullable),
    ("external_dirs", Shape::Texts, Optional),
    ("exclude_dirs", Shape::Texts, Optional),
];
/// A secret in a job's environment: only its name.
const REFERENCE: &[Key] = &[("name", Shape::Text, Required)];

/// What a job runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// What its user calls it.
    pub name: Option<String>,
    /// Its commands, one after the other.
    pub start_commands: Vec<String>,
    /// Their environment.
    pub environment: BTreeMap<String, Variable>,
}

/// A variable of a job's environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Variable {
    /// What it is.
    Text(String),
    /// The secret that it is.
    Secret {
        /// The secret's name.
        name: String,
    },
}

/// Reads what a document says that is to be run: its `name` and its `runtime`. Of a training job, [`read`](super::read)
/// says what is wrong with it.
pub fn runs(document: &Value) -> (Runs, Diagnostics) {
    let mut found = Diagnostics::default();
    let Some(document) = Fields::of(document, DocumentPath::default(), &mut found) else {
        return (Runs::default(), found);
    };
    if !is_job(&document) {
        let known = [("name", Shape::Text, Nullable), ("runtime", Shape::Keys(RUNTIME), Optional)];
        known.into_iter().for_each(|key| judge_key(&document, key, &mut found));
    }
    let runtime = document.present("runtime").unwrap_or(&Value::Null);
    let of = |key: &str| runtime.get(key).cloned().unwrap_or_default();
    let runs = Runs {
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

/// Judges `document`, if that is a training job.
pub(super) fn judge(document: &Fields<'_>, found: &mut Diagnostics) {
    if !is_job(document) {
        return;
    }
    keys(document, JOB, found);
    let runtime = document.present("runtime").and_then(Value::as_object);
    let set = |key| runtime.is_some_and(|runtime| runtime.get(key).is_some_and(|value| !value.is_null()));
    if set("enable_cache") && set("cache_config") {
        let text = "does not go with \"cache_config\", which has taken its place; leave it out";
        found.reject(&document.place.key("runtime").key("enable_cache"), text);
    }
}

fn keys(fields: &Fields<'_>, known: &[Key], found: &mut Diagnostics) {
    let names: Vec<_> = known.iter().map(|(name, ..)| *name).collect();
    // truss_train takes no other key, whoever asks.
    fields.unknown(&names, true, found);
    known.iter().for_each(|key| judge_key(fields, *key, found));
}

fn judge_key(fields: &Fields<'_>, (name, shape, need): Key, found: &mut Diagnostics) {
    let place = fields.place.key(name);
    match fields.map.get(name) {
        None if need == Required => found.reject(&place, "is missing"),
        Some(Value::Null) if need == Nullable => {}
        Some(value) => judge_one(value, shape, &place, found),
        None => {}
    }
}

fn judge_one(value: &Value, shape: Shape, place: &DocumentPath, found: &mut Diagnostics) {
    let expected = match (shape, value) {
        (Shape::Other, _) | (Shape::Text, Value::String(_)) | (Shape::Flag, Value::Bool(_)) => return,
        (Shape::Whole, Value::Number(number)) if number.is_i64() || number.is_u64() => return,
        (Shape::Word(words), Value::String(text)) if words.contains(&text.as_str()) => return,
        (Shape::Texts, Value::Array(items)) => {
            let each = items.iter().enumerate();
            return each.for_each(|(i, item)| judge_one(item, Shape::Text, &place.index(i), found));
        }
        (Shape::Variables, Value::Object(map)) => {
            for (name, value) in map {
                let shape = if value.is_object() { Shape::Keys(REFERENCE) } else { Shape::Text };
                judge_one(value, shape, &place.key(name), found);
            }
            return;
        }
        (Shape::Keys(known), Value::Object(map)) => {
            return keys(&Fields { map, place: place.clone() }, known, found);
        }
        (Shape::Word(words), Value::String(_)) => {
            return found.reject(place, format!("must be one of {}", words.join(", ")));
        }
        (Shape::Text | Shape::Word(_), _) => "a text",
        (Shape::Whole, _) => "a whole number",
        (Shape::Flag, _) => "true or false",
        (Shape::Texts, _) => "a list of texts",
        (Shape::Variables | Shape::Keys(_), _) => "a mapping",
    };
    found.reject(place, format!("must be {expected}, not {}", kind(value)));
}
