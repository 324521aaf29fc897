//! Requests to the Hub itself, the only place where the token goes.

use std::ops::Range;
use std::sync::Arc;

use percent_encoding::utf8_percent_encode;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Method, Request, Response};
use url::Url;

use super::ENDPOINT;
use super::refusal::{self, About};
use super::told::Told;
use crate::client::{Client, UNRESERVED, header};
use crate::credentials::{Issued, Keys};
use crate::error::{Error, Kind, Result};
use crate::origin::http::exposes;
use crate::origin::range;
use crate::source::{Access, HubKind, Uri, loopback};

/// How many redirects within the Hub are followed, one after the other: a renamed repository leads to its new name, a
/// small file to a cache of the Hub.
const REDIRECTS: usize = 5;

/// One repository of a Hub.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    /// Without a slash at its end.
    endpoint: String,
    base: Url,
    /// The token, now and later.
    keys: Keys,
    allow_http: bool,
    kind: HubKind,
    id: String,
}

/// Where the Hub says that something is.
pub(super) enum Answer {
    /// It sends it by itself.
    Here(Response),
    /// At a signed address elsewhere. No token may be sent there.
    Elsewhere(Url),
}

impl Api {
    /// The repository that `uri` names, which is one of the Hub's, by its kind and id.
    pub(super) fn new(uri: &Uri, kind: HubKind, id: &str, access: &Access) -> Result<Self> {
        let allow_http = access.allow_http;
        let base = endpoint(access.endpoint(uri).unwrap_or(ENDPOINT), allow_http)?;
        let endpoint = base.as_str().trim_end_matches('/').into();
        let client = Client::new(Policy::none(), access.authorities.as_deref())?;
        let keys = Keys::lazy(uri, access, &client);
        Ok(Self { client, endpoint, base, keys, allow_http, kind, id: id.into() })
    }

    /// The Hub's URL, without a slash at its end.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The URL of a view of the repository in the API: `revision`, or the `tree` of one.
    pub(super) fn view(&self, view: &str, revision: &str) -> Url {
        let revision = utf8_percent_encode(revision, UNRESERVED);
        self.url(format_args!("/api/{}/{}/{view}/{revision}", self.kind.plural(), self.id))
    }

    /// The URL of the tree of `commit` below `path`, which is empty for all of it.
    pub(super) fn tree(&self, commit: &str, path: &str) -> Url {
        let mut url = self.view("tree", commit);
        if !path.is_empty() {
            let below = format!("{}/{}", url.path(), encoded(path));
            url.set_path(&below);
        }
        url
    }

