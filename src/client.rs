//! Requests to remote services: one client with the house's time limits, and one reading of answers.
//!
//! The errors made here say what the server did, not what was asked of it: that the caller adds
//! ([`Error::within`]). None of them holds a URL, since a query may hold a signature.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Request, Response, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::tier::Body;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a server may be silent: before the first byte of an answer, and between any two pieces of it. There is no
/// limit on an answer as a whole, which may be large and the line slow.
const SILENCE: Duration = Duration::from_secs(5);
/// The longest wait that a server may ask for (`Retry-After`) before the request is tried again here. Beyond it the
/// caller is told, who may know another tier.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same for a page of a listing, of which there may be thousands: as long as any operation may take.
const PATIENCE_OF_LISTINGS: Duration = Duration::from_secs(30);
/// The longest that a server is left alone when it asks for it: the longest window of a rate limit that is known, the
/// Hugging Face Hub's.
const LONGEST_HOLD: Duration = Duration::from_secs(300);
/// How often something is asked for again after a passing failure.
const RETRIES: u32 = 3;
/// The wait before the first retry; it doubles with each.
const BACKOFF: Duration = Duration::from_millis(200);
/// How much of an error's body is read in search of the reason.
const REASON: usize = 64 << 10;

/// What is left of a limit of requests, and until when.
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// All that a URL holds encoded, except its separators (RFC 3986, section 2.3).
pub(crate) const UNRESERVED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What talks to one service. Clones share connections.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    /// Not to be asked again before: the service said so.
    hold: Arc<Mutex<Option<Instant>>>,
}

