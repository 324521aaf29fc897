//! Diagnostics of a configuration, each with its place in it.

use std::fmt;

use serde::{Serialize, Serializer};

/// One step into a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PathSegment {
    Key(String),
    Index(usize),
}

/// A place in a document: `weights[0].auth.auth_method`. The empty one is the document itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentPath(Vec<PathSegment>);

impl DocumentPath {
    /// The place of the value that a mapping here has for `key`.
    pub fn key(&self, key: &str) -> Self {
        self.step(PathSegment::Key(key.to_owned()))
    }

    /// The place of the item with this number, from 0, in a list here.
    pub fn index(&self, index: usize) -> Self {
        self.step(PathSegment::Index(index))
    }

    /// The mapping or list that holds it; `None` for the document itself.
    pub fn parent(&self) -> Option<Self> {
        let (_, rest) = self.0.split_last()?;
        Some(Self(rest.to_vec()))
    }

    fn step(&self, step: PathSegment) -> Self {
        Self(self.0.iter().cloned().chain([step]).collect())
    }
}

impl fmt::Display for DocumentPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, step) in self.0.iter().enumerate() {
            match step {
                PathSegment::Index(index) => write!(f, "[{index}]")?,
                PathSegment::Key(key) => {
                    f.write_str(if depth == 0 { "" } else { "." })?;
                    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
                    if !key.is_empty() && key.chars().all(plain) {
                        f.write_str(key)?;
                    } else {
                        write!(f, "{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Serialize for DocumentPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration can't be used like this.
    Reject,
    /// The text is accepted, but likely not what was meant.
    Warning,
    /// The text is accepted, with a remark.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reject => "reject",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A remark on one place of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The place that it is about.
    pub place: DocumentPath,
    /// The severity.
    pub verdict: Severity,
    /// The problem and its remedy, in one line and without any secret.
    pub text: String,
}

/// All diagnostics of a document, in the order in which they were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics(Vec<Diagnostic>);

impl Diagnostics {
    /// Adds a reject.
    pub fn reject(&mut self, place: &DocumentPath, text: impl Into<String>) {
        self.add(place, Severity::Reject, text);
    }

    /// Adds a warning.
    pub fn warn(&mut self, place: &DocumentPath, text: impl Into<String>) {
        self.add(place, Severity::Warning, text);
    }

    /// Adds a note.
    pub fn note(&mut self, place: &DocumentPath, text: impl Into<String>) {
        self.add(place, Severity::Note, text);
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.0.iter()
    }

    /// Returns the number of rejects.
    pub fn rejects(&self) -> usize {
        self.0.iter().filter(|f| f.verdict == Severity::Reject).count()
    }

    fn add(&mut self, place: &DocumentPath, verdict: Severity, text: impl Into<String>) {
        self.0.push(Diagnostic { place: place.clone(), verdict, text: text.into() });
    }
}

impl IntoIterator for Diagnostics {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_path_is_written_like_code() {
        let place = DocumentPath::default().key("weights").index(3).key("auth");
        assert_eq!(place.to_string(), "weights[3].auth");
        assert_eq!(place.key("a b\n").to_string(), r#"weights[3].auth."a b\n""#);
        assert_eq!(place.parent(), Some(DocumentPath::default().key("weights").index(3)));
        assert_eq!(DocumentPath::default().parent(), None);
    }
}
