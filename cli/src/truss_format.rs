//! Helpers of lists that are printed in the form of `truss train`.

/// The output format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ListFormat {
    /// A table for people.
    CliTable,
    /// Truss's CSV.
    Csv,
    /// Truss's JSON.
    Json,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SortOrder {
    /// The least first.
    Asc,
    /// The greatest first.
    Desc,
}

/// A size as truss prints it.
pub fn human_size(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB")];
    match units.iter().find(|(unit, _)| bytes > *unit) {
        Some((unit, name)) => format!("{:.2} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// The lines of truss's CSV, which end as Python's do.
pub fn csv(header: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let lines = rows.map(|cells| cells.iter().map(|cell| quote(cell)).collect::<Vec<_>>().join(","));
    std::iter::once(header.to_owned()).chain(lines).map(|line| line + "\r\n").collect()
}

/// A cell, quoted where Python's `csv` quotes it.
fn quote(cell: &str) -> String {
    if cell.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_size_is_that_of_truss() {
        for (bytes, text) in [
            (0, "0 B"),
            (1000, "1000 B"),
            (1001, "1.00 KB"),
            (1_000_000, "1000.00 KB"),
            (13_487_000_000, "13.49 GB"),
            (2_500_000_000_000, "2.50 TB"),
        ] {
            assert_eq!(human_size(bytes), text);
        }
    }

    #[test]
    fn csv_cell_is_quoted_where_it_must_be() {
        assert_eq!((&*quote("a b"), &*quote("a,\"b\"")), ("a b", "\"a,\"\"b\"\"\""));
    }
}
