//! JSON whose last key, `check`, is the digest of all before it.
//!
//! Refs and entries of the index are found by names that their content does not follow from. What they point to proves
//! itself; but one that says by a flipped bit that it was not removed, or that it was listed a thousand years from now, would
//! be believed for ever.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::digest::Digest;

/// The text before the check, and behind it.
const CHECK_PREFIX: &str = ",\n  \"check\": \"";
const CHECK_SUFFIX: &str = "\"\n}\n";

/// The text of a value that is a JSON object.
///
/// # Errors
/// None but what `serde_json` makes of a value that has no text.
pub(super) fn write(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.truncate(text.trim_end_matches("\n}").len());
    let check = Digest::of(text.as_bytes());
    text.extend([CHECK_PREFIX, &check.to_string(), CHECK_SUFFIX]);
    Ok(text.into_bytes())
}

/// The value that `text` is; else what is wrong with it. One without a check is taken where `may_lack_check` says so.
pub(super) fn read<T: DeserializeOwned>(
    text: &[u8],
    may_lack_check: impl FnOnce(&str) -> bool,
) -> Result<T, String> {
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    match text.strip_suffix(CHECK_SUFFIX).and_then(|text| text.rsplit_once(CHECK_PREFIX)) {
        Some((all, check)) if Digest::of(all.as_bytes()).to_string() == check => {}
        None if may_lack_check(text) => {}
        _ => return Err("checksum mismatch".into()),
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}
