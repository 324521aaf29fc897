//! Samples: what repeated measurements gave.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::interrupt;

/// Measurements of one thing, in the order in which they were taken.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(from = "Told", into = "Told")]
pub struct Samples(Vec<f64>);

/// How samples appear in JSON. What follows from the samples is told for readers, and not read again.
#[derive(Deserialize, Serialize)]
struct Told {
    #[serde(skip_deserializing)]
    median: f64,
    #[serde(skip_deserializing)]
    min: f64,
    #[serde(skip_deserializing)]
    max: f64,
    samples: Vec<f64>,
}

impl From<Told> for Samples {
    fn from(told: Told) -> Self {
        Self(told.samples)
    }
}

impl From<Samples> for Told {
    fn from(samples: Samples) -> Self {
        Self { median: samples.median(), min: samples.min(), max: samples.max(), samples: samples.0 }
    }
}

impl Samples {
    /// Adds a measurement.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The middle one; of an even number, the mean of the middle two; of none, NaN.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[len / 2],
            len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
        }
    }

    /// How far apart the middle half of them lies, as a part of the median: what says how well the median is known. A single
    /// odd one of five doesn't count, and a single one alone says nothing.
    pub fn spread(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let cut = sorted.len() / 4;
        match &sorted[cut..sorted.len() - cut] {
            [first, .., last] if first == last => 0.0,
            [first, .., last] => (last - first) / self.median(),
            _ => f64::INFINITY,
        }
    }

    /// What each of them is beside the one of `others` that was taken in the same turn.
    pub fn beside(&self, others: &Self) -> Self {
        self.0.iter().zip(&others.0).map(|(one, other)| one / other).collect()
    }

    /// What of `amount` was done in a second, where these are the seconds that it took.
    pub fn rates(&self, amount: f64) -> Self {
        self.0.iter().map(|seconds| amount / seconds).collect()
    }

    /// The least.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The greatest.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What bdnfs is compared with.
    Baseline,
    /// bdnfs.
    Bdnfs,
}

/// Measures both sides `runs` times in turn, so that what changes on the machine meanwhile touches both alike.
///
/// # Errors
/// The first failure, and interruption.
pub fn in_turn(runs: usize, mut measure: impl FnMut(Side) -> Result<f64>) -> Result<[Samples; 2]> {
    let mut both = [Samples::default(), Samples::default()];
    for _ in 0..runs {
        for (samples, side) in both.iter_mut().zip([Side::Baseline, Side::Bdnfs]) {
            interrupt::check()?;
            samples.push(measure(side)?);
        }
    }
    Ok(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let median = |samples: &[f64]| samples.iter().copied().collect::<Samples>().median();
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_spread_leaves_out_one_odd_sample_of_five() {
        let spread = |samples: &[f64]| samples.iter().copied().collect::<Samples>().spread();
        assert_eq!(spread(&[10.0, 11.0, 9.0, 10.0, 99.0]), 0.1);
        assert_eq!(spread(&[8.0, 10.0, 12.0]), 0.4);
        assert_eq!(spread(&[8.0]), f64::INFINITY);
        assert_eq!(spread(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn samples_survive_json() {
        let text = serde_json::to_string(&[2.0, 4.0].into_iter().collect::<Samples>()).unwrap();
        assert_eq!(text, r#"{"median":3.0,"min":2.0,"max":4.0,"samples":[2.0,4.0]}"#);
        assert_eq!(serde_json::from_str::<Samples>(&text).unwrap().max(), 4.0);
    }

    #[test]
    fn the_sides_take_turns() {
        let mut turns = Vec::new();
        in_turn(2, |side| {
            turns.push(side);
            Ok(0.0)
        })
        .unwrap();
        assert_eq!(turns, [Side::Baseline, Side::Bdnfs, Side::Baseline, Side::Bdnfs]);
    }
}
