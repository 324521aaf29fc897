//! `bdnfs daemon`: the on-demand agent, which `bdnfs mount` starts and which exits with its last mount.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use bdnfs::error::Kind;
use bdnfs_agent::{AgentConfig, AgentServer};

use crate::cache::CacheArgs;
use crate::runtime;
use crate::spawn::READY_MESSAGE;

/// The time that a new agent waits for its first mount.
const FIRST_MOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// The arguments of `bdnfs daemon`.
#[derive(Debug, clap::Args)]
pub struct DaemonArgs {
    #[command(flatten)]
    cache: CacheArgs,
}

/// Serves until the last mount has ended.
pub fn run(args: &DaemonArgs) -> Result<()> {
    // Fails only for a session leader, which is what is wanted.
    let _ = rustix::process::setsid();
    // Started as /proc/self/exe, its name would be "exe".
    bdnfs_agent::runtime::set_process_name(c"bdnfs")?;
    runtime::block_on_threads(serve(AgentConfig::on_demand(args.cache.open()?)))
}

async fn serve(setup: AgentConfig) -> Result<()> {
    let agent = match AgentServer::start(setup).await {
        Ok(agent) => agent,
        Err(failure) => {
            report(&serde_json::to_string(&failure)?)?;
            // Another agent was faster, which is no error.
            return if failure.is(Kind::Busy) { Ok(()) } else { Err(failure.into()) };
        }
    };
    report(READY_MESSAGE)?;
    agent.continue_when_stopped();
    let alive = agent.keep_alive();
    let requested = agent.first_request();
    tokio::spawn(async move {
        // A request that comes later starts another agent.
        let _ = tokio::time::timeout(FIRST_MOUNT_TIMEOUT, requested).await;
        drop(alive);
    });
    Ok(agent.serve().await?)
}

/// Writes one line to the parent and closes the pipe, whose end it waits for.
fn report(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    // A parent that exited is no reason to exit: others may be about to connect.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("cannot close stdout")
}
