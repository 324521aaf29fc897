//! Requests to the Hub itself, the only place where the token is sent.

use std::sync::Arc;

use percent_encoding::utf8_percent_encode;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, Request, Response};
use url::Url;

use super::HUB_URL;
use super::file_headers::FileHeaders;
use super::hub_error::{self, RefusedHubRequest};
use crate::auth::{IssuedKey, KeyCache};
use crate::error::{Error, Kind, Result};
use crate::http_client::{HttpClient, PATH_SEGMENT_ENCODE_SET, header};
use crate::origin::range_request::{IDENTITY, RangeRequest};
use crate::origin::redirect::RedirectGuard;
use crate::source::{Access, HubKind, Uri, endpoint};

/// The number of redirects within the Hub that are followed, one after the other: a renamed repository leads to its new name, a
/// small file to a cache of the Hub.
const HUB_REDIRECT_LIMIT: usize = 5;

/// The API of one repository of a Hub.
#[derive(Debug)]
pub(super) struct HubApi {
    client: HttpClient,
    /// Without a slash at its end.
    endpoint: String,
    base: Url,
    /// The token.
    keys: KeyCache,
    guard: Arc<RedirectGuard>,
    kind: HubKind,
    id: String,
}

/// The Hub's response to a request for a file.
pub(super) enum HubResponse {
    /// The Hub sends it itself.
    Here(Response),
    /// At a signed URL elsewhere. No token may be sent there.
    Elsewhere(Url),
}

impl HubApi {
    /// Opens the repository `id` that `uri` names; no request is made.
    pub(super) fn new(uri: &Uri, kind: HubKind, id: &str, access: &Access) -> Result<Self> {
        let endpoint = endpoint(access.endpoint(uri).unwrap_or(HUB_URL), access.allow_http)
            .map_err(|e| e.context("the Hub (HF_ENDPOINT)"))?;
        let invalid = |e| Error::with(Kind::Invalid, "the Hub's URL is invalid (HF_ENDPOINT)", e);
        let base = Url::parse(&endpoint).map_err(invalid)?;
        let (guard, authorities) = (RedirectGuard::new(&base, access), access.authorities.as_deref());
        let client = guard.plain_client(authorities)?;
        // The provider of keys is not the Hub.
        let keys = KeyCache::lazy(uri, access, &HttpClient::new(Policy::none(), authorities)?);
        Ok(Self { client, endpoint, base, keys, guard, kind, id: id.into() })
    }

    /// The policy for the Hub's redirects.
    pub(super) fn guard(&self) -> &Arc<RedirectGuard> {
        &self.guard
    }

    /// The Hub's URL, without a slash at its end.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The URL of a view of the repository in the API: `revision`, or the `tree` of one.
    pub(super) fn view(&self, view: &str, revision: &str) -> Url {
        let revision = utf8_percent_encode(revision, PATH_SEGMENT_ENCODE_SET);
        self.url(format_args!("/api/{}/{}/{view}/{revision}", self.kind.plural(), self.id))
    }

    /// The URL of the tree of `commit` below `path`, which is empty for all of it.
    pub(super) fn tree(&self, commit: &str, path: &str) -> Url {
        let mut url = self.view("tree", commit);
        if !path.is_empty() {
            let below = format!("{}/{}", url.path(), encode_path(path));
            url.set_path(&below);
        }
        url
    }

    /// The URL of the content of the file at `path`.
    pub(super) fn content(&self, commit: &str, path: &str) -> Url {
        self.url(format_args!("/{}/resolve/{commit}/{}", self.page(), encode_path(path)))
    }

    /// The path of the repository's page, for people and for content. Models have no kind in it.
    fn page(&self) -> String {
        match self.kind {
            HubKind::Model => self.id.clone(),
            kind => format!("{}/{}", kind.plural(), self.id),
        }
    }

