//! Contest: the same tasks, done by several. Who reads it wants to know whom to pick for what, and not to hold rows against each
//! other.

use std::fmt::Write;

use super::markdown::{mark, quantity};
use super::{Group, Pair};
use crate::samples::Samples;

impl Group {
    /// Who did what how well: a row for each who took part, bdnfs first, a column for each task; and how bdnfs did beside the best
    /// of the others. The best is bold, and whoever can't be told from it.
    pub(super) fn matrix(&self) -> String {
        let mut tasks: Vec<&Pair> = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        for pair in &self.pairs {
            if !tasks.iter().any(|task| task.name == pair.name) {
                tasks.push(pair);
            }
            if !others.contains(&pair.against.as_str()) {
                others.push(&pair.against);
            }
        }
        let mut text = String::from("\n| |");
        // Writing to a string can't fail, here and below.
        tasks.iter().for_each(|task| {
            let _ = write!(text, " {} |", task.name);
        });
        let _ = write!(text, "\n|---|{}\n| **bdnfs** |", "---|".repeat(tasks.len()));
        tasks.iter().for_each(|task| text += &self.cell(task, &task.bdnfs));
        for who in others {
            let _ = write!(text, "\n| {who} |");
            tasks.iter().for_each(|task| {
                let pair = self.of(task).find(|pair| pair.against == who);
                text += &pair.map_or(" |".to_owned(), |pair| self.cell(task, &pair.baseline));
            });
        }
        text += "\n| bdnfs beside the best of the others |";
        tasks.iter().for_each(|task| {
            let best = self.of(task).min_by(|one, other| one.ratio().total_cmp(&other.ratio()));
            text += &best.map_or(" |".to_owned(), |pair| {
                format!(" {}{:.2} of {} |", mark(pair.reach()), pair.ratio(), pair.against)
            });
        });
        text + "\n"
    }

    /// How all others did what `task` is.
    fn of<'a>(&'a self, task: &'a Pair) -> impl Iterator<Item = &'a Pair> {
        self.pairs.iter().filter(|pair| pair.name == task.name)
    }

    fn cell(&self, task: &Pair, one: &Samples) -> String {
        let all = || self.of(task).map(|pair| &pair.baseline).chain([&task.bdnfs]);
        let worse = |this: &Samples, that: &Samples| {
            let ([low, high], [least, most]) = (this.interval(), that.interval());
            if task.unit.is_cost() { low > most } else { high < least }
        };
        let text = format!("{}{}", mark(one.reach()), quantity(one.median(), task.unit));
        if all().any(|other| worse(one, other)) { format!(" {text} |") } else { format!(" **{text}** |") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Report, Rows};
    use super::*;
    use crate::lab::Sizes;
    use crate::machine::Machine;
    use crate::unit::Unit;

    #[test]
    fn contest_table_marks_the_best() {
        let side = |turns: [f64; 3]| turns.into_iter().collect::<Samples>();
        let mut report = Report::new(Machine::default(), Sizes::QUICK);
        report.group("key", "group", "about it");
        report.contest();
        let bdnfs = [1.00, 1.02, 1.04];
        let pair = |who: &str, turns| Pair::new("task", Unit::Seconds, who, [side(turns), side(bdnfs)]);
        let pairs = vec![pair("one", [0.95, 1.0, 1.01]), pair("two", [2.0, 3.0, 4.0])];
        report.measure("rows", || Ok(Rows { pairs, ..Rows::default() })).unwrap();
        let table = "| | task |\n|---|---|\n| **bdnfs** | **1.02 s** |\n| one | **1.00 s** |\n| two | ~3.00 s |\n\
            | bdnfs beside the best of the others | 0.98 of one |\n";
        let text = report.find("key").unwrap().matrix();
        assert!(text.ends_with(table), "{text}");
    }
}
