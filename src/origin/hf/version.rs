//! What a snapshot pins of a file of the Hub.

/// The identity of a file's content, and how its place follows from its path. The commit stands in the origin's name and
/// not here, so that content which stays the same from one commit to the next is known to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// The SHA-256 of the content of a large file (Git LFS), else git's id of it: 64 or 40 hexadecimal digits.
    pub oid: String,
    /// Whether the file is the whole source.
    pub alone: bool,
}

/// The word that marks a file that is the whole source.
const ALONE: &str = "alone";
/// The number of digits of a SHA-256.
const SHA256: usize = 64;
/// The number of digits of git's SHA-1.
const SHA1: usize = 40;

impl Version {
    /// The version of content that the Hub calls `oid`, if it can be one.
    pub(super) fn new(oid: &str, alone: bool) -> Option<Self> {
        let right = matches!(oid.len(), SHA1 | SHA256) && oid.bytes().all(|b| b.is_ascii_hexdigit());
        right.then(|| Self { oid: oid.to_ascii_lowercase(), alone })
    }

    /// As it stands in a manifest.
    pub(super) fn encode(&self) -> String {
        if self.alone { format!("{ALONE} {}", self.oid) } else { self.oid.clone() }
    }

    pub(super) fn decode(version: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(version).ok()?;
        match text.split_once(' ') {
            Some((ALONE, oid)) => Self::new(oid, true),
            Some(_) => None,
            None => Self::new(text, false),
        }
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
    fn versions_come_back() {
        for (oid, hashed) in
            [("0187f3b09d66cef7911083ad49f890f5a6589589".to_owned(), false), ("ab".repeat(32), true)]
        {
            for alone in [false, true] {
                let version = Version::new(&oid, alone).expect("an id");
                assert_eq!(version.sha256(), hashed.then_some([0xab; 32]));
                assert_eq!(Version::decode(version.encode().as_bytes()), Some(version));
            }
        }
        for bad in
            ["", "ab", "alone", "alone ", "\"a\"", &"g".repeat(40), &format!("lone {}", "a".repeat(40))]
        {
            assert_eq!(Version::decode(bad.as_bytes()), None, "{bad}");
        }
    }
}
