//! The token of an identity that is exchanged for one of a cloud.

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, Request};
use serde_json::Value;

use super::MAX_TOKEN_RESPONSE_BYTES;
use super::key_expiry::jwt_expiry_remark;
use super::token_request::{host, token_url};
use crate::auth::load;
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::source::{Secret, SubjectToken};
use crate::task::blocking;

/// The token that is exchanged, as it is now.
pub(super) struct SubjectTokenText {
    pub token: Secret,
    /// The place where it was read; `None`: it came with a request.
    place: Option<String>,
}

impl SubjectTokenText {
    /// Loads the token, which is under the key `field` where it comes as JSON.
    pub async fn load(subject: &SubjectToken, field: Option<&str>, client: &HttpClient) -> Result<Self> {
        let (text, place) = match subject {
            SubjectToken::Given(token) => return Ok(Self { token: token.clone(), place: None }),
            SubjectToken::File(path) => {
                let file = path.clone();
                (blocking(move || load::secret_file(&file)).await?, path.display().to_string())
            }
            SubjectToken::Url { url, headers } => (token_at(url, headers, client).await?, host(url)),
        };
        let json: Option<Value> = field.and_then(|_| serde_json::from_str(text.expose()).ok());
        let token = match field {
            None => Some(text.expose().trim()),
            Some(field) => json.as_ref().and_then(|value| value.get(field)).and_then(Value::as_str),
        };
        let Some(token) = token.map(Secret::new) else {
            let field = field.unwrap_or_default();
            let text = format!("the identity token in {place} is not JSON with a string under {field:?}");
            return Err(Error::new(Kind::Refused, text));
        };
        Ok(Self { token, place: Some(place) })
    }

    /// Advises what to do where it is refused. `trusting` is who has to trust a token that was given.
    pub fn advice(&self, trusting: &str) -> String {
        let expiry = jwt_expiry_remark(&self.token);
        match &self.place {
            Some(place) => format!("check the identity token in {place}{expiry}"),
            None => format!("check the trust of {trusting} in the token's service account{expiry}"),
        }
    }
}

async fn token_at(url: &str, headers: &[(String, Secret)], client: &HttpClient) -> Result<Secret> {
    let mut request = Request::new(Method::GET, token_url(url)?);
    let invalid = |text: String| Error::new(Kind::Invalid, text);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| invalid(format!("{name:?} is not the name of an HTTP header")))?;
        let mut value = HeaderValue::from_str(value.expose()).map_err(|_| {
            invalid(format!("the header {name} contains characters that no HTTP header may contain"))
        })?;
        value.set_sensitive(true);
        request.headers_mut().insert(name, value);
    }
    let response = client.send(request).await;
    let response = response.map_err(|e| e.context(format!("the identity token at {}", host(url))))?;
    let text = http_client::read(response, MAX_TOKEN_RESPONSE_BYTES).await?;
    Ok(Secret::new(String::from_utf8_lossy(&text)))
}
