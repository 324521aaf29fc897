//! The `source` of weights: a URI, under narrower rules than the command line's.

use super::Rules;
use crate::error::Error;
use crate::source::Uri;
use crate::source::{Diagnostics, DocumentPath};

/// The format of each scheme's sources, the most common first.
const LOCATION_FORMATS: [(&str, &str); 9] = [
    ("hf", "hf://owner/name"),
    ("s3", "s3://bucket/prefix"),
    ("gs", "gs://bucket/prefix"),
    ("r2", "r2://account.bucket/prefix"),
    ("azure", "azure://account/container/path"),
    ("cw", "cw://bucket/prefix"),
    ("https", "https://host/file"),
    ("file", "file:///directory"),
    ("bt", "bt://project[@job][/checkpoint]"),
];

/// Schemes that only bdnfs's own TOML may name.
const TOML_ONLY_SCHEMES: [&str; 2] = ["file", "bt"];

/// Schemes whose sources have no revision, so no '@'.
const CLOUD_SCHEMES: [&str; 5] = ["s3", "gs", "r2", "azure", "cw"];

/// The longest scheme that is quoted, in bytes; the schemes of other tools are shorter.
const QUOTED_SCHEME_LIMIT: usize = 16;

/// Other names of the schemes.
const SCHEME_ALIASES: [(&str, &str); 9] = [
    ("gcs", "gs"),
    ("az", "azure"),
    ("abfs", "azure"),
    ("abfss", "azure"),
    ("wasbs", "azure"),
    ("s3a", "s3"),
    ("s3n", "s3"),
    ("huggingface", "hf"),
    ("http", "https"),
];

/// Reads a source.
pub(super) fn read(text: &str, place: &DocumentPath, rules: Rules, found: &mut Diagnostics) -> Option<Uri> {
    match parse(text, rules) {
        Ok((uri, stripped)) => {
            if stripped {
                let text =
                    "the user name in it is not sent; name a secret with it in auth_secret_name instead";
                found.warn(place, text);
            }
            if let Some(note) = uri.note() {
                found.note(place, note);
            }
            Some(uri)
        }
        Err(text) => {
            found.reject(place, text);
            None
        }
    }
}

/// The URI, and whether a user name was taken out of it.
fn parse(text: &str, rules: Rules) -> Result<(Uri, bool), String> {
    if text.is_empty() {
        return Err(format!("is empty; write {}", all_formats(rules)));
    }
    let Some((scheme, rest)) = text.split_once("://") else { return Err(missing_scheme(text, rules)) };
    if format_of(scheme, rules).is_none() {
        return Err(unknown_scheme(scheme, rules));
    }
    if rest.starts_with('/') && scheme != "file" {
        return Err(format!("has a slash too many after {scheme}://; write {}", toml_format_of(scheme)));
    }
    if CLOUD_SCHEMES.contains(&scheme) && rest.contains('@') {
        return Err(format!("has an '@' for a revision, and {scheme}:// has none; only hf:// does"));
    }
    let anonymous = (scheme == "https").then(|| without_user(rest)).flatten();
    let uri = anonymous.as_deref().unwrap_or(text).parse().map_err(|e: Error| e.to_string())?;
    Ok((uri, anonymous.is_some()))
}

/// An https URL without the user name that it has. `None` where it has none, or a password, which [`Uri`] refuses.
fn without_user(rest: &str) -> Option<String> {
    let end = rest.find(['/', '\\', '?', '#']).unwrap_or(rest.len());
    let (user, host) = rest[..end].rsplit_once('@')?;
    (!user.contains(':')).then(|| format!("https://{host}{}", &rest[end..]))
}

/// The error for a text that has no scheme.
fn missing_scheme(text: &str, rules: Rules) -> String {
    if text.starts_with("bdn:") {
        return format!("is a volume of another service (bdn:); write {}", all_formats(rules));
    }
    if let Some(form) = text.split_once([':', '/']).and_then(|(scheme, _)| format_of(scheme, rules)) {
        return format!("has no \"://\" after its scheme; write {form}");
    }
    // The text is quoted only where it must be the id of a repository.
    let hub = format!("hf://{text}");
    if text.contains('/')
        && !text.contains(['@', ':'])
        && !text.starts_with('/')
        && hub.parse::<Uri>().is_ok()
    {
        return format!("has no scheme; for the repository of the Hugging Face Hub write {hub}");
    }
    format!("has no scheme; write {}", all_formats(rules))
}

/// The error for an unknown scheme.
fn unknown_scheme(scheme: &str, rules: Rules) -> String {
    let lower = scheme.trim().to_ascii_lowercase();
    let meant =
        SCHEME_ALIASES.iter().find(|(alias, _)| *alias == lower).map_or(&lower[..], |(_, known)| known);
    // The text may be anything, a password among them, unless it looks like a scheme.
    let plain = scheme.len() <= QUOTED_SCHEME_LIMIT && scheme.chars().all(|c| c.is_ascii_alphanumeric());
    let what =
        if plain && !scheme.is_empty() { format!("the scheme {scheme}://") } else { "its scheme".into() };
    match format_of(meant, rules) {
        Some(form) => format!("{what} is not known; did you mean {form}?"),
        None if lower == "file" => {
            "is on this machine only (file://); only bdnfs's own TOML may name such a source".into()
        }
        None if lower == "bt" => {
            "is a checkpoint (bt://), which Truss does not take in weights; only bdnfs's own TOML may name such a source"
                .into()
        }
        None => format!("{what} is not known; write {}", all_formats(rules)),
    }
}

fn format_of(scheme: &str, rules: Rules) -> Option<&'static str> {
    allowed(rules).find(|(known, _)| *known == scheme).map(|(_, form)| form)
}

fn toml_format_of(scheme: &str) -> &'static str {
    format_of(scheme, Rules { bdnfs_schema: true, lenient: false }).unwrap_or_default()
}

fn all_formats(rules: Rules) -> String {
    allowed(rules).map(|(_, form)| form).collect::<Vec<_>>().join(", ")
}

fn allowed(rules: Rules) -> impl Iterator<Item = (&'static str, &'static str)> {
    LOCATION_FORMATS
        .into_iter()
        .filter(move |(scheme, _)| rules.bdnfs_schema || !TOML_ONLY_SCHEMES.contains(scheme))
}
