//! The report for people: a table for each group.

use std::fmt::Write;

use super::{BUSY, CLOSE, Figure, Group, Growth, NOISY, Pair, Prototype, Report, STOLEN};
use crate::samples::Samples;
use crate::unit::Unit;

impl Report {
    pub(super) fn markdown(&self, name: &str) -> String {
        let mut text = format!("# Benchmark {name}\n\n{}\n\n", self.machine());
        text += "A ratio above 1 says that bdnfs was better, whatever the unit. All sides took turns.\n\n";
        text += &self.noise();
        for group in &self.groups {
            // Writing to a string can't fail, here and below.
            let _ = write!(text, "\n## {}\n\n{}", group.name, group.text(name));
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
        let reaches: Vec<f64> = self.groups.iter().flat_map(Group::reaches).collect();
        let (all, noisy) = (reaches.len(), reaches.iter().filter(|reach| **reach > NOISY).count());
        let most = (self.machine.cores() as f64 * BUSY).max(BUSY);
        let named = |which: &dyn Fn(&Group) -> bool| {
            let groups = self.groups.iter().filter(|group| which(group));
            groups.map(|group| group.name.as_str()).collect::<Vec<_>>()
        };
        let (busy, stolen) =
            (named(&|group| group.load() > most), named(&|group| group.stolen > Some(STOLEN)));
        let [known, close] = [NOISY, CLOSE].map(|part| part * 100.0);
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
                STOLEN * 100.0,
                stolen.join(", ")
            );
        }
        text
    }
}

impl Group {
    /// All that there is to say of it, with its plots, whose files' names begin with `stem`.
    pub fn text(&self, stem: &str) -> String {
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
        for (plot, _) in self.plots() {
            let _ = write!(text, "\n![{}]({stem}-{plot}.svg)\n", self.name);
        }
        text
    }

    /// How closely each of its figures is known.
    fn reaches(&self) -> Vec<f64> {
        let pairs = self.pairs.iter().map(Pair::reach);
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
            let prototypes = self.pairs.iter().any(|pair| !pair.prototypes.is_empty());
            let wanted = self.pairs.iter().any(|pair| pair.wanted.is_some());
            let columns = [("wanted", wanted), ("prototypes, kernel 6.18", prototypes)];
            text += "\n| what | beside | it | bdnfs | ratio |";
            columns.iter().filter(|column| column.1).for_each(|column| {
                let _ = write!(text, " {} |", column.0);
            });
            text += "\n|---|---|---|---|---|";
            text += &"---|".repeat(columns.iter().filter(|column| column.1).count());
            text += "\n";
            self.pairs.iter().for_each(|pair| text += &pair.markdown(wanted, prototypes));
        }
        if self.contest {
            text += "\n</details>\n";
        }
        if !self.figures.is_empty() {
            text += "\n| bdnfs alone | median (least to most) | limit |\n|---|---|---|\n";
            self.figures.iter().for_each(|figure| text += &figure.markdown());
        }
        self.growths.iter().for_each(|growth| text += &growth.markdown());
        text
    }
}

impl Pair {
    fn markdown(&self, wanted: bool, prototypes: bool) -> String {
        let noisy = mark(self.reach());
        let mut text = format!(
            "| {} | {} | {} | {} | {noisy}{:.3} |",
            self.name,
            self.against,
            spread(&self.baseline, self.unit),
            spread(&self.bdnfs, self.unit),
            self.ratio(),
        );
        if wanted {
            let _ = write!(text, " {} |", self.wanted.map(|ratio| format!("{ratio:.2}")).unwrap_or_default());
        }
        if prototypes {
            let prototype = |one: &Prototype| format!("{:.3} ({})", one.reached / one.native, one.kind);
            let prototypes: Vec<_> = self.prototypes.iter().map(prototype).collect();
            let _ = write!(text, " {} |", prototypes.join(", "));
        }
        text + "\n"
    }
}

impl Figure {
    fn markdown(&self) -> String {
        let limit = self.limit.map(|limit| quantity(limit, self.unit)).unwrap_or_default();
        format!(
            "| {} | {}{} | {limit} |\n",
            self.name,
            mark(self.value.reach()),
            spread(&self.value, self.unit)
        )
    }
}

impl Growth {
    fn markdown(&self) -> String {
        let mut text = format!("\n| {} |", self.along);
        self.points.iter().for_each(|(at, _)| {
            let _ = write!(text, " {} |", amount(*at, &self.along));
        });
        let _ = write!(
            text,
            "\n|---|{}\n| {}, {} |",
            "---|".repeat(self.points.len()),
            self.name,
            self.unit.name()
        );
        self.points.iter().for_each(|(_, value)| {
            let _ = write!(text, " {}{} |", mark(value.reach()), number(value.median()));
        });
        text + "\n"
    }
}

/// What stands before a figure whose median is known no closer than that.
pub(super) fn mark(reach: f64) -> &'static str {
    if reach > NOISY { "~" } else { "" }
}

fn spread(samples: &Samples, unit: Unit) -> String {
    format!("{} ({} to {})", quantity(samples.median(), unit), number(samples.min()), number(samples.max()))
}

/// A figure with its unit.
pub fn quantity(value: f64, unit: Unit) -> String {
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
