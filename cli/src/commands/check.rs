//! `bdnfs check`: checks a configuration file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bdnfs::error::Kind;
use bdnfs::source::{Diagnostic, Diagnostics, DocumentPath, SecretStore, Severity, Uri};
use bdnfs::weights::{self, AcceptedEntry, Rules, TrainingCache, Variable};
use bdnfs_agent::jobs::{self, supervisor};
use bdnfs_agent::volumes::{CHECKPOINT_PLACE, SCRATCH_PLACE};
use serde::Serialize;
use serde_json::Value;

use crate::config::{self, Document, Format};
use crate::output::print;
use crate::secrets::SecretsArgs;
use crate::{secrets, text};

/// The arguments of `bdnfs check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// config.yaml of Truss, training job of truss_train as JSON, or TOML with [[weights]]; - for stdin
    file: PathBuf,
    /// Warn of unknown keys, instead of rejecting them
    #[arg(long)]
    lenient: bool,
    /// No effect: unknown keys are rejected by default. For scripts of earlier versions
    #[arg(long = "strict", hide = true, conflicts_with = "lenient")]
    _strict: bool,
    #[command(flatten)]
    secrets: SecretsArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs check config.yaml
  bdnfs check --secrets /run/secrets job.json
  bdnfs check --json weights.toml | jq '.weights[].source'";

/// The report of a check.
#[derive(Debug, Default, Serialize)]
struct CheckReport {
    file: String,
    accepted: bool,
    weights: Vec<AcceptedWeights>,
    secrets: Vec<SecretReport>,
    findings: Vec<LocatedFinding>,
}

/// Accepted weights.
#[derive(Debug, Serialize)]
struct AcceptedWeights {
    line: usize,
    place: DocumentPath,
    source: String,
    mount_location: PathBuf,
    normalized: Value,
}

/// A secret that weights or variables name.
#[derive(Debug, Serialize)]
struct SecretReport {
    name: String,
    /// The store that has the secret; `None` for a missing one.
    found: Option<String>,
}

/// A finding and its line.
#[derive(Debug, Serialize)]
struct LocatedFinding {
    line: usize,
    #[serde(flatten)]
    finding: Diagnostic,
}

/// Checks a file, and fails where anything in it is rejected.
pub fn run(args: &CheckArgs) -> Result<()> {
    let (format, content) = config::read(&args.file)?;
    let env = |name: &str| std::env::var_os(name);
    let stores = args.secrets.stores(env)?;
    let rules = Rules { bdnfs_schema: format == Format::Toml, lenient: args.lenient };
    let file = args.file.display().to_string();
    let report = CheckReport { file, ..check(format, &content, rules, &stores, env) };
    print(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { format_report(&report) })?;
    let rejects = report.findings.iter().filter(|f| f.finding.verdict == Severity::Reject).count();
    if rejects > 0 {
        bail!("{} is invalid: {}", report.file, text::count(rejects as u64, "error"));
    }
    Ok(())
}

fn check(
    format: Format,
    text: &str,
    rules: Rules,
    stores: &[SecretStore],
    env: impl Fn(&str) -> Option<OsString>,
) -> CheckReport {
    let document = match config::parse(format, text) {
        Ok(document) => document,
        Err(error) => {
            let place = DocumentPath::default();
            let finding = Diagnostic { place, verdict: Severity::Reject, text: error.message };
            return CheckReport {
                findings: vec![LocatedFinding { line: error.line, finding }],
                ..CheckReport::default()
            };
        }
    };
    let (mut accepted, mut findings) = weights::read(&document.value, rules);
    check_job(&document.value, &mut findings);
    let secrets = find_secrets(named_secrets(&document.value, &accepted), stores, env, &mut findings);
    check_places(&document.value, &mut accepted, &mut findings);
    let mut findings: Vec<_> = document
        .findings
        .iter()
        .cloned()
        .chain(findings)
        .map(|finding| LocatedFinding { line: document.line(&finding.place), finding })
        .collect();
    findings.sort_by_key(|finding| finding.line);
    let weights = accepted.into_iter().map(|accepted| accepted_weights(accepted, &document)).collect();
    let accepted = findings.iter().all(|located| located.finding.verdict != Severity::Reject);
    CheckReport { file: String::new(), accepted, weights, secrets, findings }
}

