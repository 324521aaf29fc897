//! What a snapshot pins of an object.

/// The identity of an object's content, and how its key follows from its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// What tells this content of the key from any other.
    pub tag: Tag,
    /// Whether the object is the whole source: its key is the prefix itself.
    pub alone: bool,
    /// Whether its path is the key with escapes.
    pub escaped: bool,
}

/// What a service tells one content of a key from another by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// A strong ETag, with quotes.
    ETag(String),
    /// The generation of an object of Google's.
    Generation(u64),
}

/// The word that marks an object that is the whole source.
const ALONE: &str = "alone";
/// The word that marks a path with escapes.
const ESCAPED: &str = "escaped";
/// What comes before a generation.
const GENERATION: &str = "generation:";

impl Version {
    /// As it stands in a manifest: words with spaces between them.
    pub(super) fn encode(&self) -> String {
        let mut words = Vec::new();
        words.extend(self.alone.then(|| ALONE.to_owned()));
        words.extend(self.escaped.then(|| ESCAPED.to_owned()));
        words.push(match &self.tag {
            Tag::ETag(etag) => etag.clone(),
            Tag::Generation(number) => format!("{GENERATION}{number}"),
        });
        words.join(" ")
    }

    pub(super) fn decode(version: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(version).ok()?.split(' ').peekable();
        let alone = words.next_if_eq(&ALONE).is_some();
        let escaped = words.next_if_eq(&ESCAPED).is_some();
        let word = words.next().filter(|_| words.peek().is_none())?;
        let tag = match word.strip_prefix(GENERATION) {
            Some(number) => Tag::Generation(number.parse().ok()?),
            None => word.starts_with('"').then(|| Tag::etag(word)).flatten()?,
        };
        Some(Self { tag, alone, escaped })
    }
}

impl Tag {
    /// A strong ETag, of which not every service writes the quotes in its listings.
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
    fn versions_come_back() {
        for tag in [Tag::ETag("\"ab-2\"".into()), Tag::Generation(1_712_345_678_901_234)] {
            for (alone, escaped) in [(false, false), (true, false), (false, true), (true, true)] {
                let version = Version { tag: tag.clone(), alone, escaped };
                assert_eq!(Version::decode(version.encode().as_bytes()), Some(version));
            }
        }
        for bad in ["", "ab", "alone", "\"a\" b", "W/\"a\"", "1-2-3", "generation:x"] {
            assert_eq!(Version::decode(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn etags_get_their_quotes() {
        let quoted = |text: &str| Some(Tag::ETag(text.into()));
        assert_eq!(Tag::etag("ab-2"), quoted("\"ab-2\""));
        assert_eq!(Tag::etag("\"ab\""), quoted("\"ab\""));
        for bad in ["", "\"\"", "W/\"a\"", "a b", "a\"b"] {
            assert_eq!(Tag::etag(bad), None, "{bad}");
        }
    }
}
