//! The log: on stderr, which a detached daemon has in its cache directory.

use anyhow::{Context, Result};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts it: a daemon tells what it does, a command only what is wrong. `verbose` raises that, and the environment's
/// BDNFS_LOG, the one thing that is read from it here, takes the place of both.
pub fn start(serves: bool, verbose: u8) -> Result<()> {
    let targets = match std::env::var("BDNFS_LOG") {
        Ok(text) => text.parse().with_context(|| format!("BDNFS_LOG={text:?} is not a log level"))?,
        // Libraries talk a lot; only `bdnfs*` is raised.
        Err(_) => Targets::new().with_default(LevelFilter::WARN).with_target("bdnfs", level(serves, verbose)),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(targets).init();
    Ok(())
}

fn level(serves: bool, verbose: u8) -> LevelFilter {
    match u8::from(serves).saturating_add(verbose) {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}
