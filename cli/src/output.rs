//! Output: lines, JSON and tables on stdout, messages on stderr.

use std::io::{BufRead, IsTerminal, Write};

use anyhow::{Context, Result, bail};
use bdnfs_agent::api::MountInfo;
pub use bdnfs_agent::text::short_id;
use serde::Serialize;

use crate::text;

/// Prints a line on standard error, formatted as by `eprintln!`, which panics where it can't: a log may lie on a full disk.
macro_rules! stderr_line {
    ($($argument:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($argument)*);
    }};
}
pub(crate) use stderr_line;

/// The context of an error of standard output.
pub const STDOUT_CONTEXT: &str = "cannot write to standard output";

/// Prints a text, which ends with a newline.
pub fn print(text: &str) -> Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes()).context(STDOUT_CONTEXT)
}

/// Prints a line.
pub fn print_line(line: &str) -> Result<()> {
    print(&format!("{line}\n"))
}

/// Prints a value as JSON on one line.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print_line(&serde_json::to_string(value)?)
}

/// Prints a value as JSON on one line, or as the line that `text` makes of it.
pub fn print_value(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    if json { print_json(value) } else { print_line(&text()) }
}

/// Asks on the terminal whether to remove `what`.
pub fn confirm_removal(what: &str) -> Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        bail!("not removed: {what}; standard input is not a terminal, add --yes");
    }
    write!(std::io::stderr(), "remove {what}? [y/N] ")?;
    std::io::stderr().flush()?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A mount in one line.
pub fn mount_summary(mounted: &MountInfo) -> String {
    let id = short_id(&mounted.snapshot);
    let (files, bytes) = (text::files(mounted.files), text::size(mounted.bytes));
    format!(
        "mounted {} on {}: {files}, {bytes} (snapshot {id})",
        mounted.source,
        mounted.mountpoint.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_summary_is_one_line() {
        let mounted = MountInfo {
            id: 1,
            source: "s3://models/x".to_owned(),
            requested: None,
            mountpoint: "/mnt/model".into(),
            snapshot: "1f0c".repeat(16),
            files: 12,
            bytes: 13_500_000_000,
            passthrough: true,
            via: bdnfs_agent::api::MountBackend::Fuse,
            warnings: Vec::new(),
        };
        let text = "mounted s3://models/x on /mnt/model: 12 files, 13.5 GB (snapshot 1f0c1f0c1f0c)";
        assert_eq!(mount_summary(&mounted), text);
    }
}
