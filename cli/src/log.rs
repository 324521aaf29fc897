//! The log on stderr; that of a detached agent is a file in its cache directory.

use anyhow::{Context, Result};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

use bdnfs_agent::telemetry::traces::{self, OtlpEndpoint, TraceGuard};
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::log_thread::{self, LogGuard};

/// The destination of a log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// To the terminal of a command.
    Command,
    /// To the log of a service.
    Service,
    /// To a file in the cache, without waiting for its disk.
    Detached,
}

/// Starts logging: a service logs what it does, a command only warnings. `verbose` raises the level, and the variable BDNFS_LOG
/// replaces it. With a `collector`, spans are traced for it until the result is dropped.
pub fn start(
    kind: LogKind,
    verbose: u8,
    collector: Option<&OtlpEndpoint>,
) -> Result<(Option<TraceGuard>, Option<LogGuard>)> {
    let is_service = kind != LogKind::Command;
    let targets = match std::env::var("BDNFS_LOG") {
        Ok(text) => text.parse().with_context(|| format!("invalid log level BDNFS_LOG={text:?}"))?,
        // Libraries log a lot: only the level of `bdnfs*` is raised.
        Err(_) => {
            Targets::new().with_default(LevelFilter::WARN).with_target("bdnfs", level(is_service, verbose))
        }
    };
    let (writer, guard) = match kind {
        LogKind::Detached => {
            let (queue, guard) = log_thread::start()?;
            (BoxMakeWriter::new(queue), Some(guard))
        }
        _ => (BoxMakeWriter::new(std::io::stderr), None),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let Some(collector) = collector else {
        registry().with(lines).with(targets).init();
        return Ok((None, guard));
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
    Ok((Some(traces), guard))
}

fn level(is_service: bool, verbose: u8) -> LevelFilter {
    match u8::from(is_service).saturating_add(verbose) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}
