//! The name of content: plain BLAKE3, what `b3sum` prints.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Kind};

/// The BLAKE3 hash of some content, 32 bytes.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::Immutable,
    zerocopy::KnownLayout,
    zerocopy::Unaligned,
)]
#[repr(transparent)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let hash = blake3::Hash::from_hex(text)
            .map_err(|e| Error::with(Kind::Invalid, format!("{text:?} is not a digest"), e))?;
        Ok(Self(*hash.as_bytes()))
    }
}

/// Digests as text, for `#[serde(with)]`.
pub mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    use super::Digest;

    /// Writes a digest as its digits.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(digest: &Digest, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(digest)
    }

    /// Reads a digest from its digits.
    ///
    /// # Errors
    /// Where it is none; those of the deserializer.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Digest, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_nothing_equals_b3sum() {
        let text = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Digest::of(b"").to_string(), text);
        assert_eq!(text.parse::<Digest>().expect("hex"), Digest::of(b""));
        assert_eq!("af13".parse::<Digest>().expect_err("short").kind(), Kind::Invalid);
    }
}
