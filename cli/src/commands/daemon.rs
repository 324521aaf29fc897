//! `bdnfs daemon`: a daemon in a process of its own, which `bdnfs mount` starts and which ends with its last mount.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use bdnfs::error::Kind;
use bdnfs_agent::runtime;
use bdnfs_agent::{AgentConfig, AgentServer};

use crate::cache;
use crate::spawn::READY;

/// How long a daemon that was just started waits for its first mount.
const GRACE: Duration = Duration::from_secs(10);

/// What a detached daemon is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    cache: cache::Args,
}

/// `bdnfs daemon`: serves until the last mount has ended.
pub fn run(args: &Args) -> Result<()> {
    // Fails only where it already leads a session, which is what is wanted.
    let _ = rustix::process::setsid();
    // It was started as /proc/self/exe, which would name it "exe".
    rustix::thread::set_name(c"bdnfs").context("cannot name the process")?;
    runtime::block_on_threads(serve(AgentConfig::on_demand(args.cache.make()?)))
}

async fn serve(setup: AgentConfig) -> Result<()> {
    let daemon = match AgentServer::start(setup).await {
        Ok(daemon) => daemon,
        Err(failure) => {
            say(&serde_json::to_string(&failure)?)?;
            // Another daemon was faster: nothing is wrong.
            return if failure.is(Kind::Busy) { Ok(()) } else { Err(failure.into()) };
        }
    };
    say(READY)?;
    let hold = daemon.hold();
    let asked = daemon.asked();
    tokio::spawn(async move {
        // Either way: whoever comes later than that starts another daemon.
        let _ = tokio::time::timeout(GRACE, asked).await;
        drop(hold);
    });
    daemon.serve().await
}

/// Says one line to the parent, and no more: it is waiting for the end of the pipe, too.
fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    // A parent that left is no reason to end: others may be about to connect.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("cannot let stdout go")
}
