//! Requests to remote services: one client with the engine's timeouts ([`HttpClient`]), the reading of responses
//! ([`response`]) and when to retry ([`retry`]).
//!
//! The errors made here say what the server did, not what was asked of it: the caller adds that ([`Error::context`]). None
//! of them holds a URL, since a query may hold a signature.

mod certificates;
mod response;
mod retry;
mod stall;
mod tls_reason;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use reqwest::dns::Resolve;
use reqwest::header::RANGE;
use reqwest::redirect::Policy;
use reqwest::{Request, Response};
use tokio::time::{Instant, timeout};

pub(crate) use self::response::{
    MAX_ERROR_BODY_BYTES, UnfollowedRedirect, accept, body_of_length, code_of, explain_transport, header,
    innermost, named_region, read, refusal, transport_error,
};
pub(crate) use self::retry::{UnreachableRetry, retry, retry_listing};
pub(crate) use self::stall::send_hedged;
use crate::backoff::jittered;
use crate::error::{Error, Kind, Result};

/// The time in which a connection must be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The time that a server may take until its response begins, at first. Each time that is not enough it is given twice as long, up
/// to the deadline of any operation, so that a server that is always slow is read all the same.
const INITIAL_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const MAX_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which a server may be silent within a body, and before the part of a file that is asked for by [`RANGE`]: as long
/// as the most patient reader waits. The reader of such a part has limits of its own ([`crate::fetch`]). There is no limit on an
/// response as a whole, which may be large and the line slow.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest `Retry-After` that a request waits for. After a longer one it fails: its caller may know another tier.
const MAX_RETRY_AFTER_WAIT: Duration = Duration::from_secs(2);
/// The longest `Retry-After` that a page of a listing waits for: as long as any operation may take.
const MAX_LISTING_RETRY_AFTER_WAIT: Duration = Duration::from_secs(30);
/// The longest `Retry-After` that is obeyed: the longest window of a known rate limit, the Hugging Face Hub's.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// The characters that are percent-encoded in a part of a URL's path (RFC 3986, section 2.3).
pub(crate) const PATH_SEGMENT_ENCODE_SET: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The client of one service. Clones share its connections and the `Retry-After` that the service asked for.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    http: reqwest::Client,
    /// When the service may be asked again.
    retry_at: Arc<Mutex<Option<Instant>>>,
    /// The time that its responses may take to begin.
    response_timeout: Arc<Mutex<Duration>>,
    /// Whether authorities to trust were named.
    authorities_named: bool,
}

impl HttpClient {
    /// Makes a client that trusts the certificates in `authorities` (PEM) beside those of this machine.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where `authorities` holds no certificate.
    pub(crate) fn new(redirects: Policy, authorities: Option<&str>) -> Result<Self> {
        Self::with_resolver(redirects, None, authorities)
    }

    /// Like [`new`](Self::new), with names resolved by `resolver` and not as this machine does.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn with_resolver(
        redirects: Policy,
        resolver: Option<Arc<dyn Resolve>>,
        authorities: Option<&str>,
    ) -> Result<Self> {
        let builder = builder(authorities)?;
        let builder = match resolver {
            Some(resolver) => builder.dns_resolver(resolver),
            None => builder,
        };
        let http = builder
            .user_agent(concat!("bdnfs/", env!("CARGO_PKG_VERSION")))
            .read_timeout(SILENCE_TIMEOUT)
            .redirect(redirects)
            .build()
            .map_err(no_client)?;
        let response_timeout = Arc::new(Mutex::new(INITIAL_RESPONSE_TIMEOUT));
        Ok(Self {
            http,
            retry_at: Arc::default(),
            response_timeout,
            authorities_named: authorities.is_some(),
        })
    }

    /// Sends a request, and makes an error of any response but success.
    pub(crate) async fn send(&self, request: Request) -> Result<Response> {
        accept(self.execute(request).await?).await
    }

    /// Sends a request, and once more after a short `Retry-After`.
    pub(crate) async fn execute(&self, request: Request) -> Result<Response> {
        self.wait_to_retry().await?;
        let second = request.try_clone();
        let response = self.send_once(request).await?;
        let Some(wait) = retry::retry_after(&response) else { return Ok(response) };
        *self.retry_at.lock() = Some(Instant::now() + wait.min(MAX_RETRY_AFTER));
        match second {
            Some(request) if wait <= MAX_RETRY_AFTER_WAIT => {
                self.wait_to_retry().await?;
                self.send_once(request).await
            }
            _ => Ok(response),
        }
    }

    /// Sends a request once.
    async fn send_once(&self, request: Request) -> Result<Response> {
        let bulk = request.headers().contains_key(RANGE);
        let lost = |e: reqwest::Error| explain_transport(&e.without_url(), self.authorities_named);
        let answer = self.http.execute(request);
        if bulk {
            return answer.await.map_err(lost);
        }
        let limit = *self.response_timeout.lock();
        match timeout(limit, answer).await {
            Ok(answer) => answer.map_err(lost),
            Err(_) => {
                let mut next = self.response_timeout.lock();
                *next = next.max((limit * 2).min(MAX_RESPONSE_TIMEOUT));
                Err(silent(limit))
            }
        }
    }

    /// Waits until the service may be asked again, unless that is too long even for a listing: then the next request
    /// fails.
    pub(crate) async fn wait_to_list(&self) {
        let left = self.retry_after_left();
        if left <= MAX_LISTING_RETRY_AFTER_WAIT {
            sleep_spread(left).await;
        }
    }

    /// Returns the time for which the service may not be asked yet.
    fn retry_after_left(&self) -> Duration {
        let retry_at = *self.retry_at.lock();
        retry_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Waits until the service may be asked again, if that is soon.
    async fn wait_to_retry(&self) -> Result<()> {
        let left = self.retry_after_left();
        if left > MAX_RETRY_AFTER_WAIT {
            let text =
                format!("the server asked not to be sent requests for another {} s", left.as_secs() + 1);
            return Err(Error::new(Kind::Unavailable, text));
        }
        if !left.is_zero() {
            sleep_spread(left).await;
        }
        Ok(())
    }
}

/// Sleeps for `wait`, and up to an eighth longer: all nodes that a service has sent away at once would ask it at once again.
async fn sleep_spread(wait: Duration) {
    tokio::time::sleep(wait + jittered(wait / 8)).await;
}

/// Makes the client with which a mirror is read and written: each of its requests may take `limit`.
///
/// # Errors
/// Those of [`HttpClient::new`].
pub(crate) fn mirror_client(authorities: Option<&str>, limit: Duration) -> Result<reqwest::Client> {
    builder(authorities)?.timeout(limit).build().map_err(no_client)
}

/// The settings of every client.
fn builder(authorities: Option<&str>) -> Result<reqwest::ClientBuilder> {
    // Parallel connections are faster for bulk than the streams of one.
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .http1_only()
        // Followed by default, with the headers that hold keys.
        .redirect(Policy::none())
        // It would hand a signature in a query to the target of the redirect.
        .referer(false)
        // A proxy is configured explicitly, not by this machine's environment.
        .no_proxy();
    match authorities {
        Some(pem) => certificates::trust(client, pem),
        None => Ok(client),
    }
}

fn no_client(error: reqwest::Error) -> Error {
    Error::with(Kind::Unsupported, "cannot set up an HTTP client", error)
}

/// The error of a server that was silent for `limit`.
pub(crate) fn silent(limit: Duration) -> Error {
    Error::new(Kind::Timeout, format!("the server did not respond within {} s", limit.as_secs()))
}
