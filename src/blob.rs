//! Blobs: immutable content, what every file is a slice of.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;

use crate::block::{self, BLOCK, Check};
use crate::digest::Digest;
use crate::error::{Error, Result};

/// The beginning of the version of a file whose server ignores Range.
pub(crate) const WHOLE_MARK: &str = "whole ";

/// The name of a blob, and of its file in a cache.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The digest of the content.
    Content(Digest),
    /// For content read straight from an origin, whose digest is unknown beforehand: a hash of the origin's
    /// own immutable identity for it. Another domain than content, so the two can never be confused.
    Origin(Digest),
}

impl Key {
    /// The key of what `origin` (scheme, host, bucket) calls `path` in the version `version`: a commit and
    /// object id, a version id, a strong ETag. Whether its server ignores Range is no part of it.
    pub fn origin(origin: &str, path: &[u8], version: &[u8]) -> Self {
        Self::of_parts([origin.as_bytes(), path, without_whole_mark(version)])
    }

    /// The [key](Self::origin) of a file that its origin publishes with the SHA-256 `sha256`. A server may call other bytes
    /// by the same version, so the SHA-256 is a part of it, unless the version has it, as that of a large file of the Hub does.
    pub fn origin_file(origin: &str, path: &[u8], version: &[u8], sha256: Option<&[u8; 32]>) -> Self {
        let has_sha256 =
            |sha256: &[u8; 32]| version.ends_with(blake3::Hash::from_bytes(*sha256).to_hex().as_bytes());
        match sha256 {
            Some(sha256) if !has_sha256(sha256) => {
                Self::of_parts([origin.as_bytes(), path, without_whole_mark(version), sha256])
            }
            _ => Self::origin(origin, path, version),
        }
    }

    fn of_parts<const N: usize>(parts: [&[u8]; N]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("bdnfs 2026-11 origin blob");
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self::Origin(Digest(*hasher.finalize().as_bytes()))
    }
}

/// A version without the mark that its server ignores Range.
fn without_whole_mark(version: &[u8]) -> &[u8] {
    version.strip_prefix(WHOLE_MARK.as_bytes()).unwrap_or(version)
}

impl fmt::Display for Key {
    /// The file name that the blob has in a cache: the digest in hexadecimal, with `o-` before an origin's key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content(digest) => digest.fmt(f),
            Self::Origin(digest) => write!(f, "o-{digest}"),
        }
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.strip_prefix("o-") {
            Some(digest) => digest.parse().map(Self::Origin),
            None => text.parse().map(Self::Content),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A blob as it is known before it is read: how a tier finds it, and how its bytes are verified.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The name.
    pub key: Key,
    /// The length in bytes.
    pub size: u64,
    /// The checks of its blocks, in order, where they are known beforehand; proved by the digest in `key`.
    pub checks: Option<std::sync::Arc<[Check]>>,
    /// Path at its origin, below the source's root, `/` between parts. Empty where no origin has it.
    pub path: Bytes,
    /// The version that its origin pinned, in the origin's own words (an ETag, a version id). Every request is
    /// conditional on it.
    pub version: Bytes,
    /// The SHA-256 of the whole content, where the origin publishes one.
    pub sha256: Option<[u8; 32]>,
    /// The form in which a mirror stores it, where one does.
    pub stored: MirrorLocation,
}

impl fmt::Display for Blob {
    /// Writes the blob's path for messages, or its key where no path is its own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path[..] {
            b"" => write!(f, "blob {}", self.key),
            path => f.write_str(&String::from_utf8_lossy(path)),
        }
    }
}

/// The location and the encoding of a blob in a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorLocation {
    /// The key of its object below its tenant's, UTF-8; empty for the one that follows from its digest.
    pub object_key: Bytes,
    /// The end of each block's zstd frame in the object, as little-endian `u64`; `None` for content as it is.
    pub ends: Option<Bytes>,
}

impl MirrorLocation {
    /// The bytes of the object that hold `blocks` of a blob of `size` bytes; `None` where they can't be told.
    pub fn range(&self, size: u64, blocks: Range<u64>) -> Option<Range<u64>> {
        let Some(ends) = &self.ends else {
            return Some(blocks.start * BLOCK..(blocks.end * BLOCK).min(size));
        };
        let end = |blocks: u64| match blocks.checked_sub(1) {
            None => Some(0),
            Some(last) => {
                let at = usize::try_from(last).ok()?.checked_mul(8)?;
                Some(u64::from_le_bytes(*ends.get(at..)?.first_chunk()?))
            }
        };
        let range = end(blocks.start)?..end(blocks.end)?;
        (range.start < range.end).then_some(range)
    }

    /// The length of the object of a blob of `size` bytes.
    pub fn len(&self, size: u64) -> Option<u64> {
        if size == 0 { Some(0) } else { Some(self.range(size, 0..block::count(size))?.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_an_origin_file_tells_published_sha256_apart() {
        let of = |version: &str, sha256| Key::origin_file("o", b"p", version.as_bytes(), sha256);
        let [one, other] = [&[1; 32], &[2; 32]];
        assert_eq!(of("v", None), Key::origin("o", b"p", b"v"));
        let keys = [of("v", None), of("v", Some(one)), of("v", Some(other))];
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2], "{keys:?}");
        assert_eq!(of("whole v", Some(one)), keys[1]);
        // Content that is in a cache under the SHA-256 in its version keeps its name.
        for version in ["01".repeat(32), format!("file {}", "01".repeat(32))] {
            assert_eq!(of(&version, Some(one)), of(&version, None));
            assert_ne!(of(&version, Some(other)), of(&version, None));
        }
    }
}
