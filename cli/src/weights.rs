//! The sources that a configuration names, as commands take them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bdnfs::source::weights::{self, Rules, WeightsSource};
use bdnfs::source::{Access, Diagnostic, Diagnostics, Severity};
use bdnfs_agent::api::Weights;
use serde_json::Value;

use crate::config::{self, Document, Format};
use crate::source::{How, Source};

/// One of them.
#[derive(Debug)]
pub struct Item {
    /// Where it lives.
    pub source: Source,
    /// Where it is to appear.
    pub location: PathBuf,
    /// Patterns of the files to take; `None` takes all.
    pub allow: Option<Vec<String>>,
    /// Patterns of the files to leave out.
    pub ignore: Vec<String>,
    /// How it may be read.
    pub access: Access,
}

impl Item {
    /// The same, as a daemon is told of it.
    pub fn weights(self) -> Weights {
        let Self { source, location: mountpoint, allow, ignore, access } = self;
        Weights { source: source.text().clone(), mountpoint, allow, ignore, access }
    }
}

/// Reads a configuration. What it doesn't say of how sources are read, `how` does.
///
/// # Errors
/// Where anything in it is rejected, the first of what `bdnfs check` says.
pub fn read(file: &Path, how: &How) -> Result<Vec<Item>> {
    let items = Configuration::read(file)?.weights(how)?;
    if items.is_empty() {
        bail!("{} names no weights, so there is nothing to do", file.display());
    }
    Ok(items)
}

/// A configuration that was read.
pub struct Configuration {
    name: String,
    format: Format,
    document: Document,
}

impl Configuration {
    /// Reads it.
    pub fn read(file: &Path) -> Result<Self> {
        let name = file.display().to_string();
        let (format, text) = config::read(file)?;
        match config::parse(format, &text) {
            Ok(document) => Ok(Self { name, format, document }),
            Err(error) => bail!("{name}:{}: {}", error.line, error.message),
        }
    }

    /// What it says.
    pub fn value(&self) -> &Value {
        &self.document.value
    }

    /// The weights that it names. What it doesn't say of how they are read, `how` does.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn weights(&self, how: &How) -> Result<Vec<Item>> {
        let rules = Rules { local: self.format == Format::Toml, strict: false };
        let (accepted, found) = weights::read(self.value(), rules);
        self.judge(&found)?;
        accepted.into_iter().map(|accepted| item(accepted.weights, how)).collect()
    }

    /// Tells what is said of it; a failure where any of that is a reject.
    pub fn judge(&self, found: &Diagnostics) -> Result<()> {
        let name = &self.name;
        let said = |Diagnostic { place, text, .. }: &Diagnostic| {
            let separator = if place.parent().is_none() { "" } else { ": " };
            format!("{name}:{}: {place}{separator}{text}", self.document.line(place))
        };
        let (rejects, others): (Vec<_>, Vec<_>) =
            found.iter().partition(|finding| finding.verdict == Severity::Reject);
        if let Some(first) = rejects.first() {
            let more = match rejects.len() - 1 {
                0 => String::new(),
                more => format!(" ({more} more; `bdnfs check {name}` tells them)"),
            };
            bail!("{}{more}", said(first));
        }
        others.into_iter().for_each(|finding| eprintln!("note: {}", said(finding)));
        Ok(())
    }
}

fn item(weights: WeightsSource, how: &How) -> Result<Item> {
    let WeightsSource { source, mount_location, auth, allow_patterns, ignore_patterns } = weights;
    Ok(Item {
        access: how.access.gather_as(&source, auth)?,
        source: source.into(),
        location: mount_location,
        allow: allow_patterns,
        ignore: ignore_patterns.unwrap_or_default(),
    })
}
