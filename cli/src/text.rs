//! How things are told to people: sizes, counts, times, errors.

use std::io;
use std::time::Duration;

pub use bdnfs_agent::text::{count, files, minute, size, unmatched};

/// How much of `whole` is there. Rounded down, so that 100 % means all.
pub fn percent(part: u64, whole: u64) -> String {
    let ratio = if whole == 0 { 100 } else { u128::from(part) * 100 / u128::from(whole) };
    format!("{ratio} %")
}

/// A time of the day in seconds since 1970, to the second, in UTC; `None` for what is no time.
pub fn second(seconds: i64) -> Option<String> {
    Some(chrono::DateTime::from_timestamp(seconds, 0)?.format("%H:%M:%S UTC").to_string())
}

/// A name from a source, safe to print on a line of its own.
pub fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// The same for JSON, which has its own way to write control characters.
pub fn exact(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

/// An error in one line: each cause that adds something to what stands before it.
pub fn line(error: &anyhow::Error) -> String {
    bdnfs_agent::text::line(error.as_ref())
}

/// Whether the error is only that nobody reads our output any more, as under `| head`.
pub fn reader_left(error: &anyhow::Error) -> bool {
    let io = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(io))
}

/// Reads a span of time: a number and a unit.
pub fn span(text: &str) -> Result<Duration, String> {
    let unit = |unit: &str| match unit {
        "s" | "" => Some(1),
        "m" => Some(60),
        "h" => Some(3_600),
        "d" => Some(86_400),
        _ => None,
    };
    let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let seconds =
        number.parse::<u64>().ok().zip(unit(rest)).and_then(|(number, unit)| number.checked_mul(unit));
    seconds.map(Duration::from_secs).ok_or_else(|| "expected a number and s, m, h or d: 24h".to_owned())
}

/// Lays out rows in columns as wide as their widest cell; the columns at the places of `right` align to the right.
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
    use bytesize::ByteSize;

    use super::*;

    #[test]
    fn spans_have_units() {
        for (text, seconds) in [("0s", 0), ("90", 90), ("5m", 300), ("24h", 86_400), ("7d", 604_800)] {
            assert_eq!(span(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "h", "1.5h", "-1s", "3w", "99999999999999999999s", "9999999999999999999d"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_safe_on_a_line_and_exact_in_json() {
        for (bytes, on_a_line, in_json) in [
            (&b"a/b.bin"[..], "a/b.bin", "a/b.bin"),
            ("é\u{2028}".as_bytes(), "é\u{2028}", "é\u{2028}"),
            (b"a\nb", r"a\nb", "a\nb"),
            (br"a\nb", r"a\nb", r"a\nb"),
            (b"a\xff", r"a\xff", r"a\xff"),
        ] {
            assert_eq!((&*name(bytes), &*exact(bytes)), (on_a_line, in_json));
        }
    }

    #[test]
    fn sizes_are_read_and_told_in_the_same_units() {
        for (text, bytes) in
            [("200G", 200_000_000_000), ("1.5 TB", 1_500_000_000_000), ("64MiB", 64 << 20), ("7", 7)]
        {
            assert_eq!(text.parse::<ByteSize>().expect(text).as_u64(), bytes, "{text}");
        }
        assert!("many".parse::<ByteSize>().is_err());
        assert_eq!(size(13_500_000_000), "13.5 GB");
        assert_eq!(size(0), "0 B");
    }

    #[test]
    fn a_part_is_all_only_when_it_is() {
        assert_eq!(percent(999_999, 1_000_000), "99 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100 %");
        assert_eq!(percent(0, 0), "100 %");
    }

    #[test]
    fn an_error_is_one_line_that_says_nothing_twice() {
        let error =
            bdnfs::error::Error::with(bdnfs::error::Kind::Disk, "cannot open", io::Error::other("bad disk"));
        assert_eq!(line(&anyhow::Error::new(error).context("/cache")), "/cache: cannot open: bad disk");
    }

    #[test]
    fn names_stay_on_their_line() {
        assert_eq!(name("modèle.bin".as_bytes()), "modèle.bin");
        assert_eq!(name(b"a\nb\xff"), "a\\nb\\xff");
    }

    #[test]
    fn columns_line_up() {
        let rows =
            [vec!["A".into(), "SIZE".into(), "S".into()], vec!["/mnt".into(), "7 B".into(), "ok".into()]];
        assert_eq!(table(&rows, &[1]), "A     SIZE  S\n/mnt   7 B  ok\n");
    }
}
