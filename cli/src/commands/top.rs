//! `bdnfs top`: what the daemons of this machine do, as it happens.

mod screen;
mod terminal;
mod view;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, MissedTickBehavior, interval};

use bdnfs_agent::{runtime, signals};

use terminal::Terminal;
use view::View;

/// How to show it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Tell it once and end, as when there is no terminal
    #[arg(long)]
    once: bool,
    /// Tell it as JSON, a line each time
    #[arg(long)]
    json: bool,
    /// Seconds between two looks; what is told of speed is the mean over that time
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Only the daemon of this cache
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  bdnfs top
  bdnfs top --once --interval 5
  bdnfs top --json | jq '.daemons[].rates.mirror'";

/// Shorter than that tells of chance, longer of nothing.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.1 to 3600".to_owned()) }
}

/// Shows it until somebody has seen enough.
pub fn run(args: &Args) -> Result<()> {
    // A cache that isn't there has no daemon.
    let cache = args.cache_dir.as_ref().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    runtime::block_on(watch(args, cache))
}

async fn watch(args: &Args, cache: Option<PathBuf>) -> Result<()> {
    let live = !args.once && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let mut view = View::default();
    view.look(cache.as_deref(), Instant::now()).await?;
    let mut clock = interval(Duration::from_secs_f64(args.interval));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock.tick().await;
    if live {
        return show(&mut view, cache, clock, args.interval).await;
    }
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            ended = signals::termination() => return Ok(ended?),
        }
        view.look(cache.as_deref(), Instant::now()).await?;
        let mut out = std::io::stdout().lock();
        if args.json {
            writeln!(out, "{}", serde_json::to_string(&view.told())?)?;
        } else {
            screen::lines(&view, screen::WIDE).iter().try_for_each(|line| writeln!(out, "{line}"))?;
        }
        if args.once || !args.json {
            return Ok(());
        }
    }
}

/// The same on a terminal, which is left as it was.
async fn show(
    view: &mut View,
    cache: Option<PathBuf>,
    mut clock: tokio::time::Interval,
    seconds: f64,
) -> Result<()> {
    // Before the terminal is another: who is ended gives it back.
    let mut end = std::pin::pin!(signals::termination());
    let mut terminal = Terminal::take()?;
    loop {
        terminal.draw(|width| screen::live(view, width, seconds))?;
        tokio::select! {
            _ = clock.tick() => view.look(cache.as_deref(), Instant::now()).await?,
            left = terminal.left() => if left { return Ok(()) },
            ended = &mut end => return Ok(ended?),
        }
    }
}
