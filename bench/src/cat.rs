//! cat: a file is read once, as any program would.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::run::{self, RunningProgram};

/// How long reading a file once may take.
const CAT_TIMEOUT: Duration = Duration::from_secs(300);

/// Reads a file once, and returns the seconds that it took.
///
/// # Errors
/// It can't be read, or takes too long.
pub fn cat(path: &Path) -> Result<f64> {
    let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    Ok(RunningProgram::start(run::command("cat").arg(path), null)?.wait(CAT_TIMEOUT)?.seconds)
}
