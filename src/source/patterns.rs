//! Patterns that select files of a source.

use std::fmt;

use super::glob::{Glob, Unit, units};
use crate::error::{Error, Kind, Result};

/// The longest pattern, in bytes: the longest path is shorter.
const MAX_PATTERN_BYTES: usize = 4096;

/// The selection of a source's files: patterns with the meaning of Python's `fnmatch.fnmatchcase`, put together as
/// `huggingface_hub` does it. `*` crosses `/`, case counts, `dir/` means all below `dir`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    allow: Option<Vec<Glob>>,
    ignore: Vec<Glob>,
}

impl Patterns {
    /// Patterns that select what one of `allow` matches (all, where it is empty) and none of `ignore` does.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a pattern that is longer than any path.
    pub fn new(allow: &[String], ignore: &[String]) -> Result<Self> {
        Self::filter(Some(allow).filter(|a| !a.is_empty()), ignore)
    }

    /// Patterns in which an empty list of `allow` allows nothing; `None` allows all.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn filter(allow: Option<&[String]>, ignore: &[String]) -> Result<Self> {
        Ok(Self { allow: allow.map(globs).transpose()?, ignore: globs(ignore)? })
    }

    /// Whether every file is wanted, whatever its name.
    pub fn all(&self) -> bool {
        self.allow.is_none() && self.ignore.is_empty()
    }

    /// Whether the file at `path` is wanted.
    pub fn select(&self, path: &[u8]) -> bool {
        if self.all() {
            return true;
        }
        let name = units(path);
        self.allow.as_ref().is_none_or(|allow| allow.iter().any(|g| g.matches(&name)))
            && !self.ignore.iter().any(|g| g.matches(&name))
    }

    /// Whether a file below the directory at `path` may be wanted; false only if none is.
    pub(crate) fn may_select_below(&self, path: &[u8]) -> bool {
        let prefix = units(&[path, b"/"].concat());
        self.allow.as_ref().is_none_or(|allow| allow.iter().any(|g| g.may_match_below(&prefix)))
            && !self.ignore.iter().any(|g| g.covers(&prefix))
    }

    /// The patterns as they were given: to allow, where any were, and to ignore.
    pub fn texts(&self) -> (Option<Vec<String>>, Vec<String>) {
        let texts = |globs: &[Glob]| globs.iter().map(|glob| glob.text().to_owned()).collect();
        (self.allow.as_deref().map(texts), texts(&self.ignore))
    }

    /// All patterns, those that allow first.
    fn globs(&self) -> impl Iterator<Item = &Glob> {
        self.allow.iter().flatten().chain(&self.ignore)
    }
}

fn globs(texts: &[String]) -> Result<Vec<Glob>> {
    if let Some(long) = texts.iter().find(|t| t.len() > MAX_PATTERN_BYTES) {
        let start: String = long.chars().take(40).collect();
        let len = long.len();
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "the pattern {start:?}... has {len} bytes; the longest that can match has {MAX_PATTERN_BYTES}"
            ),
        ));
    }
    Ok(texts.iter().map(|t| Glob::new(t)).collect())
}

impl fmt::Display for Patterns {
    /// For messages: `allow "*.json", "onnx/"; ignore "*.bin"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |globs: &[Glob]| globs.iter().map(|g| format!("{:?}", g.text())).collect::<Vec<_>>().join(", ");
        match (&self.allow, &self.ignore[..]) {
            (None, []) => f.write_str("all"),
            (None, ignore) => write!(f, "ignore {}", list(ignore)),
            (Some(allow), ignore) => {
                f.write_str(&if allow.is_empty() {
                    "allow nothing".into()
                } else {
                    format!("allow {}", list(allow))
                })?;
                if ignore.is_empty() { Ok(()) } else { write!(f, "; ignore {}", list(ignore)) }
            }
        }
    }
}

/// Patterns in use, which remember those of them that have matched anything.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    patterns: Patterns,
    /// The patterns that have matched nothing so far, by their place in [`Patterns::globs`].
    idle: Vec<usize>,
}

impl Selection {
    /// A selection by `patterns` that has seen nothing yet.
    pub(crate) fn new(patterns: Patterns) -> Self {
        let idle = (0..patterns.globs().count()).collect();
        Self { patterns, idle }
    }

    /// Whether the file at `path` is wanted.
    pub(crate) fn select(&mut self, path: &[u8]) -> bool {
        if !self.idle.is_empty() {
            self.note(&units(path));
        }
        self.patterns.select(path)
    }

