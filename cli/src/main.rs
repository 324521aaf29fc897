//! `bdnfs`: the command line.
//!
//! One agent owns each cache directory and hosts every mount that uses it: the node agent, or one that `bdnfs mount`
//! starts when there is none and that exits with its last mount. Commands talk to it over its control socket.

use std::process::ExitCode;

use clap::Parser;

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
mod weights;

use bdnfs_cli::config;

fn main() -> ExitCode {
    if let Some(name) = commands::mount_helper::invoked_name() {
        return commands::mount_helper::main(name);
    }
    match args::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if text::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bdnfs: {}", text::line(&error));
            exit_status::exit_code(&error).into()
        }
    }
}
