//! `bdnfs check`.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use bdnfs::source::weights::{self, Accepted, Rules};
use bdnfs::source::{Diagnostic, Diagnostics, DocumentPath, SecretStore, Severity, Uri};
use serde::Serialize;
use serde_json::Value;

use crate::config::{self, Document, Format};
use crate::secrets;

/// What to check.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// config.yaml of Truss, training job of truss_train as JSON, or TOML with [[weights]]; - is standard input
    file: PathBuf,
    /// Reject keys that are not known, as `truss push` does
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    secrets: secrets::Args,
    /// Tell all of it as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs check config.yaml
  bdnfs check --secrets /run/secrets job.json
  bdnfs check --json weights.toml | jq '.weights[].source'";

/// All that is said of a file.
#[derive(Debug, Default, Serialize)]
struct Report {
    file: String,
    accepted: bool,
    weights: Vec<Weights>,
    secrets: Vec<Named>,
    findings: Vec<Said>,
}

/// Weights that are accepted.
#[derive(Debug, Serialize)]
struct Weights {
    line: usize,
    place: DocumentPath,
    source: String,
    mount_location: PathBuf,
    normalized: Value,
}

/// A secret that weights name.
#[derive(Debug, Serialize)]
struct Named {
    name: String,
    /// Where it is; `None` where it is nowhere.
    found: Option<String>,
}

#[derive(Debug, Serialize)]
struct Said {
    line: usize,
    #[serde(flatten)]
    finding: Diagnostic,
}

/// Checks a file, and fails where anything in it is rejected.
pub fn run(args: &Args) -> Result<()> {
    let (format, text) = config::read(&args.file)?;
    let env = |name: &str| std::env::var_os(name);
    let stores = args.secrets.stores(env)?;
    let rules = Rules { local: format == Format::Toml, strict: args.strict };
    let file = args.file.display().to_string();
    let report = Report { file, ..check(format, &text, rules, &stores, env) };
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        out.write_all(shown(&report).as_bytes())?;
    }
    let rejects = report.findings.iter().filter(|f| f.finding.verdict == Severity::Reject).count();
    if rejects > 0 {
        bail!("{} is rejected: {rejects} {}", report.file, if rejects == 1 { "reason" } else { "reasons" });
    }
    Ok(())
}

fn check(
    format: Format,
    text: &str,
    rules: Rules,
    stores: &[SecretStore],
    env: impl Fn(&str) -> Option<OsString>,
) -> Report {
    let document = match config::parse(format, text) {
        Ok(document) => document,
        Err(error) => {
            let place = DocumentPath::default();
            let finding = Diagnostic { place, verdict: Severity::Reject, text: error.message };
            return Report { findings: vec![Said { line: error.line, finding }], ..Report::default() };
        }
    };
    let (accepted, mut found) = weights::read(&document.value, rules);
    let secrets = named(&accepted, stores, env, &mut found);
    let mut findings: Vec<_> = document
        .findings
        .iter()
        .cloned()
        .chain(found)
        .map(|finding| Said { line: document.line(&finding.place), finding })
        .collect();
    findings.sort_by_key(|said| said.line);
    let weights = accepted.into_iter().map(|accepted| told(accepted, &document)).collect();
    let accepted = findings.iter().all(|said| said.finding.verdict != Severity::Reject);
    Report { file: String::new(), accepted, weights, secrets, findings }
}

fn told(accepted: Accepted, document: &Document) -> Weights {
    let Accepted { place, weights, mut normalized } = accepted;
    // A web address may hold a signature; of all others the canonical form differs from the written one.
    if let Uri::Http(_) = weights.source {
        normalized["source"] = Value::from(weights.source.to_string());
    }
    Weights {
        line: document.line(&place),
        place,
        source: weights.source.to_string(),
        mount_location: weights.mount_location,
        normalized,
    }
}

/// The secrets that weights name, and warnings of those that nobody has.
fn named(
    accepted: &[Accepted],
    stores: &[SecretStore],
    env: impl Fn(&str) -> Option<OsString>,
    found: &mut Diagnostics,
) -> Vec<Named> {
    let mut all: Vec<Named> = Vec::new();
    for Accepted { place, weights, normalized } in accepted {
        let Some(name) = weights.auth.as_ref().and_then(|auth| auth.secret()) else { continue };
        let key = "auth_secret_name";
        let place = if normalized[key] == name { place.key(key) } else { place.key("auth").key(key) };
        if let Some(other) = all.iter().find(|known| known.name != name && secrets::alike(&known.name, name))
        {
            let text = format!("the secrets {name:?} and {:?} share {}", other.name, secrets::variable(name));
            found.warn(&place, text);
        }
        let whereabouts = secrets::whereabouts(name, stores, &env);
        match &whereabouts {
            Ok(Some(_)) => {}
            Ok(None) => {
                let stores: String = stores.iter().map(|store| format!(", not in {store}")).collect();
                let text = format!("no such secret: not in {}{stores}", secrets::variable(name));
                found.warn(&place, text);
            }
            Err(error) => found.warn(&place, error.to_string()),
        }
        if all.iter().all(|known| known.name != name) {
            all.push(Named { name: name.to_owned(), found: whereabouts.ok().flatten() });
        }
    }
    all
}

/// The report for a person: what is found, line by line, then what is accepted.
fn shown(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |number: usize, text: String| out.push_str(&format!("{}:{number}: {text}\n", report.file));
    for Said { line: number, finding: Diagnostic { place, verdict, text } } in &report.findings {
        let verdict = if *verdict == Severity::Reject { String::new() } else { format!("{verdict}: ") };
        let place = if *place == DocumentPath::default() { String::new() } else { format!("{place}: ") };
        line(*number, format!("{verdict}{place}{text}"));
    }
    for weights in &report.weights {
        let mount = weights.mount_location.display();
        line(weights.line, format!("{}: accepted: {} on {mount}", weights.place, weights.source));
    }
    for Named { name, found } in &report.secrets {
        let found = found.as_deref().map_or("missing".to_owned(), |place| format!("in {place}"));
        out.push_str(&format!("secret {name:?}: {found}\n"));
    }
    out
}

#[cfg(test)]
mod tests;
