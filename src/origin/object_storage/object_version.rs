//! The version of an object that a snapshot pins.

use crate::blob::WHOLE_MARK;
use crate::origin::SINGLE_FILE_MARK;

/// The identity of an object's content, and how its key follows from its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectVersion {
    /// The identifier of this content of the key.
    pub tag: VersionTag,
    /// Whether the service ignores Range, and sends all of the object.
    pub whole: bool,
    /// Whether the object is the whole source: its key is the prefix itself.
    pub alone: bool,
    /// Whether the object's path is the key with escapes.
    pub escaped: bool,
}

/// The kind of identifier of a key's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VersionTag {
    /// A strong ETag, with quotes.
    ETag(String),
    /// The generation of an object of Google's.
    Generation(u64),
}

/// The word that marks a path with escapes.
const ESCAPED_MARK: &str = "escaped";
/// The prefix of a generation.
const GENERATION_PREFIX: &str = "generation:";

impl ObjectVersion {
    /// Encodes it as it stands in a manifest: words with spaces between them.
    pub(super) fn encode(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.alone.then(|| SINGLE_FILE_MARK.to_owned()));
        words.extend(self.escaped.then(|| ESCAPED_MARK.to_owned()));
        words.push(match &self.tag {
            VersionTag::ETag(etag) => etag.clone(),
            VersionTag::Generation(number) => format!("{GENERATION_PREFIX}{number}"),
        });
        let mark = if self.whole { WHOLE_MARK } else { "" };
        format!("{mark}{}", words.join(" "))
    }

    /// Decodes a version of a manifest; `None` for another origin's.
    pub(super) fn decode(version: &[u8]) -> Option<Self> {
        let version = std::str::from_utf8(version).ok()?;
        let (whole, version) = match version.strip_prefix(WHOLE_MARK) {
            Some(version) => (true, version),
            None => (false, version),
        };
        let mut words = version.split(' ').peekable();
        let alone = words.next_if_eq(&SINGLE_FILE_MARK).is_some();
        let escaped = words.next_if_eq(&ESCAPED_MARK).is_some();
        let word = words.next().filter(|_| words.peek().is_none())?;
        let tag = match word.strip_prefix(GENERATION_PREFIX) {
            Some(number) => VersionTag::Generation(number.parse().ok()?),
            None => word.starts_with('"').then(|| VersionTag::etag(word)).flatten()?,
        };
        Some(Self { tag, whole, alone, escaped })
    }
}

impl VersionTag {
    /// The tag of a strong ETag; not every service writes its quotes in listings.
    pub(super) fn etag(text: &str) -> Option<Self> {
        let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
        let right = !bare.is_empty()
            && bare.bytes().all(|b| b.is_ascii_graphic() && b != b'"')
            && !text.starts_with("W/");
        right.then(|| Self::ETag(format!("\"{bare}\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_version_is_decoded_as_it_was_encoded() {
        for tag in [VersionTag::ETag("\"ab-2\"".into()), VersionTag::Generation(1_712_345_678_901_234)] {
            for bits in 0..8 {
                let (alone, escaped, whole) = (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0);
                let version = ObjectVersion { tag: tag.clone(), whole, alone, escaped };
                assert_eq!(ObjectVersion::decode(version.encode().as_bytes()), Some(version));
            }
        }
        for bad in
            ["", "ab", "alone", "\"a\" b", "W/\"a\"", "1-2-3", "generation:x", "whole", "alone whole \"a\""]
        {
            assert_eq!(ObjectVersion::decode(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn etag_without_quotes_gets_them() {
        let quoted = |text: &str| Some(VersionTag::ETag(text.into()));
        assert_eq!(VersionTag::etag("ab-2"), quoted("\"ab-2\""));
        assert_eq!(VersionTag::etag("\"ab\""), quoted("\"ab\""));
        for bad in ["", "\"\"", "W/\"a\"", "a b", "a\"b"] {
            assert_eq!(VersionTag::etag(bad), None, "{bad}");
        }
    }
}
