//! When a request is sent again: after a passing failure, and not before the server allows it.

use std::error::Error as _;
use std::time::Duration;

use reqwest::header::{DATE, HeaderName, RETRY_AFTER};
use reqwest::{Response, StatusCode};
use tokio::time::Instant;

use super::response::{ConnectError, DrippingError};
use super::{CONNECT_TIMEOUT, header};
use crate::backoff::{Backoff, entropy};
use crate::error::{Error, Kind, Result};

/// The number of retries of a request after a passing failure.
const RETRY_LIMIT: u32 = 3;
/// The time after which nothing is retried: as much as any operation may take.
const RETRY_DEADLINE: Duration = Duration::from_secs(30);
/// The longest wait before the first retry, and before the last.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(800));

/// The rest of a service's limit of requests, and when it is reset.
const RATE_LIMIT_HEADER: HeaderName = HeaderName::from_static("ratelimit");

/// Retries what a listing asks for after every passing failure, so that a long listing survives it.
pub(crate) async fn retry_listing<T, F: Future<Output = Result<T>>>(send: impl FnMut() -> F) -> Result<T> {
    retry(&[Kind::Unavailable, Kind::Timeout], send).await
}

/// Retries `send` a few times after a failure of the kinds `passing`. After a response that dripped it is retried once: that took
/// all of the time for retries.
pub(crate) async fn retry<T, F: Future<Output = Result<T>>>(
    passing: &[Kind],
    mut send: impl FnMut() -> F,
) -> Result<T> {
    let mut backoff = Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1, entropy());
    let (began, mut has_dripped) = (Instant::now(), false);
    for _ in 0..RETRY_LIMIT {
        let error = match send().await {
            Err(error) if passing.contains(&error.kind()) => error,
            done => return done,
        };
        if began.elapsed() >= retry_deadline(&error) {
            if has_dripped || !is_dripping(&error) {
                return Err(error);
            }
            has_dripped = true;
        }
        tokio::time::sleep(backoff.wait()).await;
    }
    send().await
}

/// Retries what can't reach its server, for as long as [`retry`] would.
pub(crate) struct UnreachableRetry {
    began: Instant,
    backoff: Backoff,
}

impl UnreachableRetry {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), backoff: Backoff::new(RETRY_BACKOFF.0, RETRY_BACKOFF.1, entropy()) }
    }

    /// Waits for the next try; false when the server was given enough time.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.began.elapsed() >= CONNECT_TIMEOUT {
            return false;
        }
        tokio::time::sleep(self.backoff.wait()).await;
        true
    }
}

/// Returns the time for which a request that failed with `error` is retried. A server that can't be reached, or whose name can't be
/// resolved, is given no more time than a connection takes: the next tier is not to wait for it.
fn retry_deadline(error: &Error) -> Duration {
    match error.source() {
        Some(cause) if cause.is::<ConnectError>() => CONNECT_TIMEOUT,
        _ => RETRY_DEADLINE,
    }
}

/// Whether a response had begun, and was given up since it dripped.
fn is_dripping(error: &Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<DrippingError>())
}

/// Returns the time for which a busy server asks to wait: seconds or until a date (RFC 9110, section 10.2.3), or until a limit that
/// is used up is reset.
pub(super) fn retry_after(response: &Response) -> Option<Duration> {
    if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let value = header(response.headers(), &RETRY_AFTER);
    let wait = value.and_then(|value| {
        let until = || {
            let date = chrono::DateTime::parse_from_rfc2822(value).ok()?;
            date.signed_duration_since(server_time(response)?).to_std().ok()
        };
        value.parse().ok().map(Duration::from_secs).or_else(until)
    });
    wait.max(header(response.headers(), &RATE_LIMIT_HEADER).and_then(rate_limit_reset))
}

/// Returns the time until the last of the limits that are used up is reset: `"api";r=12;t=30, "resolvers";r=0;t=57`
/// (draft-ietf-httpapi-ratelimit-headers-09).
fn rate_limit_reset(limits: &str) -> Option<Duration> {
    let reset = |limit: &str| {
        let parameter = |name| limit.split(';').find_map(|p| p.trim().strip_prefix(name)?.parse().ok());
        (parameter("r=") == Some(0)).then(|| parameter("t="))?
    };
    limits.split(',').filter_map(reset).max().map(Duration::from_secs)
}

/// The server's own time, by which it names dates.
fn server_time(response: &Response) -> Option<chrono::DateTime<chrono::FixedOffset>> {
    chrono::DateTime::parse_from_rfc2822(header(response.headers(), &DATE)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the tries of a request that fails so after two seconds.
    async fn tries(error: impl Fn() -> Error) -> u32 {
        let mut tries = 0;
        let send = || {
            tries += 1;
            let error = error();
            async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                Err::<(), _>(error)
            }
        };
        retry_listing(send).await.expect_err("it always fails");
        tries
    }

    #[tokio::test(start_paused = true)]
    async fn retry_of_unreachable_server_ends_within_the_connect_timeout() {
        let lost = || Error::new(Kind::Unavailable, "the connection was lost");
        let unreachable = || Error::with(Kind::Unavailable, "no such name", ConnectError("silence".into()));
        assert_eq!((tries(lost).await, tries(unreachable).await), (4, 2));
    }

    #[test]
    fn rate_limit_used_up_returns_its_reset() {
        let seconds = |text| rate_limit_reset(text).map(|wait| wait.as_secs());
        assert_eq!(seconds(r#""resolvers";r=0;t=57"#), Some(57));
        assert_eq!(seconds(r#""api"; r=0; t=3, "pages";r=9;t=99, "x";t=5;r=0"#), Some(5));
        for none in [r#""api";r=1;t=57"#, r#""api";r=0"#, r#""api";r=0;t=-1"#, "", "57"] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }
}
