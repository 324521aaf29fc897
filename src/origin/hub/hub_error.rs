//! Refusals of the Hub: what they mean and what to do about them.

use reqwest::header::HeaderName;
use reqwest::{Response, StatusCode};

use crate::auth::{AuthKey, IssuedKey};
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, header};
use crate::source::HubKind;

const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// The longest message of the Hub that is repeated, in bytes.
const QUOTED_MESSAGE_LIMIT: usize = 300;
/// The Hub's message on a token that it doesn't know. There is no code for it.
const BAD_TOKEN_MESSAGE: &str = "Invalid credentials";
/// The Hub's message for a repository that it has closed.
const DISABLED_MESSAGE: &str = "Access to this resource is disabled.";

/// The request that a refusal is about, for its message.
pub(super) struct RefusedHubRequest<'a> {
    pub kind: HubKind,
    pub id: &'a str,
    /// The Hub's URL.
    pub endpoint: &'a str,
    /// The URL of the repository's page.
    pub page: String,
    /// The credentials of the request.
    pub issued: &'a IssuedKey,
}

/// Accepts a successful response, and makes an error of any other.
pub(super) async fn accept(response: Response, about: &RefusedHubRequest<'_>) -> Result<Response> {
    if response.status().is_success() {
        return Ok(response);
    }
    let code = header(response.headers(), &ERROR_CODE).unwrap_or_default();
    let message = header(response.headers(), &ERROR_MESSAGE).unwrap_or_default();
    match about.refusal(response.status(), code, message) {
        Some((kind, text)) => Err(Error::new(kind, text)),
        None => http_client::accept(response)
            .await
            .map_err(|e| about.issued.explain_refusal(e).context(about.endpoint)),
    }
}

