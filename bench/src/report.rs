//! The report: the rows of all groups, as JSON and as Markdown.

mod contest;
mod losses;
mod markdown;
mod rows;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::interrupt::Interrupted;
use crate::lab::Sizes;
use crate::machine::{self, HostInfo, Ticks};
use crate::unit::MeasureUnit;

pub use markdown::quantity;
pub use rows::{Comparison, Figure, Growth, Rows};

/// The version of the JSON. It changes when a reader of the old one would misread the new one.
const REPORT_VERSION: u32 = 2;
/// How far the medians of two runs of one build may lie apart.
pub const CLOSE_RATIO: f64 = 0.1;
/// The reach of the interval beyond which a row is marked as noisy. Two medians within it differ by [`CLOSE_RATIO`] at most, since
/// independent errors add in quadrature.
pub const NOISY_REACH: f64 = CLOSE_RATIO * std::f64::consts::FRAC_1_SQRT_2;
/// The load for each processor above which a group counts as begun on a busy machine; the group before it leaves some.
const BUSY_LOAD: f64 = 0.5;
/// The share of stolen processor time from which the report mentions it.
const MAX_STOLEN_SHARE: f64 = 0.02;

/// Everything that a run found out.
#[derive(Debug, Deserialize, Serialize)]
pub struct BenchReport {
    format: u32,
    machine: HostInfo,
    /// The present measurement.
    #[serde(skip, default = "Sizes::default")]
    sizes: Sizes,
    /// In the order in which they were measured.
    pub groups: Vec<RowGroup>,
    /// When the last row of the group under way may begin.
    #[serde(skip)]
    until: Option<Instant>,
}

/// Rows that belong together.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct RowGroup {
    /// Its name for `--only`.
    pub key: String,
    /// Its title.
    pub name: String,
    about: String,
    /// How much was measured.
    pub sizes: Sizes,
    /// Whether the same was done with several others, so that a table of all of them can be drawn.
    contest: bool,
    /// When it began, and what else the machine had to do then.
    began: String,
    load: String,
    /// Seconds that it took.
    took: f64,
    /// The share of the processors' time that was stolen meanwhile.
    #[serde(default)]
    stolen: Option<f64>,
    /// The time of each step, with its preparation.
    #[serde(default)]
    steps: Vec<GroupStep>,
    /// Comparisons.
    #[serde(serialize_with = "rows::with_ratios")]
    pub pairs: Vec<Comparison>,
    /// The measurements of bdnfs alone.
    pub figures: Vec<Figure>,
    /// How figures grow.
    pub growths: Vec<Growth>,
    missed: Vec<MissedRow>,
}

/// How long a row took, or what several of them need.
#[derive(Debug, Deserialize, Serialize)]
struct GroupStep {
    name: String,
    seconds: f64,
}

/// A row that could not be measured.
#[derive(Debug, Deserialize, Serialize)]
struct MissedRow {
    name: String,
    why: String,
}

impl RowGroup {
    /// Whether as much was measured as in `other`: instructions are the same, however much else was.
    pub fn is_like(&self, other: &Self) -> bool {
        let only = |group: &Self| {
            group.pairs.is_empty() && group.figures.iter().all(|one| one.unit == MeasureUnit::Instructions)
        };
        self.sizes.is_like(&other.sizes) || (only(self) && only(other))
    }

    /// The busiest minute before it began, in processes that wanted to run.
    fn load(&self) -> f64 {
        self.load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
    }
}

impl BenchReport {
    /// A report without rows.
    pub fn new(machine: HostInfo, sizes: Sizes) -> Self {
        Self { format: REPORT_VERSION, machine, sizes, groups: Vec::new(), until: None }
    }

    /// Begins no row after `until` from now on.
    pub fn until(&mut self, until: Instant) {
        self.until = Some(until);
    }

    /// Reads what [`Self::write`] wrote.
    ///
    /// # Errors
    /// It can't be read, or is of another format.
    pub fn read(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct FormatVersion {
            format: u32,
        }
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let other = || format!("{} is no report of a benchmark", path.display());
        let head: FormatVersion = serde_json::from_str(&text).with_context(other)?;
        if head.format != REPORT_VERSION {
            bail!(
                "{} has format {}, and this program reads format {REPORT_VERSION}",
                path.display(),
                head.format
            );
        }
        serde_json::from_str(&text).with_context(other)
    }

    /// Takes over the groups of `earlier`; what is measured again replaces them.
    pub fn keep(&mut self, earlier: Self) {
        self.groups = earlier.groups;
    }

    /// The group that `--only` calls `key`.
    pub fn find(&self, key: &str) -> Option<&RowGroup> {
        self.groups.iter().find(|group| group.key == key)
    }

    /// Begins a group; what follows belongs to it.
    pub fn group(&mut self, key: &str, name: &str, about: impl Into<String>) {
        eprintln!("{name}");
        self.groups.retain(|group| group.key != key);
        self.groups.push(RowGroup {
            key: key.to_owned(),
            name: name.to_owned(),
            about: about.into(),
            sizes: self.sizes,
            began: machine::now(),
            load: machine::load(),
            ..RowGroup::default()
        });
    }

    /// Marks the current group as a contest: the same tasks done by several.
    pub fn contest(&mut self) {
        if let Some(group) = self.groups.last_mut() {
            group.contest = true;
        }
    }

