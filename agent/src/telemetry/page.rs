//! A page of metrics: each with its help and its unit, in the base units that Prometheus wants.

use std::fmt;

use bdnfs::metrics::{BUCKET_BOUNDS, HistogramCounts};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// The labels, which distinguish samples of one metric.
pub type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A page that is being written.
#[derive(Debug)]
pub struct Page<'a>(pub DescriptorEncoder<'a>);

/// One value of a metric.
pub fn sample<'a, V, const N: usize>(labels: [(&'static str, &'a str); N], value: V) -> (Labels<'a>, V) {
    (labels.to_vec(), value)
}

impl Page<'_> {
    /// A counter. `_total` is appended to its name.
    pub fn counter<'s, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        each(&mut metric, samples, |metric, value| metric.encode_counter::<NoLabelSet, _, u64>(value, None))
    }

    /// A gauge.
    pub fn gauge<'s, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        each(&mut metric, samples, |metric, value| metric.encode_gauge(value))
    }

    /// A histogram of durations, in seconds.
    pub fn times<'s, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, &'s str); N], &'s HistogramCounts)>,
    ) -> fmt::Result {
        let unit = Unit::Seconds;
        let mut metric = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        let samples = samples.into_iter().map(|(labels, spread)| (labels.to_vec(), spread));
        each(&mut metric, samples, |metric, spread| {
            let bounds = BUCKET_BOUNDS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<_> = bounds.zip(spread.counts).collect();
            let (sum, count) = (spread.sum.as_secs_f64(), spread.count());
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    /// Writes an info metric: a gauge of 1 whose content is in its labels.
    pub fn info(&mut self, name: &str, help: &str, labels: &[(&'static str, &str)]) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }
}

fn each<'s, V>(
    metric: &mut MetricEncoder<'_>,
    samples: impl IntoIterator<Item = (Labels<'s>, V)>,
    write: impl Fn(&mut MetricEncoder<'_>, &V) -> fmt::Result,
) -> fmt::Result {
    for (labels, value) in samples {
        if labels.is_empty() {
            write(metric, &value)?;
        } else {
            write(&mut metric.encode_family(&labels)?, &value)?;
        }
    }
    Ok(())
}
