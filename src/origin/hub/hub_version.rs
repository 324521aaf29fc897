//! The version of a file that a snapshot of the Hub pins.

use aws_lc_rs::digest;

use crate::origin::SINGLE_FILE_MARK;

/// The identity of a file's content, and where it lies, which follows from its path. The commit is part of the origin's name and
/// not of the version, so that content which is the same in two commits is known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HubVersion {
    /// The SHA-256 of the content of a large file (Git LFS), else git's id of it: 64 or 40 hexadecimal digits.
    pub oid: String,
    /// Whether the file is the whole source.
    pub alone: bool,
}

/// The number of hexadecimal digits of a SHA-256.
const SHA256_DIGITS: usize = 64;
/// The number of hexadecimal digits of git's SHA-1.
const SHA1_DIGITS: usize = 40;

impl HubVersion {
    /// The version of content that the Hub calls `oid`, if it can be one.
    pub(super) fn new(oid: &str, alone: bool) -> Option<Self> {
        let right =
            matches!(oid.len(), SHA1_DIGITS | SHA256_DIGITS) && oid.bytes().all(|b| b.is_ascii_hexdigit());
        right.then(|| Self { oid: oid.to_ascii_lowercase(), alone })
    }

    /// Encodes it as it stands in a manifest.
    pub(super) fn encode(&self) -> String {
        if self.alone { format!("{SINGLE_FILE_MARK} {}", self.oid) } else { self.oid.clone() }
    }

    /// Decodes a version of a manifest; `None` for another origin's.
    pub(super) fn decode(version: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(version).ok()?;
        match text.split_once(' ') {
            Some((SINGLE_FILE_MARK, oid)) => Self::new(oid, true),
            Some(_) => None,
            None => Self::new(text, false),
        }
    }

    /// Whether `content` is what git's id says; `None` where the identity is a SHA-256, which is compared when the blob is whole.
    pub(super) fn matches_git_id(&self, content: &[u8]) -> Option<bool> {
        let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(format!("blob {}\0", content.len()).as_bytes());
        hash.update(content);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.is_git_id().then(|| hex(hash.finish().as_ref()) == self.oid)
    }

    /// Whether the identity is git's id.
    pub(super) fn is_git_id(&self) -> bool {
        self.oid.len() == SHA1_DIGITS
    }

    /// The SHA-256 of the content, where the identity is one.
    pub(super) fn sha256(&self) -> Option<[u8; 32]> {
        blake3::Hash::from_hex(&self.oid).ok().map(|hash| *hash.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_version_with_a_git_id_matches_only_its_content() {
        // `printf abc | git hash-object --stdin`
        let git = HubVersion::new("f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f", false).expect("an id");
        assert_eq!((git.matches_git_id(b"abc"), git.matches_git_id(b"abd")), (Some(true), Some(false)));
        let sha256 = HubVersion::new(&"ab".repeat(32), false).expect("an id");
        assert_eq!(sha256.matches_git_id(b"abc"), None);
    }

    #[test]
    fn hub_version_is_decoded_as_it_was_encoded() {
        for (oid, hashed) in
            [("0187f3b09d66cef7911083ad49f890f5a6589589".to_owned(), false), ("ab".repeat(32), true)]
        {
            for alone in [false, true] {
                let version = HubVersion::new(&oid, alone).expect("an id");
                assert_eq!(version.sha256(), hashed.then_some([0xab; 32]));
                assert_eq!(HubVersion::decode(version.encode().as_bytes()), Some(version));
            }
        }
        for bad in
            ["", "ab", "alone", "alone ", "\"a\"", &"g".repeat(40), &format!("lone {}", "a".repeat(40))]
        {
            assert_eq!(HubVersion::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
