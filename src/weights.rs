//! The `weights` of a configuration: which sources are to appear where.
//!
//! The schema is that of Truss (`truss.base.truss_config.Weights`), version 0.18: what it rejects is rejected here, and
//! what it accepts is accepted, except where that would be dangerous or could never be read. `docs/weights.md` has the
//! table of differences. A document comes as a [`Value`], whatever it was written in; what is said of it names places
//! in it, and its parser knows their lines.

mod config_keys;
mod job;
mod job_keys;
mod loading;
mod location;
mod mount;
mod schema;
#[cfg(test)]
mod tests;
mod training_cache;

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::error::Result;
use crate::source::auth_method;
use crate::source::fields::{self, Fields};
use crate::source::{AccessOption, AuthMethod, Diagnostics, DocumentPath, Patterns, TreeLayout, Uri};
use job::Specification;
use job_keys::is_filled;

pub use job::{CheckpointingConfig, JobCommands, UnsupportedKeys, Variable, job_commands, unsupported};
pub use loading::{CheckpointLoading, CheckpointReference};
pub use mount::{ShownSource, check_locations, check_volume_path, has_parent, shown_sources};
pub use schema::{check_label, is_cache_base};
pub use training_cache::{TrainingCache, training_cache};

const SOURCE_KEY: &str = "source";
const MOUNT_KEY: &str = "mount_location";
const AUTH_KEY: &str = "auth";
const ALLOW_KEY: &str = "allow_patterns";
const IGNORE_KEY: &str = "ignore_patterns";
const EXECUTABLE_KEY: &str = "executable_patterns";
const LAYOUT_KEY: &str = "layout";
/// The keys that each of the weights may have.
const WEIGHTS_KEYS: [&str; 6] =
    [SOURCE_KEY, MOUNT_KEY, AUTH_KEY, auth_method::SECRET_KEY, ALLOW_KEY, IGNORE_KEY];
/// The keys that they may have in a configuration of bdnfs itself.
const BDNFS_WEIGHTS_KEYS: [&str; 8] = [
    SOURCE_KEY,
    MOUNT_KEY,
    AUTH_KEY,
    auth_method::SECRET_KEY,
    ALLOW_KEY,
    IGNORE_KEY,
    EXECUTABLE_KEY,
    LAYOUT_KEY,
];

/// The rules by which weights are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Whether it is a configuration of bdnfs itself, in which `file://` is a source, files can be made executable and trees have
    /// layouts: not for Truss.
    pub bdnfs_schema: bool,
    /// Whether an unknown key is just a warning, and not a reject as it is to `truss push`.
    pub lenient: bool,
}

/// A source, and where it is to appear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsSource {
    /// The URI.
    pub source: Uri,
    /// The directory where it is to appear: absolute, without `.`, `..`, doubled slashes or one at its end.
    pub mount_location: PathBuf,
    /// The authorization of requests. An `auth_secret_name` by itself means the same as one in `auth`.
    pub auth: Option<AuthMethod>,
    /// The patterns of the files to take. `None` takes all, an empty list nothing.
    pub allow_patterns: Option<Vec<String>>,
    /// The patterns of the files to leave out.
    pub ignore_patterns: Option<Vec<String>>,
    /// The patterns of the files that may be executed although the service does not say so.
    pub executable_patterns: Option<Vec<String>>,
    /// The layout in which the tree is shown.
    pub layout: Option<TreeLayout>,
}

impl WeightsSource {
    /// The mount location, layout and URI.
    pub fn located(&self) -> (PathBuf, Option<TreeLayout>, Uri) {
        (self.mount_location.clone(), self.layout, self.source.clone())
    }

    /// The selection of files.
    ///
    /// # Errors
    /// As [`Patterns::filter`]; never for a source that was read here.
    pub fn patterns(&self) -> Result<Patterns> {
        Patterns::filter(self.allow_patterns.as_deref(), self.ignore_patterns.as_deref().unwrap_or_default())
    }
}

