//! Validators: what identifies a version of a file on a web server.

use reqwest::header::{ETAG, HeaderMap, HeaderName, IF_MATCH, IF_UNMODIFIED_SINCE, LAST_MODIFIED};

use crate::blob::WHOLE_MARK;
use crate::http_client::header;

/// The prefix of a weak ETag (RFC 9110, section 8.8.3).
const WEAK_MARK: &str = "W/";

/// The best identity of a file's content that its server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Validator {
    /// A strong ETag, with its quotes (RFC 9110, section 8.8.3).
    Etag(String),
    /// The time of the last change, as the server writes it, and a weak ETag's opaque tag, where it sends one. Two changes within a
    /// second look the same, unless that tag changes.
    Modified(String, Option<String>),
    /// The SHA-256 in an index, in hexadecimal. No request can be conditional on it; the whole content is checked against
    /// it.
    Sha256(String),
    /// No identity, only a number that the listing made up: the user allows reading a file that may change meanwhile.
    Unpinned(String),
}

impl Validator {
    /// The identity in the headers of a response.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let sent = header(headers, &ETAG);
        let modified = || {
            let weak = sent.and_then(|etag| etag.strip_prefix(WEAK_MARK)).map(str::to_owned);
            header(headers, &LAST_MODIFIED).map(|date| Self::Modified(date.into(), weak))
        };
        sent.and_then(Self::etag).or_else(modified)
    }

    /// An ETag, if it is a strong one: a weak one may stay the same when bytes change.
    pub(super) fn etag(text: &str) -> Option<Self> {
        let strong = text.len() >= 2 && text.starts_with('"') && text.ends_with('"');
        strong.then(|| Self::Etag(text.into()))
    }

    /// Encodes it as the version that a snapshot pins.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Etag(etag) => format!("etag {etag}"),
            Self::Modified(date, None) => format!("modified {date}"),
            Self::Modified(date, Some(weak)) => format!("modified {date} {WEAK_MARK}{weak}"),
            Self::Sha256(hex) => format!("sha256 {hex}"),
            Self::Unpinned(listing) => format!("unpinned {listing}"),
        }
    }

    /// Decodes a version that a snapshot pinned; `None` for another origin's.
    pub(super) fn decode(version: &[u8]) -> Option<Self> {
        let version = version.strip_prefix(WHOLE_MARK.as_bytes()).unwrap_or(version);
        let (kind, value) = std::str::from_utf8(version).ok()?.split_once(' ')?;
        match kind {
            "etag" => Self::etag(value),
            "modified" => Some(match value.split_once(&format!(" {WEAK_MARK}")) {
                Some((date, weak)) => Self::Modified(date.into(), Some(weak.into())),
                None => Self::Modified(value.into(), None),
            }),
            "sha256" => Some(Self::Sha256(value.into())),
            "unpinned" => Some(Self::Unpinned(value.into())),
            _ => None,
        }
    }

    /// The header that makes a request conditional on this version.
    pub(super) fn condition(&self) -> Option<(HeaderName, &str)> {
        match self {
            Self::Etag(etag) => Some((IF_MATCH, etag)),
            Self::Modified(date, _) => Some((IF_UNMODIFIED_SINCE, date)),
            Self::Sha256(_) | Self::Unpinned(_) => None,
        }
    }

    /// Whether a response is of this version, as far as its headers say. Not every server obeys conditions.
    pub(super) fn matches(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Etag(etag) => header(headers, &ETAG) == Some(etag),
            Self::Modified(date, weak) => {
                // A weak tag becomes a strong one when the file has been left alone for a second (Apache).
                let sent = header(headers, &ETAG).map(|etag| etag.strip_prefix(WEAK_MARK).unwrap_or(etag));
                let same_tag = weak.is_none() || sent.is_none() || sent == weak.as_deref();
                same_tag && header(headers, &LAST_MODIFIED) == Some(date)
            }
            Self::Sha256(_) | Self::Unpinned(_) => true,
        }
    }

    /// Whether two responses of one moment, of which these are the identities, are of different versions.
    pub(super) fn contradicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Etag(one), Self::Etag(other)) => one != other,
            (Self::Modified(one, weak), Self::Modified(other, other_weak)) => {
                one != other || weak.is_some() && other_weak.is_some() && weak != other_weak
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn validator_is_decoded_as_it_was_encoded_and_weak_etags_are_refused() {
        let all = [
            r#"etag "a b""#,
            "modified Sun, 06 Nov 1994 08:49:37 GMT",
            r#"modified Sun, 06 Nov 1994 08:49:37 GMT W/"a b""#,
            "sha256 00ff",
            "unpinned 7f",
        ];
        for text in all {
            let validator = Validator::decode(text.as_bytes()).expect(text);
            assert_eq!(validator.encode(), text);
        }
        for bad in ["", "etag", "etag W/\"x\"", "etag x", "1-2-3", "\"x\""] {
            assert_eq!(Validator::decode(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn weak_etag_that_changes_within_a_second_is_another_version() {
        const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        let headers = |etag: Option<&'static str>| {
            let etag = etag.map(|etag| (ETAG, HeaderValue::from_static(etag)));
            etag.into_iter().chain([(LAST_MODIFIED, HeaderValue::from_static(DATE))]).collect::<HeaderMap>()
        };
        let pinned = Validator::of(&headers(Some("W/\"a\""))).expect("a date");
        assert_eq!(pinned, Validator::Modified(DATE.into(), Some("\"a\"".into())));
        for same in [Some("W/\"a\""), Some("\"a\""), None] {
            assert!(pinned.matches(&headers(same)), "{same:?}");
        }
        assert!(!pinned.matches(&headers(Some("W/\"b\""))));
        // An earlier bdnfs pinned the date alone.
        assert!(Validator::Modified(DATE.into(), None).matches(&headers(Some("W/\"b\""))));
    }
}
