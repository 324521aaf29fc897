//! The report for people: a table for each group.

use std::fmt::Write;

use super::{
    BUSY_LOAD, BenchReport, CLOSE_RATIO, Comparison, Figure, Growth, MAX_STOLEN_SHARE, NOISY_REACH, RowGroup,
};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

impl BenchReport {
    pub(super) fn markdown(&self, name: &str) -> String {
        let mut text = format!("# Benchmark {name}\n\n{}\n\n", self.machine());
        text += "A ratio above 1 says that bdnfs was better, whatever the unit. All sides took turns.\n\n";
        text += &self.noise();
        for group in &self.groups {
            // Writing to a string can't fail, here and below.
            let _ = write!(text, "\n## {}\n\n{}", group.name, group.text());
        }
        text
    }

    /// What this ran on, and whether any of it is to be trusted.
    pub fn machine(&self) -> String {
        let mut text = self.machine.markdown();
        if self.groups.iter().any(|group| group.sizes.quick) {
            text += "\n\n**Small sizes (--quick): to see that it runs; trust no figure.**";
        }
        text
    }

    /// Whether the machine was quiet enough.
    pub fn noise(&self) -> String {
        let reaches: Vec<f64> = self.groups.iter().flat_map(RowGroup::reaches).collect();
        let (all, noisy) = (reaches.len(), reaches.iter().filter(|reach| **reach > NOISY_REACH).count());
        let most = (self.machine.cores() as f64 * BUSY_LOAD).max(BUSY_LOAD);
        let named = |which: &dyn Fn(&RowGroup) -> bool| {
            let groups = self.groups.iter().filter(|group| which(group));
            groups.map(|group| group.name.as_str()).collect::<Vec<_>>()
        };
        let (busy, stolen) =
            (named(&|group| group.load() > most), named(&|group| group.stolen > Some(MAX_STOLEN_SHARE)));
        let [known, close] = [NOISY_REACH, CLOSE_RATIO].map(|part| part * 100.0);
        let mut text = match noisy {
            0 => format!(
                "Quiet: the medians of all {all} figures are known to {known:.0} %, and another run here has the same within \
                 {close:.0} %.\n"
            ),
            _ => format!(
                "**Too noisy** for {noisy} of {all} figures, which are marked with ~: their turns lie so far apart that another run \
                 may have medians that are more than {close:.0} % away. Those of the others are known to {known:.0} %.\n"
            ),
        };
        if !busy.is_empty() {
            let _ = writeln!(
                text,
                "**Busy:** when these groups began, the last minute's load was above {most}, which may be what the group \
                 before left, or other work: {}.",
                busy.join(", ")
            );
        }
        if !stolen.is_empty() {
            let _ = writeln!(
                text,
                "**Stolen:** during these groups, other machines on the same hardware took more than {:.0} % of the processors' \
                 time: {}.",
                MAX_STOLEN_SHARE * 100.0,
                stolen.join(", ")
            );
        }
        text
    }
}

impl RowGroup {
    /// All that there is to say of it.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.about);
        let stolen = self.stolen.map(|part| format!(", of which other machines took {:.1} %", part * 100.0));
        let (began, load, stolen) = (&self.began, &self.load, stolen.unwrap_or_default());
        let _ = writeln!(text, "\nBegun {began} at a load of {load}; took {:.0} s{stolen}.", self.took);
        text += &self.tables();
        if !self.missed.is_empty() {
            text += "\nNot measured:\n\n";
            self.missed.iter().for_each(|missed| {
                let _ = writeln!(text, "- {}: {}", missed.name, missed.why);
            });
        }
        let steps = self.steps.iter().filter(|step| step.seconds >= 1.0);
        let steps: Vec<_> = steps.map(|step| format!("{} {:.0}", step.name, step.seconds)).collect();
        if !steps.is_empty() {
            let _ = write!(text, "\nSeconds, with preparations: {}.\n", steps.join("; "));
        }
        text
    }

    /// How closely each of its figures is known.
    fn reaches(&self) -> Vec<f64> {
        let pairs = self.pairs.iter().map(Comparison::reach);
        let figures = self.figures.iter().map(|figure| figure.value.reach());
        let points = self.growths.iter().flat_map(|growth| &growth.points).map(|(_, value)| value.reach());
        pairs.chain(figures).chain(points).collect()
    }

    /// All tables of its rows.
    fn tables(&self) -> String {
        let mut text = String::new();
        if self.contest {
            let _ = write!(
                text,
                "{}\n<details><summary>Beside each of them, with the least and the most</summary>\n",
                self.matrix()
            );
        }
        if !self.pairs.is_empty() {
            let wanted = self.pairs.iter().any(|pair| pair.wanted.is_some());
            let head = ["what", "beside", "it", "bdnfs", "ratio", "wanted"];
            let columns = if wanted { 6 } else { 5 };
            text.push('\n');
            text += &table(&head[..columns], self.pairs.iter().map(|pair| pair.cells()[..columns].to_vec()));
        }
        if self.contest {
            text += "\n</details>\n";
        }
        if !self.figures.is_empty() {
            text.push('\n');
            let head = ["bdnfs alone", "median (least to most)", "limit"];
            text += &table(&head, self.figures.iter().map(Figure::cells));
        }
        self.growths.iter().for_each(|growth| text += &growth.markdown());
        text
    }
}