/// An entry of `weights` that was accepted.
#[derive(Clone, Debug)]
pub struct AcceptedEntry {
    /// The place in the document.
    pub place: DocumentPath,
    /// The fields.
    pub weights: WeightsSource,
    /// Every key of the model with what was written for it or null, as Truss dumps it. The URI is not shortened, so it
    /// may hold what [`Uri`] doesn't show.
    pub normalized: Value,
}

/// Reads the `weights` of a document. Those that are rejected are left out of what is accepted.
pub fn read(document: &Value, rules: Rules) -> (Vec<AcceptedEntry>, Diagnostics) {
    let mut found = Diagnostics::default();
    let Some(specification) = Specification::find(document, &mut found) else {
        return (Vec::new(), found);
    };
    let caches = training_cache(document).map_or_else(Vec::new, |cache| cache.paths());
    specification.check(rules, &mut found);
    let document = specification.fields;
    let place = document.place.key("weights");
    let Some(value) = document.map.get("weights") else {
        found.warn(&document.place, "has no \"weights\", so there is nothing to mount");
        return (Vec::new(), found);
    };
    let items = fields::list(value, &place, &mut found).unwrap_or_default();
    check_other_keys(&document, !items.is_empty(), &mut found);
    let one = |(i, item)| read_source(item, place.index(i), rules, &mut found);
    let mut accepted: Vec<_> = items.iter().enumerate().filter_map(one).collect();
    let sources: Vec<_> = accepted.iter().map(|a| a.weights.located()).collect();
    let shown = shown_sources(&sources, &caches);
    let mounts = shown.iter().zip(&accepted).map(|(shown, a)| (shown.place.as_path(), &a.place));
    let conflicting = mount::reject_conflicts(mounts, &mut found);
    accepted.retain(|a| !conflicting.contains(&a.place));
    (accepted, found)
}

/// Reports what else in a Truss configuration concerns its weights.
fn check_other_keys(document: &Fields<'_>, weights: bool, found: &mut Diagnostics) {
    let filled = |key| document.map.get(key).is_some_and(is_filled);
    for key in ["model_cache", "hf_cache"] {
        let place = document.place.key(key);
        // Truss takes null for the older name alone.
        if let Some(value) = document.map.get(key).filter(|value| key == "model_cache" || !value.is_null()) {
            fields::list(value, &place, found);
        }
        if weights && filled(key) {
            let text =
                "cannot be used with \"weights\"; keep one of them (`truss migrate` turns it into weights)";
            found.reject(&place, text);
        }
    }
    if filled("bdn") {
        found.warn(&document.place.key("bdn"), "names volumes of another service; they are not mounted here");
    }
}

fn read_source(
    item: &Value,
    place: DocumentPath,
    rules: Rules,
    found: &mut Diagnostics,
) -> Option<AcceptedEntry> {
    let before = found.rejects();
    let fields = Fields::of(item, place, found)?;
    fields.unknown(
        if rules.bdnfs_schema { &BDNFS_WEIGHTS_KEYS } else { &WEIGHTS_KEYS },
        !rules.lenient,
        found,
    );
    let uri = fields.required(SOURCE_KEY, found);
    let uri = uri.and_then(|text| location::read(text, &fields.place.key(SOURCE_KEY), rules, found));
    let mount = fields.required(MOUNT_KEY, found);
    let mount = mount.and_then(|text| mount::read(text, &fields.place.key(MOUNT_KEY), found));
    let auth = read_auth(&fields, rules, found);
    let allow_patterns = fields.strings(ALLOW_KEY, found);
    let ignore_patterns = fields.strings(IGNORE_KEY, found);
    let executable_patterns = rules.bdnfs_schema.then(|| fields.strings(EXECUTABLE_KEY, found)).flatten();
    if allow_patterns.as_ref().is_some_and(Vec::is_empty) {
        let text = "is empty and so takes no file at all; leave it out to take all";
        found.warn(&fields.place.key(ALLOW_KEY), text);
    }
    let uri = uri?;
    let layout = rules.bdnfs_schema.then(|| read_layout(&uri, &fields, found)).flatten();
    let weights = WeightsSource {
        source: uri,
        mount_location: mount?,
        auth,
        allow_patterns,
        ignore_patterns,
        executable_patterns,
        layout,
    };
    if let Err(error) = weights.patterns() {
        found.reject(&fields.place, error.to_string());
    }
    check_auth(&weights, &fields, found);
    let executable = AccessOption::Executable.refusal(&weights.source);
    if let Some(why) =
        executable.filter(|_| weights.executable_patterns.as_ref().is_some_and(|all| !all.is_empty()))
    {
        found.reject(&fields.place.key(EXECUTABLE_KEY), why);
    }
    let accepted = AcceptedEntry { weights, normalized: normalized(fields.map), place: fields.place };
    (found.rejects() == before).then_some(accepted)
}

