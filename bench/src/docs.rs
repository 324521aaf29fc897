//! Docs: every figure in a text for people comes out of a report. What stands between two marks is written by this program;
//! the rest is written by people, and holds no figure.
//!
//! ```text
//! <!-- figures from ../bench/results/NAME.json -->      where the report lies, beside the text; once, first
//! <!-- figures: KEY -->                                 a group by its key, `machine` or `losses`
//! <!-- figures of ../bench/results/NAME.md -->          what another program printed into that file
//! ..
//! <!-- end of figures -->
//! ```

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::report::BenchReport;

const FROM: &str = "<!-- figures from ";
const BEGIN: &str = "<!-- figures: ";
const OF: &str = "<!-- figures of ";
const CLOSE: &str = " -->";
const END: &str = "<!-- end of figures -->";

/// Writes the figures of the report that the text names into the text, or those of another that lies at `from`, beside the text.
///
/// # Errors
/// The text has other marks, or names a report or a group that is not there.
pub fn write(text: &Path, from: Option<&str>) -> Result<()> {
    let old = read(text)?;
    let new = fill(text, &old, from)?;
    fs::write(text, new).with_context(|| format!("cannot write {}", text.display()))
}

/// Holds the text against its report.
///
/// # Errors
/// A figure differs, or what [`write`] says.
pub fn check(text: &Path) -> Result<()> {
    let old = read(text)?;
    let new = fill(text, &old, None)?;
    let differs = old.lines().zip(new.lines()).position(|(old, new)| old != new);
    match differs {
        None if old == new => Ok(()),
        differs => bail!(
            "{}:{}: the figures are not those of the report; `bdnfs-bench docs {}` writes them",
            text.display(),
            differs.map_or(0, |line| line + 1),
            text.display()
        ),
    }
}

fn read(text: &Path) -> Result<String> {
    fs::read_to_string(text).with_context(|| format!("cannot read {}", text.display()))
}

/// The text with the figures in it.
fn fill(path: &Path, text: &str, from: Option<&str>) -> Result<String> {
    let mut report: Option<BenchReport> = None;
    let mut new = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(named) = marked(line, FROM) {
            let named = from.unwrap_or(named);
            let at = path.parent().unwrap_or(Path::new(".")).join(named);
            report = Some(BenchReport::read(&at)?);
            new += &format!("{FROM}{named}{CLOSE}\n");
        } else if let Some(key) = marked(line, BEGIN) {
            let report = report.as_ref().context("figures stand before the report that they are from")?;
            ensure!(lines.any(|line| line == END), "the figures of {key} have no end");
            new += &format!("{line}\n{}{END}\n", figures(report, key));
        } else if let Some(named) = marked(line, OF) {
            ensure!(lines.any(|line| line == END), "the figures of {named} have no end");
            let printed = read(&path.parent().unwrap_or(Path::new(".")).join(named))?;
            new += &format!("{line}\n{printed}{END}\n");
        } else {
            new += line;
            new.push('\n');
        }
    }
    ensure!(report.is_some(), "{} names no report", path.display());
    Ok(new)
}

fn marked<'a>(line: &'a str, begin: &str) -> Option<&'a str> {
    line.strip_prefix(begin)?.strip_suffix(CLOSE)
}

fn figures(report: &BenchReport, key: &str) -> String {
    if key == "machine" {
        return format!("\n{}\n\n{}\n", report.machine(), report.noise());
    }
    if key == "losses" {
        return format!("\n{}\n", report.losses());
    }
    match report.find(key) {
        Some(group) => format!("\n{}\n", group.text().trim()),
        None => "\nNot measured on this machine.\n".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Sizes;
    use crate::machine::HostInfo;
    use crate::report::Comparison;
    use crate::samples::Samples;
    use crate::unit::MeasureUnit;

    fn report(directory: &Path, name: &str, bdnfs: f64) {
        let mut report = BenchReport::new(HostInfo::default(), Sizes::QUICK);
        report.group("cold", "Cold", "about it");
        let side = |figure: f64| [figure].into_iter().collect::<Samples>();
        report
            .measure("row", || {
                Ok(Comparison::new("row", MeasureUnit::Seconds, "other", [side(4.0), side(bdnfs)]))
            })
            .unwrap();
        report.write(directory, name).unwrap();
    }

    #[test]
    fn docs_with_other_figure_than_report_fails() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text.md");
        report(directory.path(), "one", 2.0);
        let empty = "# Title\n<!-- figures from one.json -->\nProse.\n<!-- figures: cold -->\n<!-- end of figures -->\nMore.\n";
        fs::write(&text, empty).unwrap();
        assert!(check(&text).unwrap_err().to_string().contains("text.md:5: the figures are not those"));
        write(&text, None).unwrap();
        check(&text).unwrap();
        let written = fs::read_to_string(&text).unwrap();
        assert!(written.contains("2.000 |") && written.ends_with("-->\nMore.\n"), "{written}");
        fs::write(&text, written.replace("2.000 |", "3.000 |")).unwrap();
        check(&text).unwrap_err();

        report(directory.path(), "two", 1.0);
        write(&text, Some("two.json")).unwrap();
        assert!(fs::read_to_string(&text).unwrap().contains("4.000 |"));
        check(&text).unwrap();
    }

    /// The text that this is for.
    fn performance() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md")
    }

    #[test]
    fn docs_committed_equal_the_committed_report() {
        check(&performance()).unwrap();
    }

    #[test]
    fn docs_outside_marks_have_no_figures() {
        let text = read(&performance()).unwrap();
        let units = ["s", "ms", "%", "MB/s", "GB/s", "MiB", "GiB", "times", "files/s", "Gbit/s", "requests"];
        let mut written = true;
        for (number, line) in text.lines().enumerate() {
            let begins = [BEGIN, OF].iter().any(|begin| marked(line, begin).is_some());
            written = (written || line == END) && !begins;
            // What stands in backquotes is code.
            let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            let words: Vec<_> = prose.split_whitespace().collect();
            let figure = words.windows(2).find(|two| {
                let unit = two[1].trim_end_matches(['.', ',', ':', ';', ')']);
                two[0].starts_with(|sign: char| sign.is_ascii_digit()) && units.contains(&unit)
            });
            assert!(!written || figure.is_none(), "docs/performance.md:{}: {figure:?}", number + 1);
        }
    }
}
