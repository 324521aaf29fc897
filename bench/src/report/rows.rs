//! Rows: what a report is made of.

use serde::{Deserialize, Serialize, Serializer};

use crate::samples::Samples;
use crate::unit::MeasureUnit;

/// bdnfs beside something else.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Comparison {
    /// The name of the measurement.
    pub name: String,
    /// The unit of both sides.
    pub unit: MeasureUnit,
    /// The competitor that bdnfs is compared with.
    pub against: String,
    /// The competitor's samples.
    pub baseline: Samples,
    /// The samples of bdnfs.
    pub bdnfs: Samples,
    /// The ratio of the medians that bdnfs is to reach.
    pub wanted: Option<f64>,
}

/// A figure of bdnfs alone.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Figure {
    /// The name of the measurement.
    pub name: String,
    /// Its unit.
    pub unit: MeasureUnit,
    /// The measurements.
    pub value: Samples,
    /// Its upper limit.
    pub limit: Option<f64>,
}

/// How a figure of bdnfs grows along with something.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Growth {
    /// The name of the measurement.
    pub name: String,
    /// Its unit.
    pub unit: MeasureUnit,
    /// The variable, for example `files`.
    pub along: String,
    /// The measurements, by how much of it there was.
    pub points: Vec<(f64, Samples)>,
}

/// The rows that one measurement adds to the report.
#[derive(Debug, Default)]
pub struct Rows {
    /// Comparisons.
    pub pairs: Vec<Comparison>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// How figures grow.
    pub growths: Vec<Growth>,
}

impl From<Comparison> for Rows {
    fn from(pair: Comparison) -> Self {
        Self { pairs: vec![pair], ..Self::default() }
    }
}

impl Comparison {
    /// bdnfs beside `against`, where no ratio was ever asked for.
    pub fn new(name: &str, unit: MeasureUnit, against: &str, [baseline, bdnfs]: [Samples; 2]) -> Self {
        let (name, against) = (name.to_owned(), against.to_owned());
        Self { name, unit, against, baseline, bdnfs, wanted: None }
    }

    /// The same, and the ratio that is to be reached.
    pub fn with_wanted(self, wanted: f64) -> Self {
        Self { wanted: Some(wanted), ..self }
    }

    /// The ratio of the medians. Above 1, bdnfs is better.
    pub fn ratio(&self) -> f64 {
        let [worse, better] =
            if self.unit.is_cost() { [&self.bdnfs, &self.baseline] } else { [&self.baseline, &self.bdnfs] };
        better.median() / worse.median()
    }

    /// The ratio in each turn.
    pub fn ratios(&self) -> Samples {
        if self.unit.is_cost() {
            self.baseline.ratios_to(&self.bdnfs)
        } else {
            self.bdnfs.ratios_to(&self.baseline)
        }
    }

    /// The reach of its ratio: that of the ratios of single turns, or that of the noisier side, whichever is less. A disturbance
    /// of a whole turn cancels in the ratios; one of single measurements leaves the medians.
    pub fn reach(&self) -> f64 {
        self.ratios().reach().min(self.baseline.reach().max(self.bdnfs.reach()))
    }
}

impl Figure {
    /// A figure without a limit.
    pub fn new(name: &str, unit: MeasureUnit, value: Samples) -> Self {
        Self { name: name.to_owned(), unit, value, limit: None }
    }
}

/// Writes the ratio of each pair, too, for readers of the JSON.
pub(super) fn with_ratios<S: Serializer>(pairs: &[Comparison], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct PairWithRatio<'a> {
        #[serde(flatten)]
        pair: &'a Comparison,
        ratio: f64,
    }
    serializer.collect_seq(pairs.iter().map(|pair| PairWithRatio { pair, ratio: pair.ratio() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_of_lower_cost_is_above_one() {
        let side = |figure: f64| [figure].into_iter().collect::<Samples>();
        let pair = |unit| Comparison::new("row", unit, "other", [side(4.0), side(2.0)]).ratio();
        assert_eq!((pair(MeasureUnit::Seconds), pair(MeasureUnit::Files)), (2.0, 0.5));
    }
}
