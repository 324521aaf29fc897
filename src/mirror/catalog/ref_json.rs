//! A ref as text: JSON whose last key, `check`, is the digest of all before it.
//!
//! A ref is the one thing in a mirror that is found by a name that its content does not follow from. What it points to proves
//! itself; but one that says by a flipped bit that it was not removed, or that it was listed a thousand years from now, would
//! be believed for ever.

use crate::digest::Digest;

use super::Ref;

/// What stands before the check, and behind it.
const CHECK_PREFIX: &str = ",\n  \"check\": \"";
const CHECK_SUFFIX: &str = "\"\n}\n";
/// How the last line but one begins where there is no check: earlier versions wrote none.
const TOOL_PREFIX: &str = "\n  \"tool\": \"";

/// The text of a ref.
///
/// # Errors
/// None but what `serde_json` makes of a ref that has no text.
pub(super) fn write(found: &Ref) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_string_pretty(found)?;
    text.truncate(text.trim_end_matches("\n}").len());
    let check = Digest::of(text.as_bytes());
    text.extend([CHECK_PREFIX, &check.to_string(), CHECK_SUFFIX]);
    Ok(text.into_bytes())
}

/// The ref that `text` is; else what is wrong with it.
pub(super) fn read(text: &[u8]) -> Result<Ref, String> {
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    match text.strip_suffix(CHECK_SUFFIX).and_then(|text| text.rsplit_once(CHECK_PREFIX)) {
        Some((all, check)) if Digest::of(all.as_bytes()).to_string() == check => {}
        None if text.rfind(TOOL_PREFIX).is_some_and(|last| text[last + 1..].lines().count() == 2) => {}
        _ => return Err("its check is another one".into()),
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLIER: &str = concat!(
        "{\n  \"source\": \"s3://b\",\n  \"identity\": \"s3://b\",\n  \"resolved\": \"s3://b\",\n  \"allow\": null,\n",
        "  \"ignore\": [\n    \"tool\"\n  ],\n  \"removed\": true,\n",
        "  \"manifest\": \"6b3e79eae804f1c3b572af15b88d928b0c60dafde2b78d06882fdcc765c685cb\",\n",
        "  \"listing\": \"eb8e17d562779bdc4f5f6877f1b8520f91e75e7458ff68247cd9044b552e2368\",\n",
        "  \"files\": 4,\n  \"bytes\": 9,\n  \"blobs\": 2,\n  \"stored\": 3,\n  \"listed\": \"2026-11-21T04:03:29.348234427Z\",\n",
        "  \"took\": 0.5,\n  \"tool\": \"0.1.0\"\n}\n",
    );

    #[test]
    fn ref_check_is_the_digest_of_all_before_it() {
        let found = read(EARLIER.as_bytes()).expect("earlier versions' are read");
        let written = String::from_utf8(write(&found).expect("text")).expect("UTF-8");
        let all = EARLIER.strip_suffix("\n}\n").expect("an object");
        let check = blake3::hash(all.as_bytes()).to_hex();
        assert_eq!(written, format!("{all},\n  \"check\": \"{check}\"\n}}\n"));
        assert_eq!(read(written.as_bytes()).expect("its own"), found);
    }

    #[test]
    fn damaged_ref_is_refused() {
        let written = write(&read(EARLIER.as_bytes()).expect("good")).expect("text");
        for at in 0..written.len() {
            for bit in 0..8 {
                let mut flipped = written.clone();
                flipped[at] ^= 1 << bit;
                read(&flipped).expect_err("a flipped bit");
            }
            read(&written[..at]).expect_err("a part");
        }
        let all = EARLIER.strip_suffix("\n}\n").expect("an object");
        read(format!("{all},\n  \"check\": \"\"\n}}\n").as_bytes()).expect_err("no check");
        read(format!("{all},\n  \"chick\": \"\"\n}}\n").as_bytes()).expect_err("another last key");
    }
}