impl RefusedHubRequest<'_> {
    /// The meaning of the Hub's error; `None` where it says no more than the status does.
    fn refusal(&self, status: StatusCode, code: &str, message: &str) -> Option<(Kind, String)> {
        let (what, page) = (self.repository_label(), &self.page);
        // Without a valid token, the Hub hides that a private repository exists.
        Some(match (status.as_u16(), code) {
            (401, _) if message.starts_with(BAD_TOKEN_MESSAGE) => (Kind::Refused, self.bad_token()),
            (_, "GatedRepo") => (Kind::Refused, self.gated(message)),
            (_, "DisabledRepo") => (Kind::Refused, self.disabled()),
            _ if message == DISABLED_MESSAGE => (Kind::Refused, self.disabled()),
            (_, "RepoNotFound") => (Kind::NotFound, self.unknown()),
            (_, "RevisionNotFound") => {
                let text =
                    format!("the {what} has no such revision; see its branches, tags and commits at {page}");
                (Kind::NotFound, text)
            }
            (_, "EntryNotFound") => {
                (Kind::NotFound, format!("the {what} has no such file or directory; see {page}/tree/main"))
            }
            (401, "") if self.has_token() => (Kind::Refused, self.bad_token()),
            (401, "") => (Kind::NotFound, self.unknown()),
            (401 | 403, _) => {
                let quoted = self.quoted(message);
                let advice = match self.has_token() {
                    true => format!("check what {} may read", self.token()),
                    false => "the request had no token (HF_TOKEN)".to_owned(),
                };
                (Kind::Refused, format!("the Hub refuses access; {advice}{quoted}"))
            }
            // The Hub itself always says what it is that it has not.
            (404, "") => {
                let text = format!(
                    "{} has no {what}, and does not respond as a Hub does; check the name, and that it is a Hub (--endpoint, HF_ENDPOINT)",
                    self.endpoint
                );
                (Kind::NotFound, text)
            }
            (429, _) => {
                let more =
                    if self.has_token() { "" } else { ", or set HF_TOKEN: accounts have a higher limit" };
                (Kind::Unavailable, format!("the Hub's rate limit is used up; try again later{more}"))
            }
            _ => return None,
        })
    }

    /// `dataset owner/name`.
    fn repository_label(&self) -> String {
        format!("{} {}", self.kind.plural().trim_end_matches('s'), self.id)
    }

    /// Whether the request had a token.
    fn has_token(&self) -> bool {
        self.issued.key != AuthKey::Anonymous
    }

    /// The name of the token.
    fn token(&self) -> &str {
        self.issued.name.as_deref().unwrap_or("the token (HF_TOKEN)")
    }

    fn unknown(&self) -> String {
        let what = self.repository_label();
        let other = match self.kind {
            HubKind::Model => format!(" (a dataset is hf://datasets/{})", self.id),
            _ => String::new(),
        };
        let token = match self.has_token() {
            false => "if it is private, set HF_TOKEN to a token that may read it".into(),
            true => format!("if it is private, check that {} may read it", self.token()),
        };
        format!("the Hub has no {what}; check the name{other}; {token}")
    }

    fn gated(&self, message: &str) -> String {
        let (what, page) = (self.repository_label(), &self.page);
        match self.has_token() {
            false => format!(
                "the {what} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account"
            ),
            true => format!(
                "the {what} is gated: accept its terms at {page} with the account of {}, which must be allowed to read \
                 gated repositories{}",
                self.token(),
                self.quoted(message)
            ),
        }
    }

    fn bad_token(&self) -> String {
        let (name, why, remedy) = match &self.issued.name {
            None => ("the token", self.issued.describe_expiry(), "set HF_TOKEN to it".into()),
            Some(name) => (name.as_str(), self.issued.describe_expiry(), format!("put it into {name}")),
        };
        let why = why.unwrap_or_else(|| "it is wrong, expired or revoked".into());
        format!(
            "the Hub does not accept {name}: {why}; create one at {}/settings/tokens and {remedy}",
            self.endpoint
        )
    }

    fn disabled(&self) -> String {
        format!("the Hub has disabled {}: it can no longer be read there; see {}", self.id, self.page)
    }

    /// The Hub's own words, if they are short, plain and hold no part of a secret.
    fn quoted(&self, message: &str) -> String {
        let repeats = matches!(&self.issued.key, AuthKey::Bearer(token) if message.contains(token.expose()));
        let plain = message.len() <= QUOTED_MESSAGE_LIMIT && !message.chars().any(char::is_control);
        match plain && !message.is_empty() && !repeats {
            true => format!(" (it says: {message})"),
            false => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Secret;

    fn refusal(status: u16, code: &str, message: &str, token: bool) -> Option<(Kind, String)> {
        let key = if token { AuthKey::Bearer(Secret::new("hf_hush")) } else { AuthKey::Anonymous };
        let about = RefusedHubRequest {
            kind: HubKind::Dataset,
            id: "o/d",
            endpoint: "https://h",
            page: "https://h/datasets/o/d".into(),
            issued: &IssuedKey::of(key, None),
        };
        about.refusal(StatusCode::from_u16(status).expect("status"), code, message)
    }

    #[test]
    fn refusal_of_each_kind_says_what_to_do() {
        let gated = "Access to dataset o/d is restricted.";
        for (status, code, message, token, kind, said) in [
            (
                401,
                "RepoNotFound",
                "Repository not found",
                false,
                Kind::NotFound,
                "the Hub has no dataset o/d; check the name; if it is private, set HF_TOKEN to a token that may read it",
            ),
            (
                404,
                "RepoNotFound",
                "Repository not found",
                true,
                Kind::NotFound,
                "the Hub has no dataset o/d; check the name; if it is private, check that the token (HF_TOKEN) may read it",
            ),
            (
                401,
                "GatedRepo",
                gated,
                false,
                Kind::Refused,
                "the dataset o/d is gated: accept its terms at https://h/datasets/o/d, then set HF_TOKEN to a token of that \
              account",
            ),
            (
                403,
                "GatedRepo",
                gated,
                true,
                Kind::Refused,
                "the dataset o/d is gated: accept its terms at https://h/datasets/o/d with the account of the token \
              (HF_TOKEN), which must be allowed to read gated repositories (it says: Access to dataset o/d is restricted.)",
            ),
            (
                404,
                "RevisionNotFound",
                "Invalid rev id: x",
                true,
                Kind::NotFound,
                "the dataset o/d has no such revision; see its branches, tags and commits at https://h/datasets/o/d",
            ),
            (
                404,
                "EntryNotFound",
                "Entry not found",
                true,
                Kind::NotFound,
                "the dataset o/d has no such file or directory; see https://h/datasets/o/d/tree/main",
            ),
            (
                401,
                "",
                "Invalid credentials in Authorization header",
                true,
                Kind::Refused,
                "the Hub does not accept the token: it is wrong, expired or revoked; create one at \
              https://h/settings/tokens and set HF_TOKEN to it",
            ),
            (
                403,
                "",
                DISABLED_MESSAGE,
                false,
                Kind::Refused,
                "the Hub has disabled o/d: it can no longer be read there; see https://h/datasets/o/d",
            ),
            (
                403,
                "",
                "not for hf_hush",
                true,
                Kind::Refused,
                "the Hub refuses access; check what the token (HF_TOKEN) may read",
            ),
            (
                404,
                "",
                "",
                false,
                Kind::NotFound,
                "https://h has no dataset o/d, and does not respond as a Hub does; check the name, and that it is a Hub \
              (--endpoint, HF_ENDPOINT)",
            ),
            (
                429,
                "",
                "",
                false,
                Kind::Unavailable,
                "the Hub's rate limit is used up; try again later, or set HF_TOKEN: accounts have a higher limit",
            ),
        ] {
            assert_eq!(refusal(status, code, message, token), Some((kind, said.into())));
        }
        assert_eq!(refusal(502, "", "", true), None);
    }
}