/// Reads how the tree of `uri` is shown.
fn read_layout(uri: &Uri, fields: &Fields<'_>, found: &mut Diagnostics) -> Option<TreeLayout> {
    let layout = fields.optional(LAYOUT_KEY, found)?.parse::<TreeLayout>();
    let checked = layout.and_then(|layout| layout.check(uri).map(|()| layout));
    checked.map_err(|error| found.reject(&fields.place.key(LAYOUT_KEY), error.to_string())).ok()
}

/// Reads `auth` and the name of a secret beside it.
fn read_auth(fields: &Fields<'_>, rules: Rules, found: &mut Diagnostics) -> Option<AuthMethod> {
    let beside = fields.optional(auth_method::SECRET_KEY, found).filter(|name| !name.is_empty());
    let place = fields.place.key(AUTH_KEY);
    let inside = fields.present(AUTH_KEY).and_then(|value| {
        let fields = Fields::of(value, place.clone(), found)?;
        AuthMethod::read(&fields, !rules.lenient, found)
    });
    match (beside, inside) {
        (Some(_), Some(auth)) if auth.secret().is_some() => {
            let text = format!("is given both here and in {AUTH_KEY}; keep one of them");
            found.reject(&fields.place.key(auth_method::SECRET_KEY), text);
            None
        }
        (Some(_), Some(auth)) => {
            let text = format!("is not used, since {AUTH_KEY} says {}; leave it out", auth.method());
            found.warn(&fields.place.key(auth_method::SECRET_KEY), text);
            Some(auth)
        }
        (Some(name), None) => Some(AuthMethod::Secret { auth_secret_name: name.to_owned() }),
        (None, inside) => inside,
    }
}

/// Warns of an authorization that its source can't use, and rejects one where no source of the scheme takes any: Truss has no such
/// scheme.
fn check_auth(weights: &WeightsSource, fields: &Fields<'_>, found: &mut Diagnostics) {
    let scheme = weights.source.scheme();
    let key = if fields.present(AUTH_KEY).is_some() { AUTH_KEY } else { auth_method::SECRET_KEY };
    let Some(auth) = &weights.auth else { return };
    if let Some(why) = AccessOption::Credentials.refusal(&weights.source) {
        found.reject(&fields.place.key(key), why);
    } else if !auth.serves(scheme) {
        let text =
            format!("{} gives no credentials for {scheme}://, so reading will be refused", auth.method());
        found.warn(&fields.place.key(key), text);
    }
}

fn normalized(map: &Map<String, Value>) -> Value {
    let mut map = filled(map, WEIGHTS_KEYS);
    if let Some(Value::Object(auth)) = map.get_mut(AUTH_KEY) {
        *auth = filled(auth, auth_method::keys());
        if let Some(Value::String(method)) = auth.get_mut(auth_method::METHOD_KEY) {
            *method = method.to_uppercase();
        }
    }
    Value::Object(map)
}

/// A mapping that has all of `keys`, those that it lacks with null.
fn filled(map: &Map<String, Value>, keys: impl IntoIterator<Item = &'static str>) -> Map<String, Value> {
    let nulls = keys.into_iter().map(|key| (key.to_owned(), Value::Null));
    nulls.chain(map.clone()).collect()
}
