//! The sources that a configuration names, as commands take them.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bdnfs::source::weights::{self, Rules, WeightsSource};
use bdnfs::source::{Access, Finding, Verdict};

use crate::config::{self, Format};
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

/// Reads a configuration. What it doesn't say of how sources are read, `how` does.
///
/// # Errors
/// Where anything in it is rejected, the first of what `bdnfs check` says.
pub fn read(file: &Path, how: &How) -> Result<Vec<Item>> {
    let name = file.display();
    let (format, text) = config::read(file)?;
    let document = match config::parse(format, &text) {
        Ok(document) => document,
        Err(broken) => bail!("{name}:{}: {}", broken.line, broken.what),
    };
    let rules = Rules { local: format == Format::Toml, strict: false };
    let (accepted, found) = weights::read(&document.value, rules);
    let said = |Finding { place, text, .. }: &Finding| {
        let separator = if place.parent().is_none() { "" } else { ": " };
        format!("{name}:{}: {place}{separator}{text}", document.line(place))
    };
    let (rejects, others): (Vec<_>, Vec<_>) =
        found.iter().partition(|finding| finding.verdict == Verdict::Reject);
    if let Some(first) = rejects.first() {
        let more = match rejects.len() - 1 {
            0 => String::new(),
            more => format!(" ({more} more; `bdnfs check {name}` tells them)"),
        };
        bail!("{}{more}", said(first));
    }
    if accepted.is_empty() {
        bail!("{name} names no weights, so there is nothing to do");
    }
    for finding in others {
        eprintln!("note: {}", said(finding));
    }
    accepted.into_iter().map(|accepted| item(accepted.weights, how)).collect()
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
