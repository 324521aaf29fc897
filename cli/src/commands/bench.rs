//! `bdnfs bench`: the benchmark is a program of its own, which this one finds and becomes.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// The program.
const PROGRAM: &str = "bdnfs-bench";

/// What it is told. It knows by itself what that means.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Options of the benchmark: --help tells them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Runs it in the place of this process, so that its exit code and its signals are its own.
pub fn run(args: &Args) -> Result<()> {
    let program = find().with_context(|| {
        format!(
            "{PROGRAM} lies neither beside this program nor in PATH: `cargo build --release --bins` in bdnfs's sources \
             makes both, and scripts/bench there runs it"
        )
    })?;
    let error = Command::new(&program).args(&args.options).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn find() -> Option<PathBuf> {
    let beside = env::current_exe().ok()?.with_file_name(PROGRAM);
    let path = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    [beside].into_iter().chain(others).find(|program| program.is_file())
}