impl Client {
    /// A client that trusts the certificates in `authorities` (PEM) beside those of this machine.
    pub(crate) fn new(redirects: Policy, authorities: Option<&str>) -> Result<Self> {
        let http = reqwest::Client::builder()
            .tls_certs_merge(certificates(authorities)?)
            .user_agent(concat!("bdnfs/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .redirect(redirects)
            // It would hand a signature in a query to whom the redirect leads to.
            .referer(false)
            // Parallel connections are faster for bulk than the streams of one.
            .http1_only()
            // Whether there is a proxy is for whoever configures this machine to say, not for its environment.
            .no_proxy()
            .build()
            .map_err(|e| Error::with(Kind::Unsupported, "cannot set up an HTTP client", e))?;
        Ok(Self { http, hold: Arc::default() })
    }

    /// Sends a request, and takes only an answer of success.
    pub(crate) async fn send(&self, request: Request) -> Result<Response> {
        accept(self.execute(request).await?).await
    }

    /// Sends a request, once more after a short wait if the server asks for one.
    pub(crate) async fn execute(&self, request: Request) -> Result<Response> {
        self.wait().await?;
        let again = request.try_clone();
        let response = self.http.execute(request).await.map_err(transport)?;
        let Some(hold) = retry_after(&response) else { return Ok(response) };
        *self.hold.lock() = Some(Instant::now() + hold.min(LONGEST_HOLD));
        match again {
            Some(request) if hold <= PATIENCE => {
                self.wait().await?;
                self.http.execute(request).await.map_err(transport)
            }
            _ => Ok(response),
        }
    }

    /// Waits until the server may be asked again, if that is not too long for a listing. What comes after it finds out
    /// whether it was.
    pub(crate) async fn calm(&self) {
        let left = self.left();
        if left <= PATIENCE_OF_LISTINGS {
            tokio::time::sleep(left).await;
        }
    }

    /// How long the server is still to be left alone.
    fn left(&self) -> Duration {
        let hold = *self.hold.lock();
        hold.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Waits as long as the server asked for, if that is not long.
    async fn wait(&self) -> Result<()> {
        let left = self.left();
        if left > PATIENCE {
            let text = format!("the server asked to be left alone for another {} s", left.as_secs() + 1);
            return Err(Error::new(Kind::Unavailable, text));
        }
        if !left.is_zero() {
            tokio::time::sleep(left).await;
        }
        Ok(())
    }
}

/// The certificates in a text, if there is one.
fn certificates(pem: Option<&str>) -> Result<Vec<Certificate>> {
    let Some(pem) = pem else { return Ok(Vec::new()) };
    match Certificate::from_pem_bundle(pem.as_bytes()) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => {
            let text =
                "the certificates to trust are none (expected -----BEGIN CERTIFICATE-----, once or more)";
            Err(Error::new(Kind::Invalid, text))
        }
    }
}

/// How long a busy server asks to be left alone: in seconds or until a date (RFC 9110, section 10.2.3), or until a
/// limit that is used up is renewed.
fn retry_after(response: &Response) -> Option<Duration> {
    if !matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let asked = || {
        let value = header(response.headers(), &RETRY_AFTER)?;
        let until = || {
            let date = chrono::DateTime::parse_from_rfc2822(value).ok()?;
            date.signed_duration_since(now(response)?).to_std().ok()
        };
        value.parse().ok().map(Duration::from_secs).or_else(until)
    };
    asked().max(header(response.headers(), &RATE_LIMIT).and_then(used_up))
}

/// How long until the last of the limits that are used up is renewed: `"api";r=12;t=30, "resolvers";r=0;t=57`
/// (draft-ietf-httpapi-ratelimit-headers-09).
fn used_up(limits: &str) -> Option<Duration> {
    let renewed = |limit: &str| {
        let parameter = |name| limit.split(';').find_map(|p| p.trim().strip_prefix(name)?.parse().ok());
        (parameter("r=") == Some(0)).then(|| parameter("t="))?
    };
    limits.split(',').filter_map(renewed).max().map(Duration::from_secs)
}

/// The server's own clock, which its dates go by.
fn now(response: &Response) -> Option<chrono::DateTime<chrono::FixedOffset>> {
    let date = response.headers().get(DATE)?;
    chrono::DateTime::parse_from_rfc2822(date.to_str().ok()?).ok()
}

/// What `ask` answers, which is asked again a few times when it fails in passing, so that a long listing outlives it.
pub(crate) async fn patiently<T, F: Future<Output = Result<T>>>(ask: impl FnMut() -> F) -> Result<T> {
    again(&[Kind::Unavailable, Kind::Timeout], ask).await
}

/// Takes an answer of success; makes an error of any other.
pub(crate) async fn accept(response: Response) -> Result<Response> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let region =
        response.headers().get("x-amz-bucket-region").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let code = code(response).await;
    let (kind, advice) = meaning(status, code.as_deref());
    let code = code.map_or(String::new(), |code| format!(", {code}"));
    let advice = match region {
        Some(region) if status.is_redirection() => format!("; its region is {region}"),
        _ => advice.into(),
    };
    Err(Error::new(kind, format!("the server answers {status}{code}{advice}")))
}

/// What a caller should do about an answer, and the advice to a person.
fn meaning(status: StatusCode, code: Option<&str>) -> (Kind, &'static str) {
    match (status.as_u16(), code) {
        (400, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) | (401 | 403 | 407, _) => {
            (Kind::Refused, "")
        }
        (404 | 410, _) => (Kind::NotFound, "; check the name"),
        (412 | 416, _) => (Kind::Changed, ""),
        (408 | 504, _) => (Kind::Timeout, ""),
        (425 | 429 | 500.., _) => (Kind::Unavailable, ""),
        (300..400, _) => (Kind::Unsupported, "; the redirect is not followed"),
        _ => (Kind::Invalid, ""),
    }
}

/// The error code of a cloud's service, which says more than the status.
async fn code(response: Response) -> Option<String> {
    let body = read(response, REASON).await.ok()?;
    let text = std::str::from_utf8(&body).ok()?;
    let code = match text.split_once("<Code>") {
        Some((_, rest)) => rest.split_once("</Code>")?.0.to_owned(),
        None => told(&serde_json::from_str(text).ok()?)?.to_owned(),
    };
    // A word, and nothing that a server could repeat of a request.
    let plain = code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    plain.then_some(code)
}

/// The code in an error of OAuth's (RFC 6749, section 5.2), or of Google's.
fn told(value: &Value) -> Option<&str> {
    let error = value.get("error")?;
    error
        .as_str()
        .or_else(|| error.get("status")?.as_str())
        .or_else(|| error.pointer("/errors/0/reason")?.as_str())
}

/// What `ask` answers, which is asked again a few times after a failure that is one of `passing`.
pub(crate) async fn again<T, F: Future<Output = Result<T>>>(
    passing: &[Kind],
    mut ask: impl FnMut() -> F,
) -> Result<T> {
    let mut tries = 0;
    loop {
        match ask().await {
            Err(e) if tries < RETRIES && passing.contains(&e.kind()) => {
                tokio::time::sleep(BACKOFF * (1 << tries)).await;
                tries += 1;
            }
            done => return done,
        }
    }
}

/// A request that got no answer, or an answer that broke off.
pub(crate) fn transport(error: reqwest::Error) -> Error {
    let (kind, text) = if error.is_timeout() {
        let limit = if error.is_connect() { CONNECT } else { SILENCE };
        return Error::new(Kind::Timeout, format!("the server did not answer within {} s", limit.as_secs()));
    } else if is_dns(&error) {
        (Kind::Unavailable, "the server's name can't be resolved")
    } else if error.is_connect() && is_unvouched(&error) {
        let text = "the server's certificate is signed by nobody who is trusted here; if that is as it should be, name a \
                    file with the authority's own certificate";
        return Error::new(Kind::Unavailable, text);
    } else if error.is_connect() {
        (Kind::Unavailable, "the server can't be reached")
    } else if error.is_redirect() {
        (Kind::Unsupported, "the server's redirect is not followed")
    } else {
        (Kind::Unavailable, "the connection to the server broke off")
    };
    Error::new(kind, format!("{text}: {}", innermost(&error.without_url())))
}

/// Whether it went no further than the server's name. The client tells that in words alone.
fn is_dns(error: &reqwest::Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |e| e.source()).any(|layer| layer.to_string() == "dns error")
}

