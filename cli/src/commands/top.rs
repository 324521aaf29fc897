//! `bdnfs top`: live transfer rates of the agents of this machine.

mod screen;
mod terminal;
mod view;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, MissedTickBehavior, interval};

use bdnfs_agent::signals;

use crate::output;
use crate::runtime;
use crate::text;
use terminal::Terminal;
use view::View;

/// The arguments of `bdnfs top`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Print once and exit; the default without a terminal
    #[arg(long)]
    once: bool,
    /// Print a line of JSON per interval
    #[arg(long)]
    json: bool,
    /// Refresh interval, over which rates are averaged, such as 500ms or 5s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = refresh_interval)]
    interval: Duration,
    /// Show only the agent of this cache
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  bdnfs top
  bdnfs top --once --interval 5
  bdnfs top --json | jq '.daemons[].rates.mirror'";

/// Parses a refresh interval: a duration, or a number of seconds with a fraction. A rate over a shorter time is chance.
fn refresh_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let interval = seconds.map_or_else(|| text::parse_duration(text), Ok)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if allowed.contains(&interval) { Ok(interval) } else { Err("expected 100ms to 1h".to_owned()) }
}

/// Shows the view until the user quits.
pub fn run(args: &TopArgs) -> Result<()> {
    // A missing cache has no agent.
    let cache = args.cache_dir.as_ref().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    runtime::block_on(watch(args, cache))
}

async fn watch(args: &TopArgs, cache: Option<PathBuf>) -> Result<()> {
    let live = !args.once && !args.json && std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    let mut view = View::default();
    view.refresh(cache.as_deref(), Instant::now()).await?;
    let mut clock = interval(args.interval);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    clock.tick().await;
    if live {
        return show(&mut view, cache, clock, args.interval).await;
    }
    // Once, not for each wait: a signal during a refresh is not missed.
    let mut end = std::pin::pin!(signals::termination());
    loop {
        let refresh = async {
            clock.tick().await;
            view.refresh(cache.as_deref(), Instant::now()).await
        };
        tokio::select! {
            biased;
            ended = &mut end => return Ok(ended?),
            refreshed = refresh => refreshed?,
        }
        if args.json {
            output::print_json(&view.as_json())?;
        } else {
            output::print_line(&screen::lines(&view, screen::MAX_WIDTH).join("\n"))?;
        }
        if args.once || !args.json {
            return view.check_answers();
        }
    }
}

/// Shows it on a terminal, which is restored at the end.
async fn show(
    view: &mut View,
    cache: Option<PathBuf>,
    mut clock: tokio::time::Interval,
    refresh: Duration,
) -> Result<()> {
    // Before the terminal is changed: a signal restores it.
    let mut end = std::pin::pin!(signals::termination());
    let mut terminal = Terminal::enter()?;
    loop {
        terminal.draw(|width| screen::live(view, width, refresh))?;
        tokio::select! {
            _ = clock.tick() => view.refresh(cache.as_deref(), Instant::now()).await?,
            quit = terminal.wait_for_quit() => if quit { return Ok(()) },
            ended = &mut end => return Ok(ended?),
        }
    }
}