/// Reports what a job would not do. Weights may be mounted without a job, so a document that is more than a job is not
/// rejected for it.
fn check_job(document: &Value, findings: &mut Diagnostics) {
    let unsupported = weights::unsupported(document);
    for Diagnostic { place, text, .. } in unsupported.refused {
        if unsupported.is_job {
            findings.reject(&place, text);
        } else if findings.iter().all(|known| known.place != place) {
            findings.warn(&place, format!("{text}; bdnfs job refuses it"));
        }
    }
    let job = weights::job_commands(document);
    let place = job.place.key("start_commands");
    let is_known = findings.iter().any(|known| known.place.to_string().starts_with(&place.to_string()));
    if job.has_runtime && job.start_commands.is_empty() && !is_known {
        findings.reject(&place, "is empty, so the job has nothing to run; write its commands here");
    }
    if job.keep.is_some() && job.checkpoints.is_none() {
        let text =
            "has no effect, for the job saves no checkpoints; enable checkpointing_config, or leave it out";
        findings.reject(&DocumentPath::default().key("keep"), text);
    }
    for text in unsupported.ignored {
        findings.warn(&DocumentPath::default(), text);
    }
}

/// Checks the directories that a job would have against each other and what is at them on this machine, where it is to run. Weights
/// that can't be where they are wanted are no longer `accepted`.
fn check_places(document: &Value, accepted: &mut Vec<AcceptedEntry>, findings: &mut Diagnostics) {
    let mut places = Vec::new();
    let job = weights::job_commands(document);
    if !job.start_commands.is_empty() {
        check_place(&job.place, Path::new(SCRATCH_PLACE), &mut places, findings);
    }
    let cache = weights::training_cache(document);
    let caches = cache.as_ref().map_or_else(Vec::new, TrainingCache::paths);
    let located = accepted.iter().map(|accepted| accepted.weights.located());
    let shown = weights::shown_sources(&located.collect::<Vec<_>>(), &caches);
    let mut shown = shown.into_iter();
    accepted.retain(|AcceptedEntry { place, .. }| {
        let shown = shown.next();
        shown.is_none_or(|shown| {
            // The host does not have what a cache has, and that the sources don't share a directory is known.
            shown.is_in_cache(&caches)
                || check_place(&place.key("mount_location"), &shown.place, &mut places, findings)
        })
    });
    if let Some(load) = &job.load {
        let place = job.place.key("load_checkpoint_config").key("download_folder");
        check_place(&place, &load.download_folder, &mut places, findings);
    }
    let outside_caches = places.clone();
    if let Some(config) = &job.checkpoints {
        let path = config.checkpoint_path.as_deref().unwrap_or(Path::new(CHECKPOINT_PLACE));
        let place = job.place.key("checkpointing_config").key("checkpoint_path");
        check_place(&place, path, &mut places, findings);
    }
    // Another base is refused already.
    if let Some(cache) = cache.filter(|cache| weights::is_cache_base(&cache.mount_base_path)) {
        let place = job.place.key("cache_config");
        match jobs::check_cache_places(&cache, &outside_caches) {
            Ok(()) => cache.paths().iter().for_each(|path| {
                check_place(&place, path, &mut places, findings);
            }),
            Err(error) => findings.reject(&place, error.to_string()),
        }
    }
}

/// Checks `path`, which `place` names, beside the other `places` of the job, and adds it to them. False where it is rejected.
fn check_place(
    place: &DocumentPath,
    path: &Path,
    places: &mut Vec<PathBuf>,
    findings: &mut Diagnostics,
) -> bool {
    let all: Vec<_> = places.iter().map(PathBuf::as_path).chain([path]).collect();
    let check = || supervisor::check_places(&[path]).and_then(|()| supervisor::check_places(&all));
    match weights::check_volume_path(path).and_then(|()| check()) {
        Ok(()) => places.push(path.to_owned()),
        Err(error) if error.kind() == Kind::Invalid => {
            findings.reject(place, error.to_string());
            return false;
        }
        // Another process may look at it.
        Err(error) => findings.warn(place, error.to_string()),
    }
    true
}

