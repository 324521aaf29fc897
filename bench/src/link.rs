//! A link of a known speed: a network namespace whose loopback is shaped. Server and client run in it, and nothing else.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run;

/// How long setting it up may take.
const LINK_SETUP_TIMEOUT: Duration = Duration::from_secs(10);
/// What may be sent at once: a few of the largest packets that loopback knows, so that the rate is what limits.
const BURST: &str = "256kb";
/// How long a packet may wait for its turn: enough to keep the link full, as a switch does.
const QUEUE: &str = "50ms";

/// A link; it goes when dropped.
#[derive(Debug)]
pub struct ShapedLink {
    name: String,
}

impl ShapedLink {
    /// A link of `rate`, as tc(8) writes it.
    ///
    /// # Errors
    /// `ip` or `tc` is not installed, or this is not root.
    pub fn new(rate: &str) -> Result<Self> {
        let link = Self { name: format!("bdnfs-bench-{}", std::process::id()) };
        let name = link.name.as_str();
        let set = |program: &str, arguments: &[&str]| {
            run::run(run::command(program).args(arguments), LINK_SETUP_TIMEOUT)
                .context("cannot make a network namespace")
        };
        set("ip", &["netns", "add", name])?;
        set("ip", &["-n", name, "link", "set", "lo", "up"])?;
        let shape = ["-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate];
        set("tc", &[&shape[..], &["burst", BURST, "latency", QUEUE]].concat())?;
        Ok(link)
    }

    /// `program` in it. Only the network is another one, so that what it mounts is seen outside.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = run::command("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg("--").arg(program);
        command
    }
}

/// `program`, in `link` where there is one.
pub fn command(link: Option<&ShapedLink>, program: impl AsRef<OsStr>) -> Command {
    match link {
        Some(link) => link.command(program),
        None => run::command(program),
    }
}

impl Drop for ShapedLink {
    fn drop(&mut self) {
        // Not by `run`, which does nothing any more once the run was interrupted. A link in use stays.
        let _ = run::command("ip").args(["netns", "delete", &self.name]).status();
    }
}
