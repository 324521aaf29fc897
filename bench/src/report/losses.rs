//! Losses: rows in which bdnfs is worse than its competitor, or misses the wanted ratio. The published page lists all of them,
//! and none by hand.

use super::markdown::{mark, quantity, table};
use super::{BenchReport, Comparison, RowGroup};

/// From here on a ratio counts as a loss: ratios closer to 1 are within the noise of any run.
const EVEN_RATIO: f64 = 0.95;

impl BenchReport {
    /// What is slower than what stands beside it, in a table, the worst first; in another what is faster, but less than is wanted;
    /// and the limits that are passed.
    pub fn losses(&self) -> String {
        let pairs = self.groups.iter().flat_map(|group| group.pairs.iter().map(move |pair| (group, pair)));
        let (slower, others): (Vec<_>, Vec<_>) = pairs.partition(|(_, pair)| pair.ratio() < EVEN_RATIO);
        let short: Vec<_> = others.into_iter().filter(|(_, pair)| Some(pair.ratio()) < pair.wanted).collect();
        let mut text = match slower.len() {
            0 => "In no row was bdnfs worse.\n".to_owned(),
            _ => ranked(slower),
        };
        if !short.is_empty() {
            text += "\nFaster, but not by as much as is wanted:\n\n";
            text += &ranked(short);
        }
        let over = self.groups.iter().flat_map(|group| {
            let over =
                group.figures.iter().filter(|one| one.limit.is_some_and(|most| one.value.median() > most));
            over.map(|one| {
                let [is, most] = [one.value.median(), one.limit.unwrap_or_default()]
                    .map(|value| quantity(value, one.unit));
                format!("- {}, {}: {}{is}, {most} wanted\n", group.name, one.name, mark(one.value.reach()))
            })
        });
        let over: Vec<_> = over.collect();
        if !over.is_empty() {
            text += "\nOver their limits:\n\n";
            text += &over.concat();
        }
        text
    }
}

fn ranked(mut rows: Vec<(&RowGroup, &Comparison)>) -> String {
    rows.sort_by(|(_, one), (_, other)| one.ratio().total_cmp(&other.ratio()));
    let cells = |(group, pair): (&RowGroup, &Comparison)| {
        let ratio = format!("{}{:.3}", mark(pair.reach()), pair.ratio());
        let wanted = pair.wanted.map(|wanted| format!("{wanted:.2}")).unwrap_or_default();
        vec![group.name.clone(), pair.name.clone(), pair.against.clone(), ratio, wanted]
    };
    table(&["where", "what", "beside", "ratio", "wanted"], rows.into_iter().map(cells))
}

#[cfg(test)]
mod tests {
    use super::super::{Comparison, Figure, Rows};
    use super::*;
    use crate::lab::Sizes;
    use crate::machine::HostInfo;
    use crate::samples::Samples;
    use crate::unit::MeasureUnit;

    #[test]
    fn losses_listed_begin_with_the_worst() {
        let mut report = BenchReport::new(HostInfo::default(), Sizes::QUICK);
        let side = |rate: f64| [rate; 3].into_iter().collect::<Samples>();
        let pair = |name: &str, rate| {
            Comparison::new(name, MeasureUnit::Megabytes, "ext4", [side(100.0), side(rate)])
        };
        report.group("key", "Group", "about it");
        assert_eq!(report.losses(), "In no row was bdnfs worse.\n");
        let pairs = vec![
            pair("even", 96.0),
            pair("slow", 90.0),
            pair("slower", 40.0),
            pair("not enough", 300.0).with_wanted(10.0),
            pair("allowed", 96.0).with_wanted(0.85),
        ];
        let figure =
            |limit| Figure { limit: Some(limit), ..Figure::new("memory", MeasureUnit::Mebibytes, side(7.0)) };
        let figures = vec![figure(8.0), figure(6.0)];
        report.measure("rows", || Ok(Rows { pairs, figures, ..Rows::default() })).unwrap();
        let table = "| Group | slower | ext4 | 0.400 |  |\n| Group | slow | ext4 | 0.900 |  |\n\nFaster, but not by as much \
            as is wanted:\n\n| where | what | beside | ratio | wanted |\n|---|---|---|---|---|\n\
            | Group | not enough | ext4 | 3.000 | 10.00 |\n\nOver their limits:\n\n- Group, memory: 7.00 MiB, 6.00 MiB wanted\n";
        assert!(report.losses().ends_with(table), "{}", report.losses());
    }
}
