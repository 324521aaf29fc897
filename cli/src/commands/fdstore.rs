//! `bdnfs fdstore`: the fd store as a service of its own.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bdnfs_agent::fdstore::process;

/// The arguments of `bdnfs fdstore`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct FdstoreArgs {
    /// Socket that the agent connects to; its configuration names it: fdstore = "PATH"
    #[arg(long, value_name = "PATH")]
    listen: PathBuf,
}

const EXAMPLES: &str = "Examples:
  bdnfs fdstore --listen /run/bdnfs/fdstore.sock";

/// Holds mounts until it is stopped.
pub fn run(args: &FdstoreArgs) -> Result<()> {
    if !args.listen.is_absolute() {
        bail!("--listen {}: must be an absolute path", args.listen.display());
    }
    Ok(process::run_service(&args.listen)?)
}