fn accepted_weights(accepted: AcceptedEntry, document: &Document) -> AcceptedWeights {
    let AcceptedEntry { place, weights, mut normalized } = accepted;
    if let (Uri::Http(_), Value::String(text)) = (&weights.source, &mut normalized["source"]) {
        // A user name or a query may be a secret.
        if text.split('/').nth(2).is_some_and(|authority| authority.contains('@')) {
            *text = weights.source.to_string();
        } else if let Some((url, _)) = text.split_once('?') {
            *text = format!("{url}?***");
        }
    }
    AcceptedWeights {
        line: document.line(&place),
        place,
        source: weights.source.to_string(),
        mount_location: weights.mount_location,
        normalized,
    }
}

/// The secrets that weights and variables name, each with its place.
fn named_secrets(document: &Value, accepted: &[AcceptedEntry]) -> Vec<(DocumentPath, String)> {
    let of_weights = accepted.iter().filter_map(|AcceptedEntry { place, weights, normalized }| {
        let name = weights.auth.as_ref()?.secret()?;
        let key = "auth_secret_name";
        let place = if normalized[key] == name { place.key(key) } else { place.key("auth").key(key) };
        Some((place, name.to_owned()))
    });
    let job = weights::job_commands(document);
    let of_variables = job.environment.into_iter().filter_map(|(variable, value)| match value {
        Variable::Secret { name } => Some((job.place.key("environment_variables").key(&variable), name)),
        Variable::Text(_) => None,
    });
    of_weights.chain(of_variables).collect()
}

/// Finds secrets; a missing one is a warning.
fn find_secrets(
    named: Vec<(DocumentPath, String)>,
    stores: &[SecretStore],
    env: impl Fn(&str) -> Option<OsString>,
    findings: &mut Diagnostics,
) -> Vec<SecretReport> {
    let mut all: Vec<SecretReport> = Vec::new();
    for (place, name) in named {
        if let Some(other) =
            all.iter().find(|known| known.name != name && secrets::share_variable(&known.name, &name))
        {
            let text = format!(
                "the secrets {name:?} and {:?} have the same environment variable {}",
                other.name,
                secrets::variable(&name)
            );
            findings.warn(&place, text);
        }
        let location = secrets::locate(&name, stores, &env);
        match &location {
            Ok(Some(_)) => {}
            Ok(None) => {
                let stores: String = stores.iter().map(|store| format!(", not in {store}")).collect();
                let text = format!("no such secret: not in {}{stores}", secrets::variable(&name));
                findings.warn(&place, text);
            }
            Err(error) => findings.warn(&place, error.to_string()),
        }
        if all.iter().all(|known| known.name != name) {
            all.push(SecretReport { name, found: location.ok().flatten() });
        }
    }
    all
}

/// The report as text: findings by line, accepted weights, secrets.
fn format_report(report: &CheckReport) -> String {
    let mut out = String::new();
    let mut line = |number: usize, text: String| out.push_str(&format!("{}:{number}: {text}\n", report.file));
    for LocatedFinding { line: number, finding: Diagnostic { place, verdict, text } } in &report.findings {
        let verdict = if *verdict == Severity::Reject { String::new() } else { format!("{verdict}: ") };
        let place = if *place == DocumentPath::default() { String::new() } else { format!("{place}: ") };
        line(*number, format!("{verdict}{place}{text}"));
    }
    for weights in &report.weights {
        let mount = weights.mount_location.display();
        line(weights.line, format!("{}: accepted: {} on {mount}", weights.place, weights.source));
    }
    for SecretReport { name, found } in &report.secrets {
        let found = found.as_deref().map_or("not found".to_owned(), |location| format!("in {location}"));
        out.push_str(&format!("secret {name:?}: {found}\n"));
    }
    out
}

#[cfg(test)]
mod tests;
