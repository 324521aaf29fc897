//! The job around the weights: the kind of its document, its commands, and what it asks for that is not supported.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Rules;
use super::config_keys;
use super::job_keys::{BDNFS_JOB_KEYS, CONFIG, JOB, PROJECT, PUSH_REQUEST_KEYS};
use super::loading::{CheckpointLoading, loading};
use super::schema::{JobKey, KeyEffect, Shape, check_keys, scalar};
use crate::source::fields::Fields;
use crate::source::{Diagnostics, DocumentPath};

/// The commands of a job and their environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCommands {
    /// The name that its user gave it.
    pub name: Option<String>,
    /// The project that it is a job of.
    pub project: Option<String>,
    /// The team that the project belongs to.
    pub team: Option<String>,
    /// The number of complete checkpoints of the project that are kept in the mirror; `None`: all.
    pub keep: Option<NonZeroU32>,
    /// Whether it has a `runtime`, as no configuration of weights alone has.
    pub has_runtime: bool,
    /// The commands, one after the other.
    pub start_commands: Vec<String>,
    /// The environment of the commands.
    pub environment: BTreeMap<String, Variable>,
    /// The checkpoints that they resume from, if its `load_checkpoint_config` is enabled.
    pub load: Option<CheckpointLoading>,
    /// The place of its `runtime` in the document; of a `config.yaml`, which has none for commands, the document itself.
    pub place: DocumentPath,
    /// The values of its `checkpointing_config`, if that is enabled.
    pub checkpoints: Option<CheckpointingConfig>,
}

/// The settings by which the checkpoint directory of a job is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CheckpointingConfig {
    /// Whether it is saved.
    enabled: bool,
    /// The path at which the job sees the directory.
    pub checkpoint_path: Option<PathBuf>,
    /// The maximum size of that, in GiB.
    pub volume_size_gib: Option<u64>,
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

/// The parts of a job's specification that bdnfs can't fulfil.
#[derive(Clone, Debug, Default)]
pub struct UnsupportedKeys {
    /// The keys without effect, each a line.
    pub ignored: Vec<String>,
    /// The keys that are refused.
    pub refused: Diagnostics,
    /// Whether it is a specification of a job alone, and not one of weights that may be mounted without any job.
    pub is_job: bool,
}

/// The weights, and perhaps a job, taken out of the file's envelope.
pub(super) struct Specification<'a> {
    pub(super) fields: Fields<'a>,
    keys: &'static [JobKey],
    /// The envelope.
    around: Vec<(Fields<'a>, &'static [JobKey])>,
}

impl<'a> Specification<'a> {
    /// Finds the specification in a document. `None` where that is no mapping, which is reported.
    pub(super) fn find(document: &'a Value, found: &mut Diagnostics) -> Option<Self> {
        let mut fields = Fields::of(document, DocumentPath::default(), found)?;
        let mut around = Vec::new();
        for (key, keys) in [("training_job", PUSH_REQUEST_KEYS), ("job", PROJECT)] {
            if let Some(inner) = fields.map.get(key) {
                let inner = Fields::of(inner, fields.place.key(key), found)?;
                around.push((std::mem::replace(&mut fields, inner), keys));
            }
        }
        let keys = if around.is_empty() { keys_of(fields.map) } else { JOB };
        Some(Self { fields, keys, around })
    }

    /// Checks all but the weights.
    pub(super) fn check(&self, rules: Rules, found: &mut Diagnostics) {
        let own = (&self.fields, self.keys);
        for (fields, keys) in self.around.iter().map(|(fields, keys)| (fields, *keys)).chain([own]) {
            check_keys(fields, keys, rules, found);
        }
        if self.is_config() {
            for (key, value) in self.fields.map {
                config_keys::check(value, key, &self.fields.place.key(key), rules, found);
            }
        }
        let runtime = self.fields.present("runtime").and_then(Value::as_object);
        let set = |key| runtime.is_some_and(|runtime| runtime.get(key).is_some_and(|value| !value.is_null()));
        if set("enable_cache") && set("cache_config") {
            let text = "cannot be used with \"cache_config\", which has taken its place; leave it out";
            found.reject(&self.fields.place.key("runtime").key("enable_cache"), text);
        }
    }

    fn is_config(&self) -> bool {
        std::ptr::eq(self.keys, CONFIG)
    }
}

/// The keys of a document, whose kind shows in a key that no other kind has.
fn keys_of(map: &Map<String, Value>) -> &'static [JobKey] {
    let is = |keys: &[JobKey]| {
        keys.iter()
            .any(|key| map.contains_key(key.name) && BDNFS_JOB_KEYS.iter().all(|own| own.name != key.name))
    };
    let runtime = map.get("runtime").and_then(Value::as_object);
    let serves = |runtime: &Map<String, Value>| {
        config_keys::below("runtime").into_iter().any(|key| runtime.contains_key(key))
    };
    if is(JOB) {
        JOB
    } else if is(CONFIG) || runtime.is_some_and(serves) {
        CONFIG
    } else {
        BDNFS_JOB_KEYS
    }
}

