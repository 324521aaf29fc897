//! The weights of a configuration: sources and their mount points.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bdnfs::source::{Access, Diagnostic, Diagnostics, Severity, TreeLayout};
use bdnfs::weights::{self, Rules, WeightsSource};
use bdnfs_agent::api::Weights;
use serde_json::Value;

use crate::config::{self, Document, Format};
use crate::output::stderr_line;
use crate::source::{Source, SourceOptions};

/// A source and its mount point.
#[derive(Debug)]
pub struct WeightsEntry {
    /// The URI.
    pub source: Source,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Patterns of files to include; `None` for all.
    pub allow: Option<Vec<String>>,
    /// Patterns of files to exclude.
    pub ignore: Vec<String>,
    /// Access to the source.
    pub access: Access,
    /// The layout of the tree.
    pub layout: Option<TreeLayout>,
}

impl WeightsEntry {
    /// The weights of a request to the agent.
    pub fn into_weights(self) -> Weights {
        let Self { source, mountpoint, allow, ignore, access, layout } = self;
        Weights { source: source.text().clone(), mountpoint, allow, ignore, access, layout }
    }
}

/// Reads the weights of a configuration. `options` are the access options that it lacks; with `lenient`, unknown keys are
/// ignored with a warning.
///
/// # Errors
/// The first rejection of `bdnfs check`.
pub fn read(file: &Path, options: &SourceOptions, lenient: bool) -> Result<Vec<WeightsEntry>> {
    let items = Configuration::read(file)?.weights(options, lenient)?;
    if items.is_empty() {
        bail!("{} contains no weights", file.display());
    }
    Ok(items)
}

/// A parsed configuration and its name.
pub struct Configuration {
    name: String,
    format: Format,
    document: Document,
}

impl Configuration {
    /// Reads and parses a file.
    pub fn read(file: &Path) -> Result<Self> {
        let name = file.display().to_string();
        let (format, text) = config::read(file)?;
        match config::parse(format, &text) {
            Ok(document) => Ok(Self { name, format, document }),
            Err(error) => bail!("{name}:{}: {}", error.line, error.message),
        }
    }

    /// The root value.
    pub fn value(&self) -> &Value {
        &self.document.value
    }

    /// The weights of the configuration. `options` are the access options that it lacks; with `lenient`, unknown keys are ignored
    /// with a warning.
    ///
    /// # Errors
    /// Those of [`read`].
    pub fn weights(&self, options: &SourceOptions, lenient: bool) -> Result<Vec<WeightsEntry>> {
        let rules = Rules { bdnfs_schema: self.format == Format::Toml, lenient };
        let (accepted, findings) = weights::read(self.value(), rules);
        self.report(&findings)?;
        accepted.into_iter().map(|accepted| entry(accepted.weights, options)).collect()
    }

    /// Prints warnings and notes.
    ///
    /// # Errors
    /// The first rejection.
    pub fn report(&self, findings: &Diagnostics) -> Result<()> {
        let name = &self.name;
        let format = |Diagnostic { place, text, .. }: &Diagnostic| {
            let separator = if place.parent().is_none() { "" } else { ": " };
            format!("{name}:{}: {place}{separator}{text}", self.document.line(place))
        };
        let (rejects, others): (Vec<_>, Vec<_>) =
            findings.iter().partition(|finding| finding.verdict == Severity::Reject);
        if let Some(first) = rejects.first() {
            let more = match rejects.len() - 1 {
                0 => String::new(),
                more => format!(" ({more} more; run `bdnfs check {name}`)"),
            };
            bail!("{}{more}", format(first));
        }
        others.into_iter().for_each(|finding| stderr_line!("note: {}", format(finding)));
        Ok(())
    }
}

fn entry(weights: WeightsSource, options: &SourceOptions) -> Result<WeightsEntry> {
    let WeightsSource {
        source,
        mount_location,
        auth,
        allow_patterns,
        ignore_patterns,
        executable_patterns,
        layout,
    } = weights;
    let mut access = options.access.load_with_auth(&source, auth)?;
    access.executable.extend(executable_patterns.into_iter().flatten());
    Ok(WeightsEntry {
        access,
        source: source.into(),
        mountpoint: mount_location,
        allow: allow_patterns,
        ignore: ignore_patterns.unwrap_or_default(),
        layout,
    })
}

/// Refuses repositories that share a mount location, and one in that of another: each is a mount of its own, and would cover the
/// other.
///
/// # Errors
/// Where two do, which.
pub fn refuse_shared_locations(entries: &[WeightsEntry]) -> Result<()> {
    for (number, entry) in entries.iter().enumerate() {
        let overlaps = |other: &WeightsEntry| {
            other.mountpoint.starts_with(&entry.mountpoint) || entry.mountpoint.starts_with(&other.mountpoint)
        };
        if entries[..number].iter().any(overlaps) {
            let (uri, place) = (entry.source.uri(), entry.mountpoint.display());
            bail!(
                "{uri}: {place} is the mount_location of another source, or in it, or around it; only jobs and containers show several repositories in one directory"
            );
        }
    }
    Ok(())
}
