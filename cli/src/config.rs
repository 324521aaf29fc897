//! A configuration file, with the lines that its parts stand on.

mod json;
mod toml;
mod yaml;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bdnfs::source::{Findings, Place};
use serde_json::Value;

/// The largest configuration that is read, in bytes. People write thousands; what is larger is something else.
const LARGEST: u64 = 4 << 20;
/// How deep lists and mappings may lie in each other. The model of Truss goes six deep.
const DEEPEST: usize = 64;
/// How many values a document may have once what it repeats by reference is written out.
const MOST: usize = 1 << 18;

/// What a configuration is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A `config.yaml` of Truss.
    Yaml,
    /// A training job of Truss, dumped.
    Json,
    /// Our own.
    Toml,
}

/// A parsed configuration.
#[derive(Debug, Default)]
pub struct Document {
    /// What it says.
    pub value: Value,
    /// What the parser has to say of it.
    pub findings: Findings,
    lines: BTreeMap<Place, usize>,
}

impl Document {
    /// The line of what stands at `place`, from 1; where nothing does, that of what should have held it.
    pub fn line(&self, place: &Place) -> usize {
        let mut place = Some(place.clone());
        while let Some(at) = place {
            if let Some(line) = self.lines.get(&at) {
                return *line;
            }
            place = at.parent();
        }
        1
    }

    /// Remembers the line of a place, unless there are too many of them.
    fn note(&mut self, place: &Place, line: usize) -> Result<(), Broken> {
        self.lines.insert(place.clone(), line);
        if self.lines.len() > MOST {
            return Err(Broken { line, what: format!("has more than {MOST} values") });
        }
        Ok(())
    }
}

/// Why a text is no document, and on which line.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Reads a file, or standard input for `-`, as what its name says it is.
pub fn read(path: &Path) -> Result<(Format, String)> {
    let mut text = String::new();
    let size = if path == Path::new("-") {
        std::io::stdin().take(LARGEST + 1).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text))
    };
    if size.with_context(|| path.display().to_string())? as u64 > LARGEST {
        bail!("{}: larger than {LARGEST} bytes, so it is no configuration", path.display());
    }
    // Some editors mark UTF-8 so, and not every parser passes over it.
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

/// Parses a text.
pub fn parse(format: Format, text: &str) -> Result<Document, Broken> {
    match format {
        Format::Yaml => yaml::parse(text),
        Format::Json => json::parse(text),
        Format::Toml => toml::parse(text),
    }
}

/// The line of the byte at `offset`, from 1. Knows where lines begin, so that asking for many of them is cheap.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

/// A number. Where it is none of JSON's its value is lost; weights have none, so only that it is one matters.
fn number(text: &str) -> Value {
    let whole = text.parse::<i64>().map(Value::from);
    whole
        .or_else(|_| text.parse::<f64>().map(Value::from))
        .ok()
        .filter(Value::is_number)
        .unwrap_or_else(|| 0.into())
}

fn too_deep(line: usize) -> Broken {
    Broken { line, what: format!("has lists or mappings more than {DEEPEST} deep in each other") }
}

#[cfg(test)]
mod tests;
