//! Responses: whether they are a success, what an error means, and their bodies.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use reqwest::header::{HeaderMap, HeaderName};
use reqwest::{Response, StatusCode};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::stall::MIN_WINDOW_BYTES;
use super::tls_reason::tls_reason;
use super::{CONNECT_TIMEOUT, INITIAL_RESPONSE_TIMEOUT, MAX_RESPONSE_TIMEOUT, SILENCE_TIMEOUT, silent};
use crate::error::{Error, Kind, Result};
use crate::tier::Body;

/// The number of bytes of an error's body that are read in search of its code.
pub(crate) const MAX_ERROR_BODY_BYTES: usize = 64 << 10;
/// The region of a bucket, which S3 tells when it was asked in another.
const BUCKET_REGION_HEADER: HeaderName = HeaderName::from_static("x-amz-bucket-region");

/// The TLS library's message on a response that is no TLS.
const NO_TLS: &str = "corrupt message of type InvalidContentType";

/// Accepts a successful response, and makes an error of any other.
pub(crate) async fn accept(response: Response) -> Result<Response> {
    match response.status().is_success() {
        true => Ok(response),
        false => Err(refusal(response).await.0),
    }
}

/// The error of a response that is no success; and the region that the bucket is in, where it is refused for being asked for in
/// another.
pub(crate) async fn refusal(response: Response) -> (Error, Option<String>) {
    let status = response.status();
    let headers = response.headers().clone();
    let body = read_small(response, MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
    let text = std::str::from_utf8(&body).unwrap_or_default();
    let (code, region) = (code_of(text), named_region(status, &headers, text));
    let (kind, advice) = classify(status, code.as_deref());
    let code = code.map_or(String::new(), |code| format!(", {code}"));
    let advice = match &region {
        Some(region) => format!("; the bucket's region is {region}"),
        None => advice.into(),
    };
    (Error::new(kind, format!("the server returned {status}{code}{advice}")), region)
}

/// The region that a bucket is in, where an error response names it: in its headers, or in the text of its body.
pub(crate) fn named_region(status: StatusCode, headers: &HeaderMap, text: &str) -> Option<String> {
    let elsewhere = match code_of(text).as_deref() {
        _ if status.is_redirection() => true,
        // A response to HEAD has no body.
        code => {
            status == StatusCode::BAD_REQUEST && matches!(code, None | Some("AuthorizationHeaderMalformed"))
        }
    };
    let region = header(headers, &BUCKET_REGION_HEADER).or_else(|| element(text, "Region"));
    region.filter(|region| elsewhere && is_region(region)).map(str::to_owned)
}

/// Whether a region can be called so. The name becomes part of a host's.
fn is_region(name: &str) -> bool {
    (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// The kind of an error response, and the advice to a person.
fn classify(status: StatusCode, code: Option<&str>) -> (Kind, &'static str) {
    match (status.as_u16(), code) {
        (400, Some("ExpiredToken" | "InvalidToken" | "TokenRefreshRequired")) | (401 | 403 | 407, _) => {
            (Kind::Refused, "")
        }
        (404 | 410, _) => (Kind::NotFound, "; check the name"),
        (412 | 416, _) => (Kind::Changed, ""),
        (408 | 504, _) | (400, Some("RequestTimeout")) => (Kind::Timeout, ""),
        (425 | 429 | 500.., _) => (Kind::Unavailable, ""),
        (300..400, _) => (Kind::Unsupported, "; the redirect is not followed"),
        _ => (Kind::Invalid, ""),
    }
}

/// The error code of a cloud's service in the body of a response, which says more than the status.
pub(crate) fn code_of(text: &str) -> Option<String> {
    let json: Option<Value> = serde_json::from_str(text).ok();
    let code = element(text, "Code").or_else(|| json_error_code(json.as_ref()?))?;
    // Only a word: a server could repeat the request's secrets in anything longer.
    let plain = code.len() <= 64 && code.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    // Entra ID's words are few; only its number says why.
    let number = json.as_ref().and_then(|json| json.pointer("/error_codes/0")?.as_u64());
    plain.then(|| number.map_or_else(|| code.to_owned(), |number| format!("{code} (AADSTS{number})")))
}

/// The text of the first XML element called `name` in `text`.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0)
}

/// The code in an error of OAuth's (RFC 6749, section 5.2), or of Google's.
fn json_error_code(value: &Value) -> Option<&str> {
    let error = value.get("error")?;
    error
        .as_str()
        .or_else(|| error.get("status")?.as_str())
        .or_else(|| error.pointer("/errors/0/reason")?.as_str())
}

/// The error for a request that got no response, or a response that was cut off.
pub(crate) fn transport_error(error: reqwest::Error) -> Error {
    explain_transport(&error.without_url(), false)
}

/// The error for a `reqwest` error without a URL, of a request for which authorities to trust were `named` or not.
pub(crate) fn explain_transport(error: &reqwest::Error, named: bool) -> Error {
    let (kind, text) = if error.is_timeout() && error.is_connect() {
        let text = silent(CONNECT_TIMEOUT).to_string();
        return Error::with(Kind::Timeout, text.clone(), ConnectError(text));
    } else if error.is_timeout() {
        return silent(SILENCE_TIMEOUT);
    } else if let Some(refused) = unfollowed_redirect(error) {
        return refused;
    } else if is_dns_error(error) {
        return unreachable(error, "cannot resolve the server's name");
    } else if error.is_connect() && is_untrusted_certificate(error) {
        let text = match named {
            true => {
                "the server's certificate is signed neither by an authority of this machine nor by one of those named"
            }
            false => {
                "the server's certificate is not signed by a trusted authority; if its authority is a private one, name a \
                 file with that authority's certificate (--ca-file)"
            }
        };
        return Error::new(Kind::Unavailable, text);
    } else if error.is_connect() && innermost(error).contains(NO_TLS) {
        return Error::new(
            Kind::Invalid,
            "the server does not speak TLS there; use http://, or the port that does",
        );
    } else if error.is_connect() {
        return unreachable(error, "cannot connect to the server");
    } else if error.is_redirect() {
        return UnfollowedRedirect(innermost(error)).error();
    } else {
        (Kind::Unavailable, "the connection to the server was lost")
    };
    Error::new(kind, format!("{text}: {}", reason(error)))
}

/// The reason why a server could not be reached, so that nothing was sent to it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct ConnectError(pub(super) String);

/// The reason why a response was given up that had begun: another connection may be better.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct DrippingError(pub(super) String);

fn unreachable(error: &reqwest::Error, text: &str) -> Error {
    Error::with(Kind::Unavailable, text, ConnectError(reason(error)))
}

/// The reason why a redirect may not be followed, where the policy or the resolver of a client found so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnfollowedRedirect(pub String);

impl UnfollowedRedirect {
    /// The error of the request that was redirected.
    pub(crate) fn error(&self) -> Error {
        Error::new(Kind::Unsupported, format!("the server's redirect is not followed: {self}"))
    }
}

fn unfollowed_redirect(error: &reqwest::Error) -> Option<Error> {
    let first: &(dyn std::error::Error + 'static) = error;
    let mut layers = std::iter::successors(Some(first), |e| e.source());
    layers.find_map(|layer| layer.downcast_ref::<UnfollowedRedirect>()).map(UnfollowedRedirect::error)
}

/// Whether resolving the server's name failed. The client tells that in words alone.
fn is_dns_error(error: &reqwest::Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |e| e.source()).any(|layer| layer.to_string() == "dns error")
}

/// Whether the server's certificate is of no trusted authority, or of one that only has the name of a trusted one. The
/// client tells that in words alone, too.
fn is_untrusted_certificate(error: &reqwest::Error) -> bool {
    let reason = innermost(error);
    ["UnknownIssuer", "BadSignature", "Other(OtherError(CaUsedAsEndEntity))"]
        .iter()
        .any(|what| reason.ends_with(&format!("peer certificate: {what}")))
}

/// Returns the reason why a connection failed. The words of the TLS library are replaced: they are for programmers.
fn reason(error: &reqwest::Error) -> String {
    let text = innermost(error);
    tls_reason(&text).unwrap_or(text)
}

/// The message at the bottom of an error: the reason, without the layers that passed it on.
pub(crate) fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |e| e.source()).last().map_or(String::new(), ToString::to_string)
}

