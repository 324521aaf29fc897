//! Signed addresses of content, kept until they expire, so that a file is resolved once and not once a range.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use chrono::NaiveDateTime;
use parking_lot::Mutex;
use url::Url;

use crate::blob::Key;

/// How many are kept: the files that are read at the same time, and more. Each has one or two KiB.
const MOST: usize = 1024;
/// How long one is used that tells no time, and the longest that any is; the Hub's own are good for an hour.
const UNTOLD: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(3600);
/// Not used any more so long before it expires: a request has to reach the storage, whose clock may differ a little.
const MARGIN: Duration = Duration::from_secs(30);

/// The addresses of blobs.
#[derive(Default)]
pub(super) struct Signed(Mutex<HashMap<Key, (Url, SystemTime)>>);

impl Signed {
    /// The address of a blob, if it is known and good at the time `now`.
    pub(super) fn get(&self, key: &Key, now: SystemTime) -> Option<Url> {
        let known = self.0.lock();
        known.get(key).filter(|(_, end)| *end > now).map(|(url, _)| url.clone())
    }

    /// Keeps the address of a blob, in the place of the one that expires first where there is no other.
    pub(super) fn keep(&self, key: Key, url: &Url, now: SystemTime) {
        let end = expiry(url, now);
        if end <= now {
            return;
        }
        let mut known = self.0.lock();
        if known.len() >= MOST {
            known.retain(|_, (_, end)| *end > now);
        }
        if known.len() >= MOST
            && let Some(first) = known.iter().min_by_key(|(_, (_, end))| *end).map(|(key, _)| *key)
        {
            known.remove(&first);
        }
        known.insert(key, (url.clone(), end));
    }

    /// Forgets that `url` is the address of a blob. Another one, which somebody has learnt since, stays.
    pub(super) fn forget(&self, key: &Key, url: &Url) {
        let mut known = self.0.lock();
        if known.get(key).is_some_and(|(known, _)| known == url) {
            known.remove(key);
        }
    }
}

impl fmt::Debug for Signed {
    /// Without the addresses, which are as good as a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signed")
    }
}

/// Until when `url` is used: what its signature says, in the words of CloudFront or of S3.
fn expiry(url: &Url, now: SystemTime) -> SystemTime {
    let text = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value);
    let seconds = |name: &str| text(name)?.parse().ok().map(Duration::from_secs);
    let presigned = || {
        let date = NaiveDateTime::parse_from_str(&text("X-Amz-Date")?, "%Y%m%dT%H%M%SZ").ok()?;
        SystemTime::from(date.and_utc()).checked_add(seconds("X-Amz-Expires")?)
    };
    let told = seconds("Expires").and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)).or_else(presigned);
    told.map_or(now + UNTOLD, |end| end.checked_sub(MARGIN).unwrap_or(now).min(now + LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(seconds: u64) -> SystemTime {
        NOW + Duration::from_secs(seconds)
    }

    fn url(query: &str) -> Url {
        format!("https://h/x?{query}").parse().expect("URL")
    }

    #[test]
    fn signatures_tell_their_end() {
        for (query, end) in [
            ("Expires=1000&Signature=x", 970),
            ("Expires=30&Signature=x", 0),
            ("X-Amz-Date=19700101T000100Z&X-Amz-Expires=900&X-Amz-Signature=x", 930),
            ("Expires=99999999999", 3600),
            ("Expires=soon", 600),
            ("", 600),
        ] {
            assert_eq!(expiry(&url(query), NOW), at(end), "{query}");
        }
    }

    #[test]
    fn the_memory_is_short() {
        let (signed, key) = (Signed::default(), |n: usize| Key::Content(Digest::of(&n.to_le_bytes())));
        for number in 0..MOST + 9 {
            signed.keep(key(number), &url(&format!("Expires={}", 1000 + number)), NOW);
        }
        assert_eq!(signed.0.lock().len(), MOST);
        assert_eq!(signed.get(&key(0), NOW), None, "the first to expire made room");
        let last = url(&format!("Expires={}", 1000 + MOST));
        assert_eq!(signed.get(&key(MOST), NOW), Some(last.clone()));
        assert_eq!(signed.get(&key(MOST), at(5000)), None, "expired");
        signed.forget(&key(MOST), &url("another"));
        assert!(signed.get(&key(MOST), NOW).is_some());
        signed.forget(&key(MOST), &last);
        assert_eq!(signed.get(&key(MOST), NOW), None);
        assert!(!format!("{signed:?}").contains("Expires"));
    }
}
