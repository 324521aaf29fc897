//! `bdnfs`: model weights and datasets as directories, from the command line.
//!
//! One daemon owns each cache directory and hosts every mount that uses it: the node's agent, or one that `bdnfs mount`
//! starts when there is none and that ends with its last mount. The commands ask it over its control socket, or the
//! kernel.

use std::process::ExitCode;

use clap::Parser;

mod access;
mod agent;
mod args;
mod bench;
mod cache;
mod check;
mod cluster;
mod config;
mod control;
mod daemon;
mod holder;
mod job;
mod launch;
mod log;
mod ls;
mod mirror;
mod mount;
mod mountpoint;
mod options;
mod progress;
mod pulse;
mod records;
mod runtime;
mod secrets;
mod server;
mod signals;
mod source;
mod status;
mod telemetry;
mod text;
mod top;
mod umount;
mod wait;
mod weights;

fn main() -> ExitCode {
    match args::Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if text::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bdnfs: {}", text::line(&error));
            ExitCode::FAILURE
        }
    }
}