/// Whether the server's certificate is of no trusted authority, or of one that has only the name of a trusted one. That is
/// told in words, too.
fn is_unvouched(error: &reqwest::Error) -> bool {
    let reason = innermost(error);
    ["UnknownIssuer", "BadSignature"]
        .iter()
        .any(|what| reason.ends_with(&format!("peer certificate: {what}")))
}

/// What lies at the bottom of an error: the reason, without the layers that passed it on.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |e| e.source()).last().map_or(String::new(), ToString::to_string)
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The whole body of an answer, at most `limit` bytes of it.
pub(crate) async fn read(response: Response, limit: usize) -> Result<Bytes> {
    let mut whole = BytesMut::new();
    let mut body = response.bytes_stream();
    while let Some(piece) = body.next().await {
        whole.extend_from_slice(&piece.map_err(transport)?);
        if whole.len() > limit {
            return Err(Error::new(Kind::Unsupported, format!("the answer is longer than {limit} bytes")));
        }
    }
    Ok(whole.freeze())
}

/// `body`, held to the length that was asked for. Its errors name `what`.
pub(crate) fn exactly(
    body: impl Stream<Item = Result<Bytes>> + Send + 'static,
    len: u64,
    what: String,
) -> Body {
    let state = (body.boxed(), Some(len), what);
    let pieces = stream::unfold(state, |(mut body, left, what)| async move {
        let left = left?;
        let (item, left) = match body.next().await {
            Some(Ok(piece)) => match left.checked_sub(piece.len() as u64) {
                Some(left) => (Ok(piece), Some(left)),
                None => (
                    Err(Error::new(Kind::Corrupt, format!("{what}: the server sends more than was asked"))),
                    None,
                ),
            },
            Some(Err(error)) => (Err(error.within(&what)), None),
            None if left == 0 => return None,
            None => (Err(Error::new(Kind::Unavailable, format!("{what}: the answer ended early"))), None),
        };
        Some((item, (body, left, what)))
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_used_up_tells_how_long() {
        let seconds = |text| used_up(text).map(|wait| wait.as_secs());
        assert_eq!(seconds(r#""resolvers";r=0;t=57"#), Some(57));
        assert_eq!(seconds(r#""api"; r=0; t=3, "pages";r=9;t=99, "x";t=5;r=0"#), Some(5));
        for none in [r#""api";r=1;t=57"#, r#""api";r=0"#, r#""api";r=0;t=-1"#, "", "57"] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }

    #[tokio::test]
    async fn a_body_is_held_to_its_length() {
        let body = |len| {
            let pieces = [Bytes::from_static(b"abc"), Bytes::from_static(b"de")].map(Ok);
            exactly(stream::iter(pieces), len, "x".into()).collect::<Vec<_>>()
        };
        assert!(body(5).await.iter().all(Result::is_ok));
        let short = body(6).await;
        assert_eq!(short.last().and_then(|r| r.as_ref().err()).map(Error::kind), Some(Kind::Unavailable));
        assert_eq!(short.len(), 3);
        let long = body(4).await;
        assert_eq!(long.last().and_then(|r| r.as_ref().err()).map(Error::kind), Some(Kind::Corrupt));
    }
}