    /// The URL of the content of the file at `path`.
    pub(super) fn content(&self, commit: &str, path: &str) -> Url {
        self.url(format_args!("/{}/resolve/{commit}/{}", self.page(), encoded(path)))
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

    /// Waits until the Hub may be asked again, if that is not too long for a listing.
    pub(super) async fn calm(&self) {
        self.client.calm().await;
    }

    /// Gets what the Hub sends by itself.
    pub(super) async fn get(&self, url: Url) -> Result<Response> {
        match self.ask(Method::GET, url, None, &mut Told::default()).await? {
            Answer::Here(response) => Ok(response),
            Answer::Elsewhere(to) => {
                let host = to.host_str().unwrap_or_default();
                let text = format!("{} leads to {host}; name that as the Hub (HF_ENDPOINT)", self.endpoint);
                Err(Error::new(Kind::Unsupported, text))
            }
        }
    }

    /// Asks the Hub, and wherever within it that leads. What is said on the way about the file goes to `told`.
    pub(super) async fn ask(
        &self,
        method: Method,
        url: Url,
        range: Option<&Range<u64>>,
        told: &mut Told,
    ) -> Result<Answer> {
        let (method, url) = (&method, &url);
        let ask = |issued: Arc<Issued>| async move { self.follow(method, url.clone(), range, &issued).await };
        let (answer, said) = self.keys.with(ask).await?;
        *told = said;
        Ok(answer)
    }

    async fn follow(
        &self,
        method: &Method,
        mut url: Url,
        range: Option<&Range<u64>>,
        issued: &Issued,
    ) -> Result<(Answer, Told)> {
        let mut told = Told::default();
        for _ in 0..=REDIRECTS {
            let request = request(method.clone(), url.clone(), range, issued)?;
            let response = self.client.execute(request).await?;
            told.note(&response);
            if !response.status().is_redirection() {
                let here = refusal::accept(response, &self.about(issued)).await?;
                return Ok((Answer::Here(here), told));
            }
            let to = header(response.headers(), &LOCATION).and_then(|to| url.join(to).ok());
            let to =
                to.ok_or_else(|| wrong(format!("the Hub answers {} and no place", response.status())))?;
            if to.origin() != self.base.origin() {
                let exposed = exposes(&url, &to, self.allow_http);
                return if exposed {
                    Err(wrong("the Hub leads to plain http"))
                } else {
                    Ok((Answer::Elsewhere(to), told))
                };
            }
            url = to;
        }
        Err(wrong(format!("there are more than {REDIRECTS} redirects within the Hub")))
    }

    fn about<'a>(&'a self, issued: &'a Issued) -> About<'a> {
        About {
            kind: self.kind,
            id: &self.id,
            endpoint: &self.endpoint,
            page: format!("{}/{}", self.endpoint, self.page()),
            issued,
        }
    }
}

fn request(method: Method, url: Url, range: Option<&Range<u64>>, issued: &Issued) -> Result<Request> {
    let mut request = Request::new(method, url);
    let headers = request.headers_mut();
    match range {
        Some(range) => range::ask(headers, range)?,
        None => _ = headers.insert(ACCEPT_ENCODING, range::IDENTITY),
    }
    let named = |e: Error| e.within(issued.name.as_deref().unwrap_or("the Hub's token (HF_TOKEN)"));
    if let Some(value) = issued.key.authorization().map_err(named)? {
        headers.insert(AUTHORIZATION, value);
    }
    Ok(request)
}

/// A path as it stands in a URL.
fn encoded(path: &str) -> String {
    path.split('/')
        .map(|part| utf8_percent_encode(part, UNRESERVED).to_string())
        .collect::<Vec<_>>()
        .join("/")
}

fn endpoint(text: &str, allow_http: bool) -> Result<Url> {
    let invalid = |text: &str| Error::new(Kind::Invalid, text);
    let form = "the Hub's endpoint is no URL of the form https://host (HF_ENDPOINT)";
    let url = Url::parse(text).map_err(|_| invalid(form))?;
    let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if !bare || url.fragment().is_some() || !matches!(url.scheme(), "http" | "https") {
        return Err(invalid(form));
    }
    if url.scheme() == "http" && !allow_http && !loopback(&url) {
        let text = "the Hub's endpoint is plain http, which shows the token to everybody on the way; use https, or allow \
                    http explicitly (HF_ENDPOINT)";
        return Err(invalid(text));
    }
    Ok(url)
}

fn wrong(text: impl Into<String>) -> Error {
    Error::new(Kind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::source::{HubAccess, Secret};

    fn open(kind: HubKind, id: &str, access: &Access) -> Result<Api> {
        let uri = Uri::Hf { kind, id: id.into(), revision: None, path: String::new() };
        Api::new(&uri, kind, id, access)
    }

    fn api(kind: HubKind, id: &str) -> Api {
        open(kind, id, &Access::default()).expect("valid")
    }

    #[test]
    fn files_are_asked_for_where_huggingface_hub_asks() {
        let vectors: Value =
            serde_json::from_str(include_str!("../../source/testdata/hf_uri.json")).expect("JSON");
        for vector in vectors["urls"].as_array().expect("urls") {
            let text = |name: &str| vector["args"][name].as_str();
            let kind = match text("repo_type") {
                Some("dataset") => HubKind::Dataset,
                Some("space") => HubKind::Space,
                _ => HubKind::Model,
            };
            // A commit is all that content is asked for by; the library takes any revision.
            let revision = utf8_percent_encode(text("revision").unwrap_or("main"), UNRESERVED).to_string();
            let url =
                api(kind, text("repo_id").expect("id")).content(&revision, text("filename").expect("file"));
            assert_eq!(Some(url.as_str()), vector["url"].as_str());
        }
        let tree = api(HubKind::Dataset, "o/d").tree("c", "a b/#");
        assert_eq!(tree.as_str(), "https://huggingface.co/api/datasets/o/d/tree/c/a%20b/%23");
    }

    #[test]
    fn an_endpoint_may_have_a_path_and_no_secret() {
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
            ("https://u:quiet@h", "no URL of the form"),
            ("https://h?x=quiet", "no URL of the form"),
            ("h", "no URL of the form"),
        ] {
            let error = at(bad, false).expect_err(bad);
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains(said) && !error.to_string().contains("quiet"), "{error}");
        }
        at("http://h", true).expect("allowed");
    }
}
