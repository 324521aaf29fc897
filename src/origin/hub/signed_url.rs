//! Signed URLs, kept until they expire, so that a file is located once and not once for each range.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use chrono::NaiveDateTime;
use moka::Expiry;
use moka::future::Cache;
use moka::ops::compute::Op;
use tokio::time::timeout;
use url::Url;

use crate::blob::Key;
use crate::error::{Error, Result};

/// The number of locations that are kept: the files that are read at the same time, and more. Each takes one or two KiB.
const MAX_SIGNED_URLS: u64 = 1024;
/// The time for which a URL is used that names no expiry.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(600);
/// The longest that any URL is used; the Hub's own are valid for an hour.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);
/// The time before its expiry from which on a URL is not used any more: a request has to reach the storage, whose clock may differ
/// a little.
const EXPIRY_MARGIN: Duration = Duration::from_secs(30);
/// The time that a request waits for another one to locate the same blob. It is as long as a fetch waits before it sends a second
/// request: that would otherwise wait for the one that it is to replace.
const LOCATE_TIMEOUT: Duration = Duration::from_secs(5);

/// The location of a file's content.
#[derive(Clone)]
pub(super) enum ContentLocation {
    /// The Hub sends it itself.
    Hub,
    /// At a signed URL in the storage behind the Hub.
    Storage(Url),
}

/// The locations of blobs. However many requests need one that is unknown, it is asked for once.
pub(super) struct LocationCache(Cache<Key, ContentLocation>);

impl Default for LocationCache {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_SIGNED_URLS).expire_after(UrlExpiry).build())
    }
}

impl LocationCache {
    /// Gets the location of a blob, by `locate` where it is unknown or has expired. While one request does so, the others
    /// for that blob wait for it, until it takes too long.
    ///
    /// # Errors
    /// Those of `locate`, for all that waited.
    pub(super) async fn get_or_locate(
        &self,
        key: Key,
        locate: impl Future<Output = Result<ContentLocation>>,
    ) -> Result<ContentLocation> {
        // Whether it is this request that locates, and not another one.
        let locates = AtomicBool::new(false);
        let mut locate = pin!(async {
            locates.store(true, Relaxed);
            locate.await
        });
        let shared = async {
            let mut shared = pin!(self.0.try_get_with(key, locate.as_mut()));
            match timeout(LOCATE_TIMEOUT, shared.as_mut()).await {
                Err(_) if locates.load(Relaxed) => Some(shared.await),
                waited => waited.ok(),
            }
        };
        if let Some(location) = shared.await {
            return location.map_err(|e: Arc<Error>| e.share());
        }
        let location = locate.await?;
        self.0.insert(key, location.clone()).await;
        Ok(location)
    }

    /// Forgets that a blob is at `url`. Another location, which a request has learnt since, stays.
    pub(super) async fn forget(&self, key: Key, url: &Url) {
        let forget = |entry: Option<moka::Entry<_, _>>| {
            let is_it = entry.is_some_and(
                |entry| matches!(entry.value(), ContentLocation::Storage(known) if known == url),
            );
            std::future::ready(if is_it { Op::Remove } else { Op::Nop })
        };
        self.0.entry(key).and_compute_with(forget).await;
    }

    /// Forgets where a blob is, whatever was learnt.
    pub(super) async fn remove(&self, key: Key) {
        self.0.invalidate(&key).await;
    }
}

impl fmt::Debug for LocationCache {
    /// Without the URLs, which are as good as a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocationCache")
    }
}

/// Keeps each location as long as its URL is valid.
struct UrlExpiry;

impl Expiry<Key, ContentLocation> for UrlExpiry {
    fn expire_after_create(&self, _: &Key, location: &ContentLocation, _: Instant) -> Option<Duration> {
        Some(match location {
            ContentLocation::Hub => DEFAULT_LIFETIME,
            ContentLocation::Storage(url) => {
                let now = SystemTime::now();
                url_expiry(url, now).duration_since(now).unwrap_or_default()
            }
        })
    }
}

