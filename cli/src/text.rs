//! Formats of text for people: sizes, counts, times, tables, errors.

use std::io;
use std::time::Duration;

pub use bdnfs_agent::text::{count, files, minute, notes, size};
use bytesize::ByteSize;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// `part` of `whole` in percent, rounded down: 100 % means all.
pub fn percent(part: u64, whole: u64) -> String {
    let ratio = if whole == 0 { 100 } else { u128::from(part) * 100 / u128::from(whole) };
    format!("{ratio} %")
}

/// The time of day of a Unix time, to the second, in UTC; `None` when out of range.
pub fn time_of_day(seconds: i64) -> Option<String> {
    Some(chrono::DateTime::from_timestamp(seconds, 0)?.format("%H:%M:%S UTC").to_string())
}

/// A name from a source, without control characters, for a line of its own.
pub fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() || is_bidirectional(c)) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// Whether a character changes the direction in which others are shown: with it, one name can look like another.
fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name from a source for JSON, which escapes control characters itself.
pub fn json_name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

/// An error and its causes in one line, without repetition.
pub fn line(error: &anyhow::Error) -> String {
    bdnfs_agent::text::line(error.as_ref())
}

/// Whether the error is a closed output pipe, as under `| head`.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(io))
}

/// Parses a duration: `90s`, `1h 30m`, `7d`, or a number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse().map(Duration::from_secs).or_else(|_| humantime::parse_duration(text));
    duration.map_err(|error| format!("{error}; expected a duration such as 90s, 30m or 24h"))
}

/// Parses a size that is more than nothing: `200G`, `64MiB`, or a number of bytes.
pub fn parse_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    match size.as_u64() {
        0 => Err("must be more than 0".to_owned()),
        // What a number of bytes can't hold is parsed as the largest that it can.
        u64::MAX => Err("must be less than 16 EiB".to_owned()),
        _ => Ok(size),
    }
}

/// Deserializes a duration of a configuration, whose parser knows the line of one that is wrong.
pub fn deserialize_duration<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(value)?).map(Some).map_err(D::Error::custom)
}

/// Lays out rows in columns as wide as their widest cell; the columns with the indices `right` align to the right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_duration_accepts_units_and_plain_seconds() {
        for (text, seconds) in
            [("0s", 0), ("90", 90), ("5m", 300), ("24h", 86_400), ("7d", 604_800), ("1h 30m", 5_400)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "-1s", "3x", "99999999999999999999s", "9999999999999999999d"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn printable_of_control_characters_escapes_once() {
        for (bytes, on_a_line, in_json) in [
            (&b"a/b.bin"[..], "a/b.bin", "a/b.bin"),
            ("é\u{2028}".as_bytes(), "é\u{2028}", "é\u{2028}"),
            (b"a\nb", r"a\nb", "a\nb"),
            ("a\u{202e}b".as_bytes(), r"a\xe2\x80\xaeb", "a\u{202e}b"),
            (br"a\nb", r"a\nb", r"a\nb"),
            (b"a\xff", r"a\xff", r"a\xff"),
        ] {
            assert_eq!((&*printable(bytes), &*json_name(bytes)), (on_a_line, in_json));
        }
    }

    #[test]
    fn size_is_parsed_and_formatted_in_the_same_units() {
        for (text, bytes) in
            [("200G", 200_000_000_000), ("1.5 TB", 1_500_000_000_000), ("64MiB", 64 << 20), ("7", 7)]
        {
            assert_eq!(parse_size(text).expect(text).as_u64(), bytes, "{text}");
        }
        for bad in ["many", "-1", "0", "0G", "16EiB", "99999999999999999999"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(size(13_500_000_000), "13.5 GB");
        assert_eq!(size(0), "0 B");
    }

    #[test]
    fn percent_is_100_only_for_all() {
        assert_eq!(percent(999_999, 1_000_000), "99 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100 %");
        assert_eq!(percent(0, 0), "100 %");
    }

    #[test]
    fn error_with_causes_is_one_line_without_repetition() {
        let error =
            bdnfs::error::Error::with(bdnfs::error::Kind::Disk, "cannot open", io::Error::other("bad disk"));
        assert_eq!(line(&anyhow::Error::new(error).context("/cache")), "/cache: cannot open: bad disk");
    }

    #[test]
    fn table_aligns_columns() {
        let rows =
            [vec!["A".into(), "SIZE".into(), "S".into()], vec!["/mnt".into(), "7 B".into(), "ok".into()]];
        assert_eq!(table(&rows, &[1]), "A     SIZE  S\n/mnt   7 B  ok\n");
    }
}