    fn url(&self, path: std::fmt::Arguments<'_>) -> Url {
        let mut url = self.base.clone();
        let path = format!("{}{path}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        url
    }

    /// Waits until the Hub may be asked again, unless that is too long for a listing.
    pub(super) async fn wait_to_list(&self) {
        self.client.wait_to_list().await;
    }

    /// Gets what the Hub sends itself.
    pub(super) async fn get(&self, url: Url) -> Result<Response> {
        match self.locate(Method::GET, url, None).await?.0 {
            HubResponse::Here(response) => Ok(response),
            HubResponse::Elsewhere(to) => {
                let host = to.host_str().unwrap_or_default();
                let text =
                    format!("{} redirects to {host}; name that as the Hub (HF_ENDPOINT)", self.endpoint);
                Err(Error::new(Kind::Unsupported, text))
            }
        }
    }

    /// Asks the Hub for a file, and follows its redirects within itself. Returns what the headers on the way say of the
    /// file, too.
    pub(super) async fn locate(
        &self,
        method: Method,
        url: Url,
        wanted: Option<&RangeRequest>,
    ) -> Result<(HubResponse, FileHeaders)> {
        let (method, url) = (&method, &url);
        let send =
            |issued: Arc<IssuedKey>| async move { self.follow(method, url.clone(), wanted, &issued).await };
        self.keys.send_with_key(send).await
    }

    async fn follow(
        &self,
        method: &Method,
        mut url: Url,
        wanted: Option<&RangeRequest>,
        issued: &IssuedKey,
    ) -> Result<(HubResponse, FileHeaders)> {
        let mut file = FileHeaders::default();
        for _ in 0..=HUB_REDIRECT_LIMIT {
            let request = request(method.clone(), url.clone(), wanted, issued)?;
            let response = self.client.execute(request).await.map_err(|e| e.context(&self.endpoint))?;
            file.add(&response);
            if !response.status().is_redirection() {
                let here = hub_error::accept(response, &self.describe(issued)).await?;
                return Ok((HubResponse::Here(here), file));
            }
            let to = header(response.headers(), &LOCATION).and_then(|to| url.join(to).ok());
            let to = to.ok_or_else(|| {
                unsupported(format!("the Hub returned {} without a valid Location", response.status()))
            })?;
            if to.origin() != self.base.origin() {
                self.guard.check(&url, &to).map_err(|refused| refused.error())?;
                return Ok((HubResponse::Elsewhere(to), file));
            }
            url = to;
        }
        Err(unsupported(format!("there are more than {HUB_REDIRECT_LIMIT} redirects within the Hub")))
    }

    /// The name of a request in errors.
    fn describe<'a>(&'a self, issued: &'a IssuedKey) -> RefusedHubRequest<'a> {
        RefusedHubRequest {
            kind: self.kind,
            id: &self.id,
            endpoint: &self.endpoint,
            page: format!("{}/{}", self.endpoint, self.page()),
            issued,
        }
    }
}

fn request(method: Method, url: Url, wanted: Option<&RangeRequest>, issued: &IssuedKey) -> Result<Request> {
    let mut request = Request::new(method, url);
    let headers = request.headers_mut();
    match wanted {
        Some(wanted) => wanted.set_headers(headers),
        None => _ = headers.insert(ACCEPT_ENCODING, IDENTITY),
    }
    let named = |e: Error| e.context(issued.name.as_deref().unwrap_or("the Hub's token (HF_TOKEN)"));
    if let Some(value) = issued.key.authorization().map_err(named)? {
        headers.insert(AUTHORIZATION, value);
    }
    Ok(request)
}

/// Encodes a path for a URL.
fn encode_path(path: &str) -> String {
    let encode = |part| utf8_percent_encode(part, PATH_SEGMENT_ENCODE_SET).to_string();
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

fn unsupported(text: impl Into<String>) -> Error {
    Error::new(Kind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::source::{HubAccess, Secret};

    fn open(kind: HubKind, id: &str, access: &Access) -> Result<HubApi> {
        let uri = Uri::Hf { kind, id: id.into(), revision: None, path: String::new() };
        HubApi::new(&uri, kind, id, access)
    }

    fn api(kind: HubKind, id: &str) -> HubApi {
        open(kind, id, &Access::default()).expect("valid")
    }

    #[test]
    fn content_url_is_that_of_huggingface_hub() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../source/testdata/hf_uri.json")).expect("JSON");
        for vector in vectors["urls"].as_array().expect("urls") {
            let text = |name: &str| vector["args"][name].as_str();
            let kind = match text("repo_type") {
                Some("dataset") => HubKind::Dataset,
                Some("space") => HubKind::Space,
                _ => HubKind::Model,
            };
            // Content is asked for by its commit only; the library takes any revision.
            let revision =
                utf8_percent_encode(text("revision").unwrap_or("main"), PATH_SEGMENT_ENCODE_SET).to_string();
            let url =
                api(kind, text("repo_id").expect("id")).content(&revision, text("filename").expect("file"));
            assert_eq!(Some(url.as_str()), vector["url"].as_str());
        }
        let tree = api(HubKind::Dataset, "o/d").tree("c", "a b/#");
        assert_eq!(tree.as_str(), "https://huggingface.co/api/datasets/o/d/tree/c/a%20b/%23");
    }

    #[test]
    fn endpoint_with_a_path_is_taken_and_with_a_secret_refused() {
        let at = |endpoint: &str, allow| {
            let hub = HubAccess { endpoint: Some(endpoint.into()), token: Some(Secret::new("hush")) };
            let access = Access { hub: Some(hub), allow_http: allow, ..Access::default() };
            open(HubKind::Model, "o/m", &access)
        };
        let proxied = at("https://h/hub/", false).expect("valid");
        assert_eq!(
            proxied.view("revision", "refs/pr/1").as_str(),
            "https://h/hub/api/models/o/m/revision/refs%2Fpr%2F1"
        );
        assert_eq!(proxied.endpoint(), "https://h/hub");
        assert!(!format!("{proxied:?}").contains("hush"));
        for (bad, said) in [
            ("http://h", "use https"),
            ("https://u:quiet@h", "user name or password"),
            ("https://h?x=quiet", "not a URL of the form"),
            ("h", "not a URL of the form"),
        ] {
            let error = at(bad, false).expect_err(bad);
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(said) && !error.to_string().contains("quiet"), "{error}");
        }
        at("http://h", true).expect("allowed");
    }
}
