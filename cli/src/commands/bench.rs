//! `bdnfs bench`: finds the benchmark program and executes it.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

/// The benchmark program.
const BENCH_PROGRAM: &str = "bdnfs-bench";

/// The arguments of `bdnfs bench`, which the program parses itself.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// Options of the benchmark; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Replaces this process with the benchmark program, so that exit code and signals are its own.
pub fn run(args: &BenchArgs) -> Result<()> {
    let program = find().with_context(|| {
        format!(
            "{BENCH_PROGRAM}: not found beside bdnfs or in PATH; `cargo build --release --bins` in the sources of bdnfs builds it"
        )
    })?;
    let error = Command::new(&program).args(&args.options).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

fn find() -> Option<PathBuf> {
    let beside = env::current_exe().ok()?.with_file_name(BENCH_PROGRAM);
    let path = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&path).map(|directory| directory.join(BENCH_PROGRAM));
    [beside].into_iter().chain(others).find(|program| program.is_file())
}
