//! Samples: the results of repeated measurements, their median and how well it is known.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::interrupt;

/// The least confidence, from five samples on, with which the true median lies in the [`Samples::interval`].
const CONFIDENCE: f64 = 0.9;

/// Measurements of one thing, in the order in which they were taken.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(from = "SampleSummary", into = "SampleSummary")]
pub struct Samples(Vec<f64>);

/// How samples appear in JSON. Derived values are for readers, and not read again.
#[derive(Deserialize, Serialize)]
struct SampleSummary {
    #[serde(skip_deserializing)]
    median: f64,
    #[serde(skip_deserializing)]
    min: f64,
    #[serde(skip_deserializing)]
    max: f64,
    samples: Vec<f64>,
}

impl From<SampleSummary> for Samples {
    fn from(summary: SampleSummary) -> Self {
        Self(summary.samples)
    }
}

impl From<Samples> for SampleSummary {
    fn from(samples: Samples) -> Self {
        Self { median: samples.median(), min: samples.min(), max: samples.max(), samples: samples.0 }
    }
}

impl Samples {
    /// Adds a measurement.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The median; NaN without samples.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => f64::NAN,
            len if len % 2 == 1 => sorted[len / 2],
            len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
        }
    }

    /// The confidence interval of the median, whatever the distribution: each sample is as likely to lie above the true median as
    /// below, so only once in 16 times do five all lie on one side of it. As many samples are left out at both ends as
    /// [`CONFIDENCE`] allows: none of five, one of eight, two of eleven. Fewer than five never reach it; then it is minimum and
    /// maximum.
    pub fn interval(&self) -> [f64; 2] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let [Some(first), Some(last)] = [sorted.first(), sorted.last()] else { return [f64::NAN; 2] };
        let (mut between, mut cut) = ([*first, *last], 0);
        // How likely it is that exactly `cut` lie below, and that `cut` or fewer do.
        let mut exactly = 0.5f64.powf(sorted.len() as f64);
        let mut fewer = exactly;
        while cut + 1 < sorted.len() / 2 {
            cut += 1;
            exactly *= (sorted.len() - cut + 1) as f64 / cut as f64;
            fewer += exactly;
            if 1.0 - 2.0 * fewer < CONFIDENCE {
                break;
            }
            between = [sorted[cut], sorted[sorted.len() - 1 - cut]];
        }
        between
    }

    /// The distance of the further end of the [`Self::interval`] from the median, as a share: 0.25 where an end is 1.25 times the
    /// median, or the median 1.25 times an end. Infinite for a single sample.
    pub fn reach(&self) -> f64 {
        match (self.0.len(), self.interval()) {
            (0 | 1, _) => f64::INFINITY,
            (_, [low, high]) if low == high => 0.0,
            (_, [low, high]) => (high / self.median()).max(self.median() / low) - 1.0,
        }
    }

    /// The ratio of each sample to that of `others` in the same turn.
    pub fn ratios_to(&self, others: &Self) -> Self {
        self.0.iter().zip(&others.0).map(|(one, other)| one / other).collect()
    }

    /// `amount` per second, where the samples are seconds.
    pub fn rates(&self, amount: f64) -> Self {
        self.0.iter().map(|seconds| amount / seconds).collect()
    }

    /// The minimum.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The maximum.
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
    fn median_of_even_and_odd_counts_is_right() {
        let median = |samples: &[f64]| samples.iter().copied().collect::<Samples>().median();
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn interval_of_many_samples_drops_outliers() {
        // The count, and which of them are the ends: what tables of the sign test say for 90 %.
        for (count, low, high) in
            [(1, 1, 1), (2, 1, 2), (5, 1, 5), (7, 1, 7), (8, 2, 7), (10, 2, 9), (11, 3, 9), (20, 6, 15)]
        {
            let interval = (1..=count).rev().map(f64::from).collect::<Samples>().interval();
            assert_eq!(interval, [f64::from(low), f64::from(high)], "of {count}");
        }
        assert!(Samples::default().interval()[0].is_nan());
        let [low, high] = (0..500).map(f64::from).collect::<Samples>().interval();
        assert!(225.0 < low && low < 240.0 && low + high == 499.0, "{low} to {high}");
    }

    #[test]
    fn interval_of_samples_covers_the_median() {
        // Every way in which eight samples can lie below (-1) or above (1) a median of 0.
        let held = (0u32..256).filter(|ways| {
            let sides = (0..8).map(|index| if ways >> index & 1 == 0 { -1.0 } else { 1.0 });
            let [low, high] = sides.collect::<Samples>().interval();
            low < 0.0 && 0.0 < high
        });
        assert_eq!(held.count(), 256 - 2 * 9);
    }

    #[test]
    fn interval_reach_is_its_further_side() {
        let reach = |samples: &[f64]| samples.iter().copied().collect::<Samples>().reach();
        assert_eq!(reach(&[10.0, 11.0, 8.0, 10.0, 10.0]), 0.25);
        assert_eq!(reach(&[10.0, 15.0, 8.0, 10.0, 10.0]), 0.5);
        assert_eq!(reach(&[10.0, 10.0, 10.0, 10.0, 99.0, 10.0, 10.0, 10.0]), 0.0);
        assert_eq!(reach(&[8.0]), f64::INFINITY);
        assert_eq!(reach(&[0.0, 0.0]), 0.0);
        assert_eq!(reach(&[0.0, 1.0, 1.0]), f64::INFINITY);
    }

    #[test]
    fn samples_through_json_are_equal() {
        let text = serde_json::to_string(&[2.0, 4.0].into_iter().collect::<Samples>()).unwrap();
        assert_eq!(text, r#"{"median":3.0,"min":2.0,"max":4.0,"samples":[2.0,4.0]}"#);
        assert_eq!(serde_json::from_str::<Samples>(&text).unwrap().max(), 4.0);
    }

    #[test]
    fn sides_in_turn_alternate() {
        let mut turns = Vec::new();
        in_turn(2, |side| {
            turns.push(side);
            Ok(0.0)
        })
        .unwrap();
        assert_eq!(turns, [Side::Baseline, Side::Bdnfs, Side::Baseline, Side::Bdnfs]);
    }
}