    /// Notes the duration of the current group, and its ticks of the processors.
    pub fn took(&mut self, time: Duration, ticks: Ticks) {
        if let Some(group) = self.groups.last_mut() {
            (group.took, group.stolen) = (time.as_secs_f64(), Some(ticks.stolen()));
        }
    }

    /// Notes what was not measured, and why.
    pub fn miss(&mut self, name: &str, why: impl Into<String>) {
        // The path of the sources is left out.
        let here = std::env::current_dir().unwrap_or_default().display().to_string();
        let why = why.into().replace(&here, ".");
        eprintln!("  {name}: not measured: {why}");
        if let Some(group) = self.groups.last_mut() {
            group.missed.push(MissedRow { name: name.to_owned(), why });
        }
    }

    /// Adds what `measure` finds, or why it found nothing.
    ///
    /// # Errors
    /// Interruption only.
    pub fn measure<R: Into<Rows>>(&mut self, name: &str, measure: impl FnOnce() -> Result<R>) -> Result<()> {
        let begin = Instant::now();
        if self.until.is_some_and(|until| until < begin) {
            self.miss(name, "the group's share of the time is over; --limit sets that of all");
            return Ok(());
        }
        let done = measure().map(Into::into);
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("  {name}: {seconds:.1} s");
        if let Some(group) = self.groups.last_mut() {
            group.steps.push(GroupStep { name: name.to_owned(), seconds });
        }
        match done {
            Ok(rows) => self.add(rows),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => self.miss(name, format!("{error:#}")),
        }
        Ok(())
    }

    /// The result of `make` for the rows that follow; `None` where that failed, which the report then says.
    ///
    /// # Errors
    /// Interruption only.
    pub fn prepare<T>(&mut self, name: &str, make: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let mut made = None;
        self.measure(name, || {
            made = Some(make()?);
            Ok(Rows::default())
        })?;
        Ok(made)
    }

    fn add(&mut self, rows: Rows) {
        let Some(group) = self.groups.last_mut() else { return };
        rows.pairs
            .iter()
            .for_each(|pair| eprintln!("  {}: {:.3} of {}", pair.name, pair.ratio(), pair.against));
        rows.figures
            .iter()
            .for_each(|one| eprintln!("  {}: {}", one.name, quantity(one.value.median(), one.unit)));
        rows.growths
            .iter()
            .flat_map(|growth| growth.points.iter().map(move |point| (growth, point)))
            .for_each(|(growth, (at, value))| {
                eprintln!(
                    "  {}, {at} {}: {}",
                    growth.name,
                    growth.along,
                    quantity(value.median(), growth.unit)
                );
            });
        group.pairs.extend(rows.pairs);
        group.figures.extend(rows.figures);
        group.growths.extend(rows.growths);
    }

    /// Writes `name.json` and `name.md` into `directory`, and returns their paths.
    ///
    /// # Errors
    /// They can't be written.
    pub fn write(&self, directory: &Path, name: &str) -> Result<[PathBuf; 2]> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let json = serde_json::to_string_pretty(self).context("cannot write the report as JSON")? + "\n";
        let texts = [("json", json), ("md", self.markdown(name))];
        let paths = texts.map(|(ending, text)| (directory.join(format!("{name}.{ending}")), text));
        for (path, text) in &paths {
            fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(paths.map(|(path, _)| path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;

    #[test]
    fn report_with_failed_row_keeps_the_others() {
        let mut report = BenchReport::new(HostInfo::default(), Sizes::FULL);
        report.group("key", "group", "about it");
        let side = |rate: f64| [rate; 2].into_iter().collect::<Samples>();
        let pair = Comparison::new("a row", MeasureUnit::Megabytes, "ext4", [side(2000.0), side(1900.0)])
            .with_wanted(0.95);
        report.measure("a row", || Ok(pair)).unwrap();
        report.measure("another", || anyhow::bail!("fio is not installed") as Result<Rows>).unwrap();
        let text = report.markdown("name");
        let row =
            "| a row | ext4 | 2,000 MB/s (2,000 to 2,000) | 1,900 MB/s (1,900 to 1,900) | 0.950 | 0.95 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("- another: fio is not installed"), "{text}");
        let failure = report.measure("a third", || Err::<Rows, _>(Interrupted.into())).unwrap_err();
        assert!(failure.is::<Interrupted>());
    }

    #[test]
    fn report_written_and_read_is_equal() {
        let directory = tempfile::tempdir().unwrap();
        let mut report = BenchReport::new(HostInfo::default(), Sizes::QUICK);
        report.group("key", "group", "about it");
        let side = |figure: f64| [figure].into_iter().collect::<Samples>();
        let pair = Comparison::new("row", MeasureUnit::Seconds, "other", [side(4.0), side(2.0)]);
        let points = vec![(1.0, side(1.0)), (10.0, side(3.0))];
        let growth =
            Growth { name: "time".into(), unit: MeasureUnit::Seconds, along: "files".into(), points };
        report.add(Rows { pairs: vec![pair], growths: vec![growth], ..Rows::default() });
        report.write(directory.path(), "name").unwrap();
        let read = BenchReport::read(&directory.path().join("name.json")).unwrap();
        assert_eq!(read.markdown("name"), report.markdown("name"));
        let mut later = BenchReport::new(HostInfo::default(), Sizes::QUICK);
        later.until(Instant::now());
        later.keep(read);
        later.group("key", "group", "measured again");
        later.measure("a row", || Ok(Rows::default())).unwrap();
        assert!(later.markdown("name").contains("a row: the group's share of the time is over"));
        assert!(!later.markdown("name").contains("about it"));
    }
}
