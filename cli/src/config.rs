//! Configuration files: YAML, JSON or TOML, parsed into one tree that knows the line of each value.

mod json;
mod toml;
mod yaml;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bdnfs::source::{Diagnostics, DocumentPath};
use serde_json::Value;

/// The largest configuration that is read, in bytes. People write thousands; what is larger is something else.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// The maximum nesting depth of lists and mappings. The model of Truss goes six deep.
const MAX_CONFIG_DEPTH: usize = 64;
/// The maximum number of values of a document, those that aliases repeat counted each time.
const MAX_VALUES: usize = 1 << 18;
/// The warning about a key that one mapping has twice, as Truss warns.
const DUPLICATE_KEY_WARNING: &str = "duplicate key; the last one counts";

/// The language of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML: a `config.yaml` of Truss.
    Yaml,
    /// JSON: a training job of Truss, dumped.
    Json,
    /// TOML: a configuration of bdnfs itself.
    Toml,
}

/// A parsed configuration.
#[derive(Debug, Default)]
pub struct Document {
    /// The root value.
    pub value: Value,
    /// The parser's warnings.
    pub findings: Diagnostics,
    lines: BTreeMap<DocumentPath, usize>,
}

impl Document {
    /// The line of the value at `place`, from 1; where there is none, that of its nearest ancestor.
    pub fn line(&self, place: &DocumentPath) -> usize {
        let mut place = Some(place.clone());
        while let Some(at) = place {
            if let Some(line) = self.lines.get(&at) {
                return *line;
            }
            place = at.parent();
        }
        1
    }

    /// Records the line of a value.
    ///
    /// # Errors
    /// For more than [`MAX_VALUES`].
    fn record_line(&mut self, place: &DocumentPath, line: usize) -> Result<(), ParseError> {
        self.lines.insert(place.clone(), line);
        if self.lines.len() > MAX_VALUES {
            return Err(ParseError::new(line, format!("more than {MAX_VALUES} values")));
        }
        Ok(())
    }
}

/// A syntax error in a configuration.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// The problem, in one line.
    pub message: String,
}

impl ParseError {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

/// Reads a file, or standard input for `-`, and detects its format by its name or content.
pub fn read(path: &Path) -> Result<(Format, String)> {
    let mut text = String::new();
    let size = if path == Path::new("-") {
        std::io::stdin().take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut text))
    };
    if size.with_context(|| format!("cannot read {}", path.display()))? as u64 > MAX_CONFIG_BYTES {
        bail!("{}: file too large for a configuration: more than {MAX_CONFIG_BYTES} bytes", path.display());
    }
    // Some editors begin UTF-8 with a byte order mark, which not every parser skips.
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    let format = match path.extension().and_then(|e| e.to_str()) {
        Some("json") => Format::Json,
        Some("toml") => Format::Toml,
        Some("yaml" | "yml") => Format::Yaml,
        _ if text.trim_start().starts_with('{') => Format::Json,
        _ if text.contains("[[weights]]") => Format::Toml,
        _ => Format::Yaml,
    };
    Ok((format, text))
}

/// Parses a configuration.
pub fn parse(format: Format, text: &str) -> Result<Document, ParseError> {
    match format {
        Format::Yaml => yaml::parse(text),
        Format::Json => json::parse(text),
        Format::Toml => toml::parse(text),
    }
}

/// The line breaks of a text, by which an offset's line is found in logarithmic time.
struct LineIndex(Vec<usize>);

impl LineIndex {
    fn new(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line of the byte at `offset`, from 1.
    fn line(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

/// A number as JSON has it; 0 for one that JSON has not: weights have no numbers, so only the type matters.
fn number(text: &str) -> Value {
    let whole = text.parse::<i64>().map(Value::from);
    whole
        .or_else(|_| text.parse::<f64>().map(Value::from))
        .ok()
        .filter(Value::is_number)
        .unwrap_or_else(|| 0.into())
}

fn too_deep(line: usize) -> ParseError {
    ParseError::new(line, format!("lists or mappings nested more than {MAX_CONFIG_DEPTH} deep"))
}

#[cfg(test)]
mod tests;
