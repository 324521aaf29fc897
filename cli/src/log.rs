//! The log: on stderr, which a detached daemon has in its cache directory.

use anyhow::{Context, Result};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

use bdnfs_agent::telemetry::traces::{self, Collector, Traces};

/// Starts it: a daemon tells what it does, a command only what is wrong. `verbose` raises that, and the environment's
/// BDNFS_LOG, the one thing that is read from it here, takes the place of both. Where there is a `collector`, what happens is
/// traced for it until the answer is dropped.
pub fn start(serves: bool, verbose: u8, collector: Option<&Collector>) -> Result<Option<Traces>> {
    let targets = match std::env::var("BDNFS_LOG") {
        Ok(text) => text.parse().with_context(|| format!("BDNFS_LOG={text:?} is not a log level"))?,
        // Libraries talk a lot; only `bdnfs*` is raised.
        Err(_) => Targets::new().with_default(LevelFilter::WARN).with_target("bdnfs", level(serves, verbose)),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let Some(collector) = collector else {
        registry().with(lines).with(targets).init();
        return Ok(None);
    };
    let (traces, tracer) = traces::start(collector)?;
    let spans = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false);
    let sent = filter_fn(traces::is_sent).with_max_level_hint(LevelFilter::DEBUG);
    registry().with(lines.with_filter(targets)).with(spans.with_filter(sent)).init();
    Ok(Some(traces))
}

fn level(serves: bool, verbose: u8) -> LevelFilter {
    match u8::from(serves).saturating_add(verbose) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}
