//! `bdnfs`: model weights and datasets as directories, from the command line.
//!
//! One daemon owns each cache directory and hosts every mount that uses it: the node's agent, or one that `bdnfs mount`
//! starts when there is none and that ends with its last mount. The commands ask it over its control socket, or the
//! kernel.

use std::process::ExitCode;

use clap::Parser;

mod access;
mod agents;
mod args;
mod cache;
mod commands;
mod config;
mod log;
mod mirror;
mod mountpoint;
mod options;
mod progress;
mod pulse;
mod secrets;
mod server;
mod source;
mod spawn;
mod text;
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