/// The time until which `url` is used: what its signature says, as CloudFront or S3 writes it.
fn url_expiry(url: &Url, now: SystemTime) -> SystemTime {
    let text = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value);
    let seconds = |name: &str| text(name)?.parse().ok().map(Duration::from_secs);
    let presigned = || {
        let date = NaiveDateTime::parse_from_str(&text("X-Amz-Date")?, "%Y%m%dT%H%M%SZ").ok()?;
        SystemTime::from(date.and_utc()).checked_add(seconds("X-Amz-Expires")?)
    };
    let end = seconds("Expires").and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)).or_else(presigned);
    end.map_or(now + DEFAULT_LIFETIME, |end| {
        end.checked_sub(EXPIRY_MARGIN).unwrap_or(now).min(now + MAX_LIFETIME)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;

    use super::*;
    use crate::digest::Digest;
    use crate::error::Kind;

    fn url(query: &str) -> Url {
        format!("https://h/x?{query}").parse().expect("URL")
    }

    #[test]
    fn url_expiry_is_that_of_the_signature() {
        let now = SystemTime::UNIX_EPOCH;
        for (query, end) in [
            ("Expires=1000&Signature=x", 970),
            ("Expires=30&Signature=x", 0),
            ("X-Amz-Date=19700101T000100Z&X-Amz-Expires=900&X-Amz-Signature=x", 930),
            ("Expires=99999999999", 3600),
            ("Expires=soon", 600),
            ("", 600),
        ] {
            assert_eq!(url_expiry(&url(query), now), now + Duration::from_secs(end), "{query}");
        }
    }

    #[tokio::test]
    async fn location_needed_by_many_requests_is_located_once_until_forgotten() {
        let (locations, asked) = (&LocationCache::default(), &AtomicUsize::new(0));
        let key = Key::Content(Digest::of(b"x"));
        let get = |answer: Result<&'static str>| async move {
            let locate = async {
                asked.fetch_add(1, Relaxed);
                tokio::task::yield_now().await;
                answer.map(|query| ContentLocation::Storage(url(query)))
            };
            match locations.get_or_locate(key, locate).await {
                Ok(ContentLocation::Storage(url)) => Ok(url),
                Ok(ContentLocation::Hub) => panic!("not at the Hub"),
                Err(error) => Err(error.kind()),
            }
        };
        let busy = || Err(Error::new(Kind::Unavailable, "busy"));
        let all = join_all((0..20).map(|_| get(busy()))).await;
        assert_eq!((all, asked.swap(0, Relaxed)), (vec![Err(Kind::Unavailable); 20], 1));
        let all = join_all((0..20).map(|_| get(Ok("a")))).await;
        assert_eq!((all, asked.swap(0, Relaxed)), (vec![Ok(url("a")); 20], 1));
        locations.forget(key, &url("another")).await;
        assert_eq!(get(Ok("b")).await, Ok(url("a")), "still known");
        locations.forget(key, &url("a")).await;
        assert_eq!(get(Ok("Expires=30")).await, Ok(url("Expires=30")));
        assert_eq!(get(Ok("c")).await, Ok(url("c")), "the one before has expired");
        locations.remove(key).await;
        assert_eq!(get(Ok("d")).await, Ok(url("d")));
        assert!(!format!("{locations:?}").contains("https"));
    }

    #[tokio::test(start_paused = true)]
    async fn location_that_another_request_waits_for_in_vain_is_located_anew() {
        let (locations, key) = (&LocationCache::default(), Key::Content(Digest::of(b"x")));
        let located = |query: &'static str, seconds| async move {
            let locate = async {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(ContentLocation::Storage(url(query)))
            };
            match locations.get_or_locate(key, locate).await {
                Ok(ContentLocation::Storage(url)) => url,
                _ => panic!("not located"),
            }
        };
        let begin = tokio::time::Instant::now();
        let slow = async {
            assert_eq!(located("slow", 12).await, url("slow"), "its own answer, however late");
            assert_eq!(begin.elapsed(), Duration::from_secs(12));
        };
        let second = async {
            assert_eq!(located("second", 1).await, url("second"));
            assert_eq!(begin.elapsed(), LOCATE_TIMEOUT + Duration::from_secs(1));
            assert_eq!(located("third", 1).await, url("second"), "kept");
        };
        tokio::join!(slow, second);
    }
}
