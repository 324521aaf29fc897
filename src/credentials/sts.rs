//! AWS's token service (STS): a role is taken on, and a key comes that is good for an hour at the most.
//! <https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html>

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequest;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use url::form_urlencoded;

use super::connector::{self, failure};
use super::issue::{Got, How, Source, told};
use super::{Key, shown};
use crate::client::{self, Client};
use crate::error::{Error, Kind, Result};
use crate::secrets;
use crate::source::{AwsMachine, Secret, endpoint};
use crate::task::blocking;
use crate::xml;

/// The most seconds that a role taken on by another role may last.
const LIFETIME: &str = "3600";
/// The largest answer that is read, in bytes.
const LARGEST: usize = 1 << 20;
/// What an answer begins with.
const ANSWERS: [&str; 2] = ["AssumeRoleResponse", "AssumeRoleWithWebIdentityResponse"];
/// What a session is called where nobody names it: it stands in AWS's logs.
const SESSION: &str = "bdnfs";

/// A role that is taken on each time a key is wanted.
pub(super) struct Role {
    pub arn: String,
    pub region: String,
    pub session: Option<String>,
    pub external_id: Option<String>,
    pub by: By,
    /// The service's URL, without a slash at its end.
    pub endpoint: String,
    pub client: Client,
}

/// What is shown for a role.
pub(super) enum By {
    /// The web identity token in a file.
    Token(PathBuf),
    /// A key of AWS's.
    Key(Arc<dyn Source>),
}

/// The service of `region`, unless this machine has another.
pub(super) fn address(region: &str, machine: &AwsMachine, allow_http: bool) -> Result<String> {
    let china = if region.starts_with("cn-") { ".cn" } else { "" };
    if region.is_empty() || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Err(Error::new(Kind::Invalid, format!("{region:?} is not the name of a region")));
    }
    match &machine.sts {
        Some(text) => endpoint(text, allow_http).map_err(|e| e.within("AWS's token service (STS)")),
        None => Ok(format!("https://sts.{region}.amazonaws.com{china}")),
    }
}

#[async_trait]
impl Source for Role {
    async fn key(&self) -> Result<Got> {
        let outer = |why: Error| {
            let text = format!("the role {} is not given by {}", self.arn, self.endpoint);
            refusal(why).within(text)
        };
        match &self.by {
            By::Token(path) => {
                let file = path.clone();
                let token = blocking(move || secrets::read(&file)).await?;
                let token = Secret::new(token.expose().trim());
                let form = self.form("AssumeRoleWithWebIdentity", Some(&token));
                self.ask(self.request(form)?).await.map_err(|e| {
                    let end =
                        told(&token).map_or(String::new(), |end| format!(" (good until {})", shown(end)));
                    outer(e).advise(format!("check the web identity token in {}{end}", path.display()))
                })
            }
            By::Key(base) => {
                let Key::Aws(key) = base.key().await?.key else { return Err(super::foreign()) };
                let mut request = self.request(self.form("AssumeRole", None))?;
                AwsAuthorizer::new(&key, "sts", &self.region)
                    .try_authorize(&mut request, None)
                    .map_err(failure)?;
                self.ask(request).await.map_err(outer)
            }
        }
    }
}

impl Role {
    fn form(&self, action: &str, token: Option<&Secret>) -> String {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("Action", action).append_pair("Version", "2011-06-15");
        form.append_pair("RoleArn", &self.arn).append_pair("DurationSeconds", LIFETIME);
        form.append_pair("RoleSessionName", self.session.as_deref().unwrap_or(SESSION));
        if let Some(id) = &self.external_id {
            form.append_pair("ExternalId", id);
        }
        if let Some(token) = token {
            form.append_pair("WebIdentityToken", token.expose());
        }
        form.finish()
    }

    fn request(&self, form: String) -> Result<HttpRequest> {
        let mut request = HttpRequest::new(form.into());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("{}/", self.endpoint)
            .parse()
            .map_err(|_| Error::new(Kind::Invalid, "the token service's URL can't be asked for"))?;
        let form = HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
        request.headers_mut().insert(CONTENT_TYPE, form);
        Ok(request)
    }

    async fn ask(&self, request: HttpRequest) -> Result<Got> {
        let answer = self.client.send(connector::plain(request).await?).await?;
        let text = client::read(answer, LARGEST).await?;
        // Why it can't be read is not told: that could repeat a part of a key.
        let answer: Answer = xml::read(&ANSWERS, &text).map_err(|_| {
            Error::new(Kind::Unsupported, "the answer is none of AWS's token service; check its endpoint")
        })?;
        let Temporary { access_key_id, secret_access_key, session_token, expiration } =
            answer.result.credentials;
        let credential = AwsCredential {
            key_id: access_key_id,
            secret_key: secret_access_key,
            token: Some(session_token),
        };
        Ok(Got { key: super::aws::key(credential)?, expiry: Some(expiration.into()), how: How::Asked })
    }
}

/// What a token service refuses is a refusal, whatever its status.
fn refusal(error: Error) -> Error {
    match error.kind() {
        Kind::Unavailable | Kind::Timeout | Kind::Refused => error,
        _ => Error::new(Kind::Refused, error.to_string()),
    }
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "AssumeRoleResult", alias = "AssumeRoleWithWebIdentityResult")]
    result: Outcome,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Outcome {
    credentials: Temporary,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Temporary {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    expiration: DateTime<Utc>,
}
