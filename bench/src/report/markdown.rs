//! The report for people: a table for each group.

use std::fmt::Write;

use super::{Figure, Group, Pair, Prototype, Report};
use crate::samples::Samples;

impl Report {
    pub(super) fn markdown(&self, name: &str) -> String {
        let size =
            if self.quick { ", small sizes (--quick): see that it runs, and trust no figure" } else { "" };
        let mut text = format!("# Benchmark {name}{size}\n\n{}\n", self.machine.markdown());
        for group in &self.groups {
            text += &group.markdown();
        }
        text
    }
}

impl Group {
    fn markdown(&self) -> String {
        let mut text = format!("\n## {}\n\n{}\n", self.name, self.about);
        if !self.pairs.is_empty() {
            text += "\n| what | against | it | bdnfs | ratio | wanted | prototypes, kernel 6.18 |\n|---|---|---|---|---|---|---|\n";
            self.pairs.iter().for_each(|pair| text += &pair.markdown());
        }
        if !self.figures.is_empty() {
            text += "\n| what | median (least to most) | limit |\n|---|---|---|\n";
            self.figures.iter().for_each(|figure| text += &figure.markdown());
        }
        if !self.missed.is_empty() {
            text += "\nNot measured:\n\n";
            self.missed.iter().for_each(|missed| {
                // Writing to a string can't fail.
                let _ = writeln!(text, "- {}: {}", missed.name, missed.why);
            });
        }
        text
    }
}

impl Pair {
    fn markdown(&self) -> String {
        let wanted = self.wanted.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let prototype = |one: &Prototype| format!("{:.3} ({})", one.reached / one.native, one.kind);
        let prototypes = self.prototypes.iter().map(prototype).collect::<Vec<_>>().join(", ");
        format!(
            "| {} | {} | {} | {} | {:.3} | {wanted} | {prototypes} |\n",
            self.name,
            self.against,
            spread(&self.baseline, self.unit),
            spread(&self.bdnfs, self.unit),
            self.ratio(),
        )
    }
}

impl Figure {
    fn markdown(&self) -> String {
        let limit = self.limit.map(|limit| quantity(limit, self.unit)).unwrap_or_default();
        format!("| {} | {} | {limit} |\n", self.name, spread(&self.value, self.unit))
    }
}

fn spread(samples: &Samples, unit: &str) -> String {
    format!("{} ({} to {})", quantity(samples.median(), unit), number(samples.min()), number(samples.max()))
}

pub(super) fn quantity(value: f64, unit: &str) -> String {
    format!("{} {unit}", number(value))
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
    fn numbers_can_be_read() {
        for (value, text) in
            [(0.12345, "0.123"), (7.894, "7.89"), (42.0, "42.0"), (999.6, "1,000"), (1234567.0, "1,234,567")]
        {
            assert_eq!(number(value), text);
        }
    }
}
