//! The report: the rows of all groups, as JSON and as Markdown.

mod markdown;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};

use crate::interrupt::Interrupted;
use crate::machine::Machine;
use crate::samples::Samples;

/// The version of the JSON. It changes when a reader of the old one would misread the new one.
const FORMAT: u32 = 1;

/// Everything that a run found out.
#[derive(Debug, Serialize)]
pub struct Report {
    format: u32,
    machine: Machine,
    quick: bool,
    groups: Vec<Group>,
}

/// Rows that belong together.
#[derive(Debug, Serialize)]
struct Group {
    name: String,
    about: String,
    #[serde(serialize_with = "with_ratios")]
    pairs: Vec<Pair>,
    figures: Vec<Figure>,
    missed: Vec<Missed>,
}

/// bdnfs beside something else, in a unit of which more is better.
#[derive(Debug, Serialize)]
pub struct Pair {
    /// What was measured.
    pub name: String,
    /// The unit of both sides.
    pub unit: &'static str,
    /// What bdnfs is compared with.
    pub against: String,
    /// How that did.
    pub baseline: Samples,
    /// How bdnfs did.
    pub bdnfs: Samples,
    /// The ratio of the medians that bdnfs is to reach.
    pub wanted: Option<f64>,
    /// How prototypes did on another machine; only the ratios can be compared.
    pub prototypes: &'static [Prototype],
}

/// What a prototype reached on Linux 6.18 with two cores.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Prototype {
    /// How it worked.
    pub kind: &'static str,
    /// What it reached, in the unit of its row.
    pub reached: f64,
    /// What ext4 reached beside it.
    pub native: f64,
}

/// A figure of bdnfs alone.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Its unit.
    pub unit: &'static str,
    /// The measurements.
    pub value: Samples,
    /// The most that it is to be.
    pub limit: Option<f64>,
}

/// A row that could not be measured.
#[derive(Debug, Serialize)]
struct Missed {
    name: String,
    why: String,
}

/// What one measurement adds to the report.
#[derive(Debug, Default)]
pub struct Rows {
    /// Comparisons.
    pub pairs: Vec<Pair>,
    /// Figures.
    pub figures: Vec<Figure>,
}

impl From<Pair> for Rows {
    fn from(pair: Pair) -> Self {
        Self { pairs: vec![pair], figures: Vec::new() }
    }
}

impl Pair {
    /// The ratio of the medians.
    fn ratio(&self) -> f64 {
        self.bdnfs.median() / self.baseline.median()
    }
}

impl Report {
    /// A report without rows.
    pub fn new(machine: Machine, quick: bool) -> Self {
        Self { format: FORMAT, machine, quick, groups: Vec::new() }
    }

    /// Begins a group; what follows belongs to it.
    pub fn group(&mut self, name: &str, about: impl Into<String>) {
        eprintln!("{name}");
        let (name, about) = (name.to_owned(), about.into());
        self.groups.push(Group { name, about, pairs: Vec::new(), figures: Vec::new(), missed: Vec::new() });
    }

    /// Adds what `measure` finds, or why it found nothing.
    ///
    /// # Errors
    /// Interruption only.
    pub fn measure<R: Into<Rows>>(&mut self, name: &str, measure: impl FnOnce() -> Result<R>) -> Result<()> {
        let Some(group) = self.groups.last_mut() else { return Ok(()) };
        match measure().map(Into::into) {
            Ok(rows) => {
                rows.pairs
                    .iter()
                    .for_each(|pair| eprintln!("  {}: {:.3} of {}", pair.name, pair.ratio(), pair.against));
                rows.figures.iter().for_each(|one| {
                    eprintln!("  {}: {}", one.name, markdown::quantity(one.value.median(), one.unit))
                });
                group.pairs.extend(rows.pairs);
                group.figures.extend(rows.figures);
            }
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("  {name}: not measured: {why}");
                group.missed.push(Missed { name: name.to_owned(), why });
            }
        }
        Ok(())
    }

    /// Writes `name.json` and `name.md` into `directory`, and answers with their paths.
    ///
    /// # Errors
    /// They can't be written.
    pub fn write(&self, directory: &Path, name: &str) -> Result<[PathBuf; 2]> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let json = serde_json::to_string_pretty(self).context("cannot write the report as JSON")? + "\n";
        let paths = ["json", "md"].map(|ending| directory.join(format!("{name}.{ending}")));
        for (path, text) in paths.iter().zip([json, self.markdown(name)]) {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(paths)
    }
}

/// Tells the ratio of each pair, too, so that a reader of the JSON need not work it out.
fn with_ratios<S: Serializer>(pairs: &[Pair], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Told<'a> {
        #[serde(flatten)]
        pair: &'a Pair,
        ratio: f64,
    }
    serializer.collect_seq(pairs.iter().map(|pair| Told { pair, ratio: pair.ratio() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_fails_says_why_and_the_others_stay() {
        let mut report = Report::new(Machine::default(), false);
        report.group("group", "about it");
        let pair = Pair {
            name: "a row".into(),
            unit: "MB/s",
            against: "ext4".into(),
            baseline: [2000.0].into_iter().collect(),
            bdnfs: [1900.0].into_iter().collect(),
            wanted: Some(0.95),
            prototypes: &[Prototype { kind: "kind", reached: 1.0, native: 4.0 }],
        };
        report.measure("a row", || Ok(pair)).unwrap();
        report.measure("another", || anyhow::bail!("fio is not installed") as Result<Rows>).unwrap();
        let text = report.markdown("name");
        let row = "| a row | ext4 | 2,000 MB/s (2,000 to 2,000) | 1,900 MB/s (1,900 to 1,900) | 0.950 | 0.95 | 0.250 (kind) |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("- another: fio is not installed"), "{text}");
        let failure = report.measure("a third", || Err::<Rows, _>(Interrupted.into())).unwrap_err();
        assert!(failure.is::<Interrupted>());
    }
}
