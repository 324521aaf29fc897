//! Agreement: whether two runs of one build say the same. Nothing was changed between them, so what differs is noise, and a
//! report that marks it has said so.

use std::fmt;

use crate::report::{CLOSE, Group, NOISY, Pair, Report};
use crate::samples::Samples;

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Its medians are the same within a tenth.
    Agree,
    /// The medians are not, but both sides moved alike: their ratio is.
    Ratio,
    /// Neither is, and a report marks the row.
    Noisy,
    /// Neither is, and both reports claim to know it closer than that.
    Moved,
}

/// What two reports of one build say of the rows that both have.
#[derive(Debug, Default)]
pub struct Agreement {
    rows: Vec<(Verdict, String)>,
    /// What only one of them has.
    alone: Vec<String>,
}

impl Agreement {
    /// Of `one` and `other`.
    pub fn new(one: &Report, other: &Report) -> Self {
        let mut agreement = Self::default();
        for group in &one.groups {
            match other.find(&group.key) {
                Some(same) if same.is_like(group) => agreement.group(group, same),
                Some(_) => agreement.alone.push(format!("{}: of another size", group.name)),
                None => agreement.alone.push(format!("{}: not in the second report", group.name)),
            }
        }
        agreement
    }

    /// How many rows both have.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// How many of them differ, and no report tells.
    pub fn untold(&self) -> usize {
        self.count(Verdict::Moved)
    }

    fn count(&self, of: Verdict) -> usize {
        self.rows.iter().filter(|(verdict, _)| *verdict == of).count()
    }

    fn group(&mut self, one: &Group, other: &Group) {
        let in_group = |name: &str| format!("{}: {name}", one.name);
        for pair in &one.pairs {
            let name = in_group(&format!("{}, beside {}", pair.name, pair.against));
            let same = |other: &&Pair| other.name == pair.name && other.against == pair.against;
            self.add(name, other.pairs.iter().find(same), |name, other| hold_pair(name, pair, other));
        }
        for figure in &one.figures {
            let same = other.figures.iter().find(|other| other.name == figure.name);
            self.add(in_group(&figure.name), same, |name, other| hold(name, &figure.value, &other.value));
        }
        for growth in &one.growths {
            let same = other.growths.iter().find(|other| {
                (&other.name, &other.along, other.unit) == (&growth.name, &growth.along, growth.unit)
            });
            for (at, value) in &growth.points {
                let point = same.and_then(|same| same.points.iter().find(|(other, _)| other == at));
                let name =
                    in_group(&format!("{}, {at} {}, {}", growth.name, growth.along, growth.unit.name()));
                self.add(name, point, |name, (_, other)| hold(name, value, other));
            }
        }
    }

    fn add<T>(&mut self, name: String, other: Option<&T>, hold: impl FnOnce(&str, &T) -> (Verdict, String)) {
        match other {
            Some(other) => self.rows.push(hold(&name, other)),
            None => self.alone.push(format!("{name}: not in the second report")),
        }
    }
}

/// How far `other` lies from `one`, as a part of it. What is nothing in both has not moved.
fn moved(one: f64, other: f64) -> f64 {
    if one == other { 0.0 } else { other / one - 1.0 }
}

/// Whether so much of it is a tenth at the most, whichever of the two was first.
fn is_close(moved: f64) -> bool {
    (1.0 / (1.0 + CLOSE)..=1.0 + CLOSE).contains(&(1.0 + moved))
}

fn hold(name: &str, one: &Samples, other: &Samples) -> (Verdict, String) {
    let moved = moved(one.median(), other.median());
    let verdict = match one.reach().max(other.reach()) {
        _ if is_close(moved) => Verdict::Agree,
        reach if reach > NOISY => Verdict::Noisy,
        _ => Verdict::Moved,
    };
    (verdict, format!("{name}: {:+.1} %", moved * 100.0))
}

