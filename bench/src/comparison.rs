//! Against: whether a run is worse than an earlier one. It compares ratios, which are nearly the same on another machine, and
//! figures that do not depend on the machine's speed: memory, requests, instructions. It never compares seconds.

use std::fmt;

use crate::report::{BenchReport, Comparison, Figure, RowGroup, quantity};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

/// A smaller difference is not reported, however sure it is: from one day to the next the other side varies as well.
const RATIO_TOLERANCE: f64 = 0.1;
/// Instructions hardly move at all: what is left is where memory happens to lie.
const INSTRUCTION_TOLERANCE: f64 = 0.02;

/// The comparison of the rows that both reports have.
#[derive(Debug, Default)]
pub struct ReportComparison {
    /// How many rows were compared.
    compared: usize,
    /// The rows that are worse, a line each.
    worse: Vec<String>,
    /// The rows that are better.
    better: Vec<String>,
    /// The rows that could not be compared.
    not: Vec<String>,
}

impl ReportComparison {
    /// Of `new`, held against `old`.
    pub fn new(old: &BenchReport, new: &BenchReport) -> Self {
        let mut verdict = Self::default();
        for before in &old.groups {
            match new.find(&before.key) {
                Some(after) if after.is_like(before) => verdict.group(before, after),
                Some(_) => verdict.not.push(format!("{}: of another size", before.name)),
                None => verdict.not.push(format!("{}: not measured now", before.name)),
            }
        }
        verdict
    }

    /// How many rows are worse.
    pub fn worse(&self) -> usize {
        self.worse.len()
    }

    /// How many rows both have.
    pub fn compared(&self) -> usize {
        self.compared
    }

    fn group(&mut self, before: &RowGroup, after: &RowGroup) {
        for old in &before.pairs {
            let same = |new: &&Comparison| new.name == old.name && new.against == old.against;
            let name = format!("{}: {}, beside {}", after.name, old.name, old.against);
            match after.pairs.iter().find(same) {
                Some(new) => self.hold(&name, None, RATIO_TOLERANCE, [&old.ratios(), &new.ratios()]),
                None => self.not.push(format!("{name}: not measured now")),
            }
        }
        for old in before.figures.iter().filter(|figure| figure.unit.is_steady()) {
            let name = format!("{}: {}", after.name, old.name);
            let slack =
                if old.unit == MeasureUnit::Instructions { INSTRUCTION_TOLERANCE } else { RATIO_TOLERANCE };
            let same = |new: &&Figure| new.name == old.name;
            match after.figures.iter().find(same) {
                Some(new) => self.hold(&name, Some(old.unit), slack, [&old.value, &new.value]),
                None => self.not.push(format!("{name}: not measured now")),
            }
        }
    }

    /// A figure in `unit`, or a ratio. Worse is what lies beyond what both are known to: even the better end of the interval now is
    /// worse than the worse end then.
    fn hold(&mut self, name: &str, unit: Option<MeasureUnit>, slack: f64, [old, new]: [&Samples; 2]) {
        self.compared += 1;
        let ([least, most], [low, high]) = (new.interval(), old.interval());
        let (lower, higher) = (most < low, least > high);
        let moved = new.median() / old.median();
        if (moved - 1.0).abs() <= slack || !(lower || higher) {
            return;
        }
        let number = |value| unit.map_or_else(|| format!("{value:.3}"), |unit| quantity(value, unit));
        let tell = |one: &Samples| {
            format!("{} ({} to {})", number(one.median()), number(one.min()), number(one.max()))
        };
        let line = format!("{name}: {}, was {}", tell(new), tell(old));
        if higher == unit.is_some_and(MeasureUnit::is_cost) {
            self.worse.push(line)
        } else {
            self.better.push(line)
        }
    }
}

impl fmt::Display for ReportComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} rows compared, {} worse, {} better",
            self.compared,
            self.worse.len(),
            self.better.len()
        )?;
        for (what, lines) in [("worse", &self.worse), ("better", &self.better), ("not compared", &self.not)] {
            lines.iter().try_for_each(|line| writeln!(f, "  {what}: {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Sizes;
    use crate::machine::HostInfo;
    use crate::report::Rows;

    fn report(sizes: Sizes, bdnfs: &[f64], instructions: f64) -> BenchReport {
        let mut report = BenchReport::new(HostInfo::default(), sizes);
        report.group("key", "group", "about it");
        let samples = |of: &[f64]| of.iter().copied().collect::<Samples>();
        let pair = Comparison::new(
            "row",
            MeasureUnit::Megabytes,
            "ext4",
            [samples(&vec![1.0; bdnfs.len()]), samples(bdnfs)],
        );
        let seconds = Figure::new("seconds", MeasureUnit::Seconds, samples(&[instructions]));
        let instructions = Figure::new("verify", MeasureUnit::Instructions, samples(&[instructions]));
        let rows = Rows { pairs: vec![pair], figures: vec![seconds, instructions], ..Rows::default() };
        report.measure("rows", || Ok(rows)).unwrap();
        report
    }

    #[test]
    fn verdict_worse_needs_a_median_beyond_both_intervals() {
        let old = report(Sizes::QUICK, &[0.9, 1.0, 1.1], 1000.0);
        let worse = |bdnfs: &[f64], instructions| {
            let verdict = ReportComparison::new(&old, &report(Sizes::QUICK, bdnfs, instructions));
            assert_eq!(verdict.compared, 2, "seconds by themselves are not compared");
            (verdict.worse.len(), verdict.better.len())
        };
        assert_eq!(worse(&[0.9, 1.0, 1.1], 1000.0), (0, 0));
        // Its median is a fifth lower, but two of its turns are none that were not seen before.
        assert_eq!(worse(&[0.7, 0.8, 0.95], 1000.0), (0, 0));
        assert_eq!(worse(&[0.7, 0.75, 0.8], 1000.0), (1, 0));
        // Of eight turns, one that is good for once doesn't hide the others.
        assert_eq!(worse(&[0.7, 0.7, 0.7, 0.75, 0.75, 0.8, 0.8, 1.0], 1000.0), (1, 0));
        assert_eq!(worse(&[0.7, 0.7, 0.7, 0.75, 0.75, 0.8, 1.0, 1.0], 1000.0), (0, 0));
        assert_eq!(worse(&[1.2, 1.3, 1.4], 1000.0), (0, 1));
        assert_eq!(worse(&[1.0, 1.0, 1.0], 1010.0), (0, 0));
        assert_eq!(worse(&[1.0, 1.0, 1.0], 2000.0), (1, 0));
        assert_eq!(worse(&[1.0, 1.0, 1.0], 900.0), (0, 1));
    }

    #[test]
    fn verdict_without_common_rows_names_them() {
        let mut old = report(Sizes::QUICK, &[1.0], 1.0);
        let mut new = report(Sizes::FULL, &[0.1], 9.0);
        let verdict = ReportComparison::new(&old, &new);
        assert_eq!((verdict.compared, verdict.worse.len()), (0, 0));
        assert!(verdict.to_string().contains("not compared: group: of another size"), "{verdict}");
        // Of instructions there are as many, whatever else is measured.
        for report in [&mut old, &mut new] {
            report.groups[0].pairs.clear();
            report.groups[0].figures.remove(0);
        }
        let verdict = ReportComparison::new(&old, &new);
        assert_eq!((verdict.compared, verdict.worse.len()), (1, 1));
    }
}
