//! Samples: what repeated measurements gave.

use anyhow::Result;
use serde::Serialize;

use crate::interrupt;

/// Measurements of one thing, in the order in which they were taken.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(into = "Told")]
pub struct Samples(Vec<f64>);

/// How samples appear in JSON.
#[derive(Serialize)]
struct Told {
    median: f64,
    min: f64,
    max: f64,
    samples: Vec<f64>,
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
