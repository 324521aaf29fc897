//! The format of each scheme's URIs, and the errors that show it.

use std::fmt;

use crate::error::{Error, Kind, Result};

/// All schemes with the format of their URIs.
const FORMATS: [(&str, &str); 10] = [
    ("file", "file:///directory"),
    ("https", "https://host/file"),
    ("http", "http://host/file"),
    ("s3", "s3://bucket/prefix"),
    ("hf", "hf://[datasets/]owner/name[@revision][/path]"),
    ("gs", "gs://bucket/prefix"),
    ("r2", "r2://account.bucket/prefix"),
    ("azure", "azure://account/container/path"),
    ("cw", "cw://bucket/prefix"),
    ("bt", "bt://project[@job|@latest][/checkpoint]"),
];

/// Whether a source can have this scheme.
pub(super) fn is_scheme(scheme: &str) -> bool {
    FORMATS.iter().any(|(known, _)| *known == scheme)
}

/// All schemes, for messages.
pub(super) fn schemes() -> String {
    FORMATS.map(|(scheme, _)| format!("{scheme}://")).join(", ")
}

/// Writes `root`, and `path` below it where there is one.
pub(super) fn below(f: &mut fmt::Formatter<'_>, root: fmt::Arguments<'_>, path: &str) -> fmt::Result {
    f.write_fmt(root)?;
    if path.is_empty() { Ok(()) } else { write!(f, "/{path}") }
}

/// Refuses a path with a part that is not a file name. An empty path has no parts.
pub(super) fn parts(scheme: &str, path: &str) -> Result<()> {
    match path.split('/').find(|part| matches!(*part, "" | "." | "..")) {
        Some(part) if !path.is_empty() => Err(wrong(scheme, format!("its path has the part {part:?}"))),
        _ => Ok(()),
    }
}

/// The error for a URI of a known scheme: what is wrong, and what a right one looks like.
pub(super) fn wrong(scheme: &str, what: impl fmt::Display) -> Error {
    let form = FORMATS.iter().find(|(known, _)| *known == scheme).map_or("", |(_, form)| form);
    invalid(format!("bad {scheme}:// source: {what} (expected {form})"))
}

/// The error for a text that is no URI.
pub(super) fn invalid(text: impl Into<String>) -> Error {
    Error::new(Kind::Invalid, text)
}