fn hold_pair(name: &str, one: &Pair, other: &Pair) -> (Verdict, String) {
    let it = moved(one.baseline.median(), other.baseline.median());
    let bdnfs = moved(one.bdnfs.median(), other.bdnfs.median());
    let ratio = moved(one.ratio(), other.ratio());
    let verdict = match one.reach().max(other.reach()) {
        _ if is_close(it) && is_close(bdnfs) => Verdict::Agree,
        _ if is_close(ratio) => Verdict::Ratio,
        reach if reach > NOISY => Verdict::Noisy,
        _ => Verdict::Moved,
    };
    let parts = [it, bdnfs, ratio].map(|moved| format!("{:+.1} %", moved * 100.0));
    (verdict, format!("{name}: it {}, bdnfs {}, ratio {}", parts[0], parts[1], parts[2]))
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Agree => "agree",
            Self::Ratio => "agree in the ratio",
            Self::Noisy => "noisy",
            Self::Moved => "moved",
        }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows.iter().try_for_each(|(verdict, text)| writeln!(f, "  {}: {text}", verdict.word()))?;
        self.alone.iter().try_for_each(|text| writeln!(f, "  not compared: {text}"))?;
        let [agree, ratio, noisy, moved] =
            [Verdict::Agree, Verdict::Ratio, Verdict::Noisy, Verdict::Moved].map(|one| self.count(one));
        write!(f, "One build, {} rows: ", self.rows())?;
        if agree == self.rows() {
            return writeln!(f, "all medians agree within 10 %.");
        }
        write!(
            f,
            "of {agree} the medians agree within 10 %, of {ratio} more the ratio does; for {noisy} this machine "
        )?;
        writeln!(
            f,
            "is too noisy, and a report marks them with ~; {moved} moved, and neither report says so."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Sizes;
    use crate::machine::Machine;
    use crate::report::{Figure, Growth, Rows};
    use crate::unit::Unit;

    /// A report whose one comparison has these sides, and whose figure and growth are `figure`.
    fn report(baseline: &[f64], bdnfs: &[f64], figure: f64) -> Report {
        let mut report = Report::new(Machine::default(), Sizes::QUICK);
        report.group("key", "group", "about it");
        let samples = |of: &[f64]| of.iter().copied().collect::<Samples>();
        let pair = Pair::new("row", Unit::Megabytes, "ext4", [samples(baseline), samples(bdnfs)]);
        let figures = vec![Figure::new("figure", Unit::Seconds, samples(&[figure; 3]))];
        let points = vec![(4.0, samples(&[figure; 3]))];
        let (name, along) = ("growth".to_owned(), "files".to_owned());
        let growths = vec![Growth { name, unit: Unit::Seconds, along, points }];
        report.measure("rows", || Ok(Rows { pairs: vec![pair], figures, growths })).unwrap();
        report
    }

    #[test]
    fn one_build_agrees_or_a_report_says_why_not() {
        let one = report(&[100.0, 101.0, 102.0], &[50.0, 51.0, 52.0], 1.0);
        let held = |other: &Report| {
            let agreement = Agreement::new(&one, other);
            assert_eq!(agreement.rows(), 3);
            (agreement.rows[0].0, agreement.rows[1].0, agreement.to_string())
        };
        let (pair, figure, text) = held(&report(&[105.0, 106.0, 107.0], &[48.0, 48.5, 49.0], 1.09));
        assert_eq!((pair, figure), (Verdict::Agree, Verdict::Agree));
        assert!(text.ends_with("\nOne build, 3 rows: all medians agree within 10 %.\n"), "{text}");
        assert!(
            text.contains("  agree: group: row, beside ext4: it +5.0 %, bdnfs -4.9 %, ratio -9.4 %\n"),
            "{text}"
        );
        // A machine that is slower today is slower for both.
        let (pair, figure, _) = held(&report(&[50.0, 50.5, 51.0], &[25.0, 25.5, 26.0], 0.5));
        assert_eq!((pair, figure), (Verdict::Ratio, Verdict::Moved));
        let (pair, _, text) = held(&report(&[100.0, 101.0, 102.0], &[30.0, 40.0, 50.0], 1.0));
        assert_eq!(pair, Verdict::Noisy);
        assert!(
            text.contains("of 2 the medians agree within 10 %, of 0 more the ratio does; for 1 this"),
            "{text}"
        );
        assert_eq!(Agreement::new(&one, &report(&[100.0; 3], &[40.0; 3], 1.0)).untold(), 1);
    }

    #[test]
    fn what_only_one_report_has_is_told() {
        let one = report(&[1.0], &[1.0], 1.0);
        let text = Agreement::new(&one, &Report::new(Machine::default(), Sizes::QUICK)).to_string();
        assert!(text.contains("not compared: group: not in the second report"), "{text}");
    }
}
