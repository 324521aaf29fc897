//! Which redirects are followed.

use reqwest::redirect::{Action, Attempt, Policy};
use url::Url;

use crate::source::loopback;

/// How many redirects are followed, one after the other.
const REDIRECT_LIMIT: usize = 10;

/// The policy of an origin: follows redirects to web servers, unless one leads from https to plain http.
pub(super) fn policy(allow_http: bool) -> Policy {
    Policy::custom(move |attempt| decide(attempt, allow_http))
}

fn decide(attempt: Attempt<'_>, allow_http: bool) -> Action {
    let previous = attempt.previous();
    if previous.len() > REDIRECT_LIMIT {
        attempt.error("there are more than 10 redirects")
    } else if !matches!(attempt.url().scheme(), "http" | "https") {
        attempt.error("it does not lead to a web server")
    } else if previous.iter().any(|from| exposes(from, attempt.url(), allow_http)) {
        attempt.error("it leads to plain http")
    } else {
        attempt.follow()
    }
}

/// Whether a redirect gives up TLS: what was asked for over https is never asked for without it.
pub(super) fn exposes(from: &Url, to: &Url, allow_http: bool) -> bool {
    to.scheme() != "https" && (from.scheme() == "https" || !(allow_http || loopback(to)))
}