/// A header as text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Reads the whole body of a response, which may be large and the line slow: only one that drips is given up.
///
/// # Errors
/// [`Kind::Unsupported`] where it is longer than `limit` bytes; [`Kind::Timeout`] where [`MAX_RESPONSE_TIMEOUT`] brings neither
/// [`MIN_WINDOW_BYTES`] nor the end.
pub(crate) async fn read(response: Response, limit: usize) -> Result<Bytes> {
    let mut whole = BytesMut::new();
    let mut body = response.bytes_stream();
    let (mut before, mut end) = (0, Instant::now() + MAX_RESPONSE_TIMEOUT);
    loop {
        match timeout_at(end, body.next()).await {
            Ok(Some(piece)) => whole.extend_from_slice(&piece.map_err(transport_error)?),
            Ok(None) => return Ok(whole.freeze()),
            Err(_) if whole.len() - before >= MIN_WINDOW_BYTES as usize => {
                (before, end) = (whole.len(), Instant::now() + MAX_RESPONSE_TIMEOUT);
            }
            Err(_) => {
                let text = format!(
                    "the server sent less than {} KiB within {} s",
                    MIN_WINDOW_BYTES >> 10,
                    MAX_RESPONSE_TIMEOUT.as_secs()
                );
                return Err(Error::with(Kind::Timeout, text.clone(), DrippingError(text)));
            }
        }
        if whole.len() > limit {
            return Err(Error::new(Kind::Unsupported, format!("the response is longer than {limit} bytes")));
        }
    }
}