impl Comparison {
    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.against.clone(),
            spread(&self.baseline, self.unit),
            spread(&self.bdnfs, self.unit),
            format!("{}{:.3}", mark(self.reach()), self.ratio()),
            self.wanted.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
        ]
    }
}

impl Figure {
    fn cells(&self) -> Vec<String> {
        let limit = self.limit.map(|limit| quantity(limit, self.unit)).unwrap_or_default();
        let value = format!("{}{}", mark(self.value.reach()), spread(&self.value, self.unit));
        vec![self.name.clone(), value, limit]
    }
}

impl Growth {
    fn markdown(&self) -> String {
        let head = self.points.iter().map(|(at, _)| amount(*at, &self.along));
        let head: Vec<_> = [self.along.clone()].into_iter().chain(head).collect();
        let cell = |value: &Samples| format!("{}{}", mark(value.reach()), number(value.median()));
        let name = format!("{}, {}", self.name, self.unit.name());
        let row = [name].into_iter().chain(self.points.iter().map(|(_, value)| cell(value))).collect();
        format!("\n{}", table(&head, [row]))
    }
}

/// A table with a line for each of `rows`.
pub(super) fn table(head: &[impl AsRef<str>], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let head: Vec<_> = head.iter().map(AsRef::as_ref).collect();
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    rows.into_iter().for_each(|row| text += &format!("| {} |\n", row.join(" | ")));
    text
}

/// What stands before a figure whose median is known no closer than that.
pub(super) fn mark(reach: f64) -> &'static str {
    if reach > NOISY_REACH { "~" } else { "" }
}

fn spread(samples: &Samples, unit: MeasureUnit) -> String {
    format!("{} ({} to {})", quantity(samples.median(), unit), number(samples.min()), number(samples.max()))
}

/// A figure with its unit.
pub fn quantity(value: f64, unit: MeasureUnit) -> String {
    format!("{} {}", number(value), unit.name())
}

/// How much there is of what grows: bytes by their own units, anything else as a number.
pub(super) fn amount(value: f64, along: &str) -> String {
    const UNITS: [(&str, f64); 3] =
        [("GiB", (1u64 << 30) as f64), ("MiB", (1u64 << 20) as f64), ("KiB", (1u64 << 10) as f64)];
    let unit = UNITS.iter().find(|unit| along.contains("bytes") && value >= unit.1);
    match unit {
        Some((name, size)) => format!("{} {name}", value / size),
        None if value < 100.0 => value.to_string(),
        None => number(value),
    }
}

/// Three digits that count, and thousands set apart.
fn number(value: f64) -> String {
    if value.abs() < 100.0 {
        let places = if value.abs() < 1.0 {
            3
        } else if value.abs() < 10.0 {
            2
        } else {
            1
        };
        return format!("{value:.places$}");
    }
    let digits = format!("{value:.0}");
    let first = (digits.len() - 1) % 3 + 1;
    let mut text = digits[..first].to_owned();
    for group in digits.as_bytes()[first..].chunks(3) {
        text.push(',');
        text.extend(group.iter().map(|digit| char::from(*digit)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_formatted_is_readable() {
        for (value, text) in
            [(0.12345, "0.123"), (7.894, "7.89"), (42.0, "42.0"), (999.6, "1,000"), (1234567.0, "1,234,567")]
        {
            assert_eq!(number(value), text);
        }
        assert_eq!(amount(4096.0, "bytes of a file"), "4 KiB");
        assert_eq!(amount(64.0, "readers"), "64");
        assert_eq!(amount(1000.0, "files"), "1,000");
    }
}
