//! Contest: the same tasks, done by several. Its reader wants to choose one for a task, and not to compare
//! rows.

use super::markdown::{mark, quantity, table};
use super::{Comparison, RowGroup};
use crate::samples::Samples;

impl RowGroup {
    /// The results: a row for each competitor, bdnfs first, a column for each task; and how bdnfs did beside
    /// the best of the others. The best is bold, and every competitor that can't be distinguished from it.
    pub(super) fn matrix(&self) -> String {
        let mut tasks: Vec<&Comparison> = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        for pair in &self.pairs {
            if !tasks.iter().any(|task| task.name == pair.name) {
                tasks.push(pair);
            }
            if !others.contains(&pair.against.as_str()) {
                others.push(&pair.against);
            }
        }
        let head: Vec<_> = [""].into_iter().chain(tasks.iter().map(|task| task.name.as_str())).collect();
        let row = |who: &str, cell: &dyn Fn(&Comparison) -> String| -> Vec<String> {
            [who.to_owned()].into_iter().chain(tasks.iter().map(|task| cell(task))).collect()
        };
        let mut rows = vec![row("**bdnfs**", &|task| self.cell(task, &task.bdnfs))];
        for who in others {
            rows.push(row(who, &|task| {
                let pair = self.of(task).find(|pair| pair.against == who);
                pair.map(|pair| self.cell(task, &pair.baseline)).unwrap_or_default()
            }));
        }
        rows.push(row("bdnfs beside the best of the others", &|task| {
            let best = self.of(task).min_by(|one, other| one.ratio().total_cmp(&other.ratio()));
            let tell =
                |pair: &Comparison| format!("{}{:.2} of {}", mark(pair.reach()), pair.ratio(), pair.against);
            best.map(tell).unwrap_or_default()
        }));
        format!("\n{}", table(&head, rows))
    }

    /// How all others did what `task` is.
    fn of<'a>(&'a self, task: &'a Comparison) -> impl Iterator<Item = &'a Comparison> {
        self.pairs.iter().filter(|pair| pair.name == task.name)
    }

    fn cell(&self, task: &Comparison, one: &Samples) -> String {
        let all = || self.of(task).map(|pair| &pair.baseline).chain([&task.bdnfs]);
        let worse = |this: &Samples, that: &Samples| {
            let ([low, high], [least, most]) = (this.interval(), that.interval());
            if task.unit.is_cost() { low > most } else { high < least }
        };
        let text = format!("{}{}", mark(one.reach()), quantity(one.median(), task.unit));
        if all().any(|other| worse(one, other)) { text } else { format!("**{text}**") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BenchReport, Rows};
    use super::*;
    use crate::lab::Sizes;
    use crate::machine::HostInfo;
    use crate::unit::MeasureUnit;

    #[test]
    fn contest_table_marks_the_best() {
        let side = |turns: [f64; 3]| turns.into_iter().collect::<Samples>();
        let mut report = BenchReport::new(HostInfo::default(), Sizes::QUICK);
        report.group("key", "group", "about it");
        report.contest();
        let bdnfs = [1.00, 1.02, 1.04];
        let pair =
            |who: &str, turns| Comparison::new("task", MeasureUnit::Seconds, who, [side(turns), side(bdnfs)]);
        let pairs = vec![pair("one", [0.95, 1.0, 1.01]), pair("two", [2.0, 3.0, 4.0])];
        report.measure("rows", || Ok(Rows { pairs, ..Rows::default() })).unwrap();
        let table = "|  | task |\n|---|---|\n| **bdnfs** | **1.02 s** |\n| one | **1.00 s** |\n| two | ~3.00 s |\n\
            | bdnfs beside the best of the others | 0.98 of one |\n";
        let text = report.find("key").unwrap().matrix();
        assert!(text.ends_with(table), "{text}");
    }
}