    fn note(&mut self, name: &[Unit]) {
        let globs: Vec<&Glob> = self.patterns.globs().collect();
        self.idle.retain(|i| !globs[*i].matches(name));
    }

    /// The patterns that have matched no path yet: worth a warning, for they are likely misspelt.
    pub(crate) fn unmatched(&self) -> Vec<&str> {
        let globs: Vec<&Glob> = self.patterns.globs().collect();
        self.idle.iter().map(|i| globs[*i].text()).collect()
    }

    /// The patterns that select.
    pub(crate) fn patterns(&self) -> &Patterns {
        &self.patterns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn list(value: &Value) -> Option<Vec<String>> {
        match value {
            Value::Null => None,
            Value::String(one) => Some(vec![one.clone()]),
            many => Some(serde_json::from_value(many.clone()).expect("strings")),
        }
    }

    #[test]
    fn patterns_select_what_huggingface_hub_selects() {
        let vectors: Value =
            serde_json::from_str(include_str!("testdata/fnmatch_filter_repo_objects.json")).expect("JSON");
        let files = list(&vectors["files"]).expect("files");
        let cases = vectors["cases"].as_array().expect("cases");
        assert!(cases.len() > 30);
        for case in cases {
            let allow = list(&case["allow_patterns"]);
            let ignore = list(&case["ignore_patterns"]).unwrap_or_default();
            let patterns = Patterns::filter(allow.as_deref(), &ignore).expect("patterns");
            let selected: Vec<_> = files.iter().filter(|f| patterns.select(f.as_bytes())).cloned().collect();
            assert_eq!(selected, list(&case["selected"]).expect("selected"), "{}", case["name"]);
        }
    }

    /// Single patterns, odd sets most of all, each with the places of the names that it selects.
    #[test]
    fn single_pattern_selects_what_huggingface_hub_selects() {
        let vectors: Value = serde_json::from_str(include_str!("testdata/fnmatch_sets.json")).expect("JSON");
        let names = list(&vectors["names"]).expect("names");
        let cases: Vec<(String, Vec<usize>)> =
            serde_json::from_value(vectors["cases"].clone()).expect("cases");
        assert!(cases.len() > 1000);
        for (pattern, expected) in cases {
            let patterns = Patterns::new(std::slice::from_ref(&pattern), &[]).expect("patterns");
            let selected: Vec<_> =
                (0..names.len()).filter(|i| patterns.select(names[*i].as_bytes())).collect();
            assert_eq!(selected, expected, "{pattern}");
        }
    }

    #[test]
    fn directory_is_passed_over_only_where_nothing_below_it_is_wanted() {
        let may_select = |allow: &[&str], ignore: &[&str], path: &str| {
            let texts = |t: &[&str]| t.iter().map(|s| s.to_string()).collect::<Vec<_>>();
            let patterns = Patterns::new(&texts(allow), &texts(ignore)).expect("patterns");
            patterns.may_select_below(path.as_bytes())
        };
        for ignore in ["private/", "private/*", "priv*", "*", "p?ivate/*"] {
            assert!(!may_select(&[], &[ignore], "private"), "{ignore}");
        }
        for ignore in ["private", "private/a*", "private/*.bin", "private2/*", "*.bin"] {
            assert!(may_select(&[], &[ignore], "private"), "{ignore}");
        }
        for allow in ["public/*", "private", "private/", "p[!r]*"] {
            assert_eq!(may_select(&[allow], &[], "private"), allow == "private/", "{allow}");
        }
        assert!(may_select(&["*.json"], &["private/x*"], "private"));
    }

    #[test]
    fn pattern_that_matched_nothing_is_reported() {
        let texts = |t: &[&str]| t.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let patterns =
            Patterns::new(&texts(&["*.json", "onxx/"]), &texts(&["*.bin", "a*"])).expect("patterns");
        assert_eq!(patterns.to_string(), r#"allow "*.json", "onxx/"; ignore "*.bin", "a*""#);
        let mut selection = Selection::new(patterns);
        assert!(selection.select(b"config.json") && !selection.select(b"a.json") && !selection.select(b"x"));
        assert_eq!(selection.unmatched(), ["onxx/", "*.bin"]);
        assert!(Patterns::new(&[], &[]).expect("none").all());
        assert_eq!(Patterns::new(&["*".repeat(5000)], &[]).expect_err("long").kind(), Kind::Invalid);
    }
}
