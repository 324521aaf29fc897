//! `bdnfs`: the command line.
//!
//! One agent owns each cache directory and hosts every mount that uses it: the node agent, or one that `bdnfs mount`
//! starts when there is none and that exits with its last mount. Commands talk to it over its control socket.
//!
//! ```text
//!   arguments ──> args ──> commands ── one module each
//!                             │
//!        source, access, secrets, mirror, cache, options      options, as requests of the API
//!        weights ── config (the library)                      configuration files: sources and mount points
//!        mountpoint, probe                                    what is on the mount point already
//!                             │
//!                          endpoint ── agents: the socket ──> a running agent
//!                             │     └─ spawn ───────────────> a new process: commands::daemon, an agent
//!                             │     └─ AgentServer ─────────> this process is the agent
//!                             v
//!        progress, log, log_thread: stderr     output, text, truss_format: stdout     exit_status
//! ```

// They panic where nobody can read what is printed.
#![warn(clippy::print_stderr, clippy::print_stdout)]

use std::process::ExitCode;

mod access;
mod agents;
mod args;
mod cache;
mod commands;
mod endpoint;
mod exit_status;
mod log;
mod log_thread;
mod mirror;
mod mountpoint;
mod options;
mod output;
mod probe;
mod progress;
mod publications;
mod runtime;
mod secrets;
mod source;
mod spawn;
mod text;
mod truss_format;
mod weights;

use bdnfs_cli::config;
use output::stderr_line;

/// The options with which the C library asks name servers (resolv.conf(5)): each for a second, twice over. Its own 5 s for one that
/// is silent are more than a connection may take, so that the next would never be asked in time.
const RESOLVER_OPTIONS: (&str, &str) = ("RES_OPTIONS", "timeout:1 attempts:2");

fn main() -> ExitCode {
    let (variable, options) = RESOLVER_OPTIONS;
    if std::env::var_os(variable).is_none() {
        // SAFETY: this is the only thread yet, so none reads the environment meanwhile.
        unsafe { std::env::set_var(variable, options) };
    }
    bdnfs_agent::signals::survive_file_size_limit();
    if let Some(name) = commands::mount_helper::invoked_name() {
        return commands::mount_helper::main(name);
    }
    match args::Cli::run_arguments() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if text::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            stderr_line!("bdnfs: {}", text::line(&error));
            exit_status::exit_code(&error).into()
        }
    }
}