/// The commands of a document: its `name` and its `runtime`; of a `config.yaml` its `environment_variables`, as the texts that
/// Truss makes of them, since it has no commands. [`read`](super::read) reports what is wrong with them; what can't be read is left
/// out.
pub fn job_commands(document: &Value) -> JobCommands {
    let Some(job) = Specification::find(document, &mut Diagnostics::default()) else {
        return JobCommands::default();
    };
    let null = Value::Null;
    let (name, runtime) = match job.is_config() {
        true => ("model_name", None),
        false => ("name", Some(job.fields.present("runtime").unwrap_or(&null))),
    };
    let of = |key: &str| match runtime {
        Some(runtime) => runtime.get(key).cloned().unwrap_or_default(),
        None => job.fields.map.get(key).cloned().unwrap_or_default(),
    };
    let text = |fields: &Fields<'_>, key| fields.present(key).and_then(Value::as_str).map(str::to_owned);
    let project = match job.around.iter().find(|(_, keys)| std::ptr::eq(*keys, PROJECT)) {
        Some((project, _)) => [text(project, "name"), text(project, "team_name")],
        None if std::ptr::eq(job.keys, BDNFS_JOB_KEYS) => {
            ["project", "team"].map(|key| text(&job.fields, key))
        }
        None => [None, None],
    };
    let ([project, team], place) = (project, &job.fields.place);
    let keep = job.fields.present("keep").filter(|_| std::ptr::eq(job.keys, BDNFS_JOB_KEYS)).cloned();
    let mut environment = of("environment_variables");
    if let (true, Value::Object(variables)) = (job.is_config(), &mut environment) {
        for value in variables.values_mut() {
            *value = scalar(value).map_or_else(|| value.take(), Value::String);
        }
    }
    JobCommands {
        name: text(&job.fields, name),
        project,
        team,
        keep: keep.and_then(|keep| serde_json::from_value(keep).ok()),
        has_runtime: runtime.is_some_and(|runtime| !runtime.is_null()),
        start_commands: serde_json::from_value(of("start_commands")).unwrap_or_default(),
        environment: serde_json::from_value(environment).unwrap_or_default(),
        load: loading(of("load_checkpoint_config")),
        place: runtime.map_or(place.clone(), |_| place.key("runtime")),
        checkpoints: serde_json::from_value(of("checkpointing_config"))
            .ok()
            .filter(|config: &CheckpointingConfig| config.enabled),
    }
}

/// The parts of a document that a job can't fulfil. [`read`](super::read) tells whether the document is valid.
pub fn unsupported(document: &Value) -> UnsupportedKeys {
    let mut all = UnsupportedKeys::default();
    let Some(job) = Specification::find(document, &mut Diagnostics::default()) else { return all };
    let mut ignored = Vec::new();
    for (fields, keys) in &job.around {
        collect(fields, keys, &mut ignored, &mut all.refused);
    }
    collect(&job.fields, job.keys, &mut ignored, &mut all.refused);
    all.ignored = by_reason(ignored, &job.fields.place);
    all.is_job = !job.is_config();
    all
}

/// Collects what a mapping asks for: places that have no effect, each with the reason, and what is refused.
fn collect(
    fields: &Fields<'_>,
    keys: &[JobKey],
    ignored: &mut Vec<(DocumentPath, &'static str)>,
    refused: &mut Diagnostics,
) {
    for key in keys {
        let Some(value) = fields.present(key.name) else { continue };
        let place = fields.place.key(key.name);
        let is_empty =
            value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty);
        match key.effect {
            Some(KeyEffect::Ignored(reason)) if !is_empty => ignored.push((place.clone(), reason)),
            Some(KeyEffect::Refused { asks, reason }) if asks(value) => refused.reject(&place, reason),
            _ => {}
        }
        if let (Shape::Keys(keys), Value::Object(map)) = (key.shape, value) {
            collect(&Fields { map, place }, keys, ignored, refused);
        }
    }
}

/// One line for each reason, with all places that it is the reason for, as they are called in the job.
fn by_reason(ignored: Vec<(DocumentPath, &'static str)>, job: &DocumentPath) -> Vec<String> {
    let job = format!("{job}.");
    let mut lines: Vec<(&str, String)> = Vec::new();
    for (place, reason) in ignored {
        let place = place.to_string();
        let place = place.strip_prefix(&job).unwrap_or(&place);
        match lines.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, places)) => places.push_str(&format!(", {place}")),
            None => lines.push((reason, place.to_owned())),
        }
    }
    lines.into_iter().map(|(reason, places)| format!("{places}: no effect: {reason}")).collect()
}

#[cfg(test)]
mod tests;
