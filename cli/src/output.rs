//! Output on stdout: lines, JSON and tables.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

/// As much of a snapshot's id as identifies it, in hex digits.
const SHORT_ID_LEN: usize = 12;

/// Prints a text, which ends with a newline.
pub fn print(text: &str) -> Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
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

/// The beginning of a snapshot's id.
pub fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID_LEN).unwrap_or(id)
}