/// Reads the whole body of a response that fits into a packet or two, as those of errors do.
///
/// # Errors
/// Those of [`read`]; [`Kind::Timeout`] where it is not there within [`INITIAL_RESPONSE_TIMEOUT`].
async fn read_small(response: Response, limit: usize) -> Result<Bytes> {
    let whole = timeout(INITIAL_RESPONSE_TIMEOUT, read(response, limit)).await;
    whole.unwrap_or_else(|_| Err(silent(INITIAL_RESPONSE_TIMEOUT)))
}

/// Checks that `body` has exactly `len` bytes as it passes. Its errors name `what`.
pub(crate) fn body_of_length(
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
                    Err(Error::new(
                        Kind::Corrupt,
                        format!("{what}: the server sends more than was asked for"),
                    )),
                    None,
                ),
            },
            Some(Err(error)) => (Err(error.context(&what)), None),
            None if left == 0 => return None,
            None => (Err(Error::new(Kind::Unavailable, format!("{what}: the response ended early"))), None),
        };
        Some((item, (body, left, what)))
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use crate::http_client::retry_listing;

    /// A response that brings so many bytes a second for so many seconds.
    fn slow(status: u16, rate: usize, seconds: u64) -> Response {
        let pieces = stream::iter(0..seconds).then(move |_| async move {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, std::io::Error>(vec![b' '; rate])
        });
        let response = axum::http::Response::builder().status(status);
        response.body(reqwest::Body::wrap_stream(pieces)).expect("a response").into()
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_drips_is_given_up_and_one_that_is_slow_is_read() {
        for (rate, seconds, given_up_after) in
            [(5, 20, None), (5000, 600, None), (5, 600, Some(30)), (0, 600, Some(30))]
        {
            let began = Instant::now();
            let read = read(slow(200, rate, seconds), 10 << 20).await;
            match given_up_after {
                None => assert_eq!(read.expect("slow").len(), rate * seconds as usize),
                Some(after) => {
                    assert_eq!(read.expect_err("drips").kind(), Kind::Timeout);
                    assert_eq!(began.elapsed().as_secs(), after);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_drips_is_asked_for_once_more() {
        for (drips, asked, seconds) in [(1, 2, 31), (9, 2, 60)] {
            let (began, mut requests) = (Instant::now(), 0);
            let read = retry_listing(|| {
                requests += 1;
                let rate = if requests <= drips { (5, 600) } else { (5000, 1) };
                read(slow(200, rate.0, rate.1), 10 << 20)
            })
            .await;
            assert_eq!((read.is_ok(), requests), (drips == 1, asked));
            assert_eq!(began.elapsed().as_secs(), seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn error_response_that_drips_is_reported_by_its_status_within_seconds() {
        let began = Instant::now();
        let error = accept(slow(403, 5, 600)).await.expect_err("refused");
        assert_eq!((error.kind(), began.elapsed().as_secs()), (Kind::Refused, 5));
        assert_eq!(read_small(slow(200, 5, 600), 1000).await.expect_err("drips").kind(), Kind::Timeout);
    }

    #[tokio::test]
    async fn body_of_another_length_is_an_error() {
        let body = |len| {
            let pieces = [Bytes::from_static(b"abc"), Bytes::from_static(b"de")].map(Ok);
            body_of_length(stream::iter(pieces), len, "x".into()).collect::<Vec<_>>()
        };
        assert!(body(5).await.iter().all(Result::is_ok));
        let short = body(6).await;
        assert_eq!(short.last().and_then(|r| r.as_ref().err()).map(Error::kind), Some(Kind::Unavailable));
        assert_eq!(short.len(), 3);
        let long = body(4).await;
        assert_eq!(long.last().and_then(|r| r.as_ref().err()).map(Error::kind), Some(Kind::Corrupt));
    }
}
