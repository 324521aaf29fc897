//! Web servers as origins: one file, or a directory that an index at its URL lists ([`index`]).

mod index;
mod list;
mod probe;
mod validator;

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use percent_encoding::{percent_decode_str, percent_encode};
use reqwest::header::AUTHORIZATION;
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Method, Request, Response, StatusCode};
use url::Url;

use self::index::Format;
use self::validator::Validator;
use super::{changed, foreign, range, shown};
use crate::blob::Blob;
use crate::client::{self, Client};
use crate::credentials::{Issued, Keys};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::Listing;
use crate::source::{Access, Uri, loopback};
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// How many redirects are followed, one after the other.
const REDIRECTS: usize = 10;

/// A file of a web server, or a directory of it.
#[derive(Debug)]
pub(super) struct Web {
    name: String,
    /// What was named.
    url: Url,
    layout: Layout,
    client: Client,
    keys: Keys,
}

/// What a URL means.
#[derive(Debug, PartialEq, Eq)]
enum Layout {
    /// One file, of this name.
    File(Vec<u8>),
    /// A directory that the first of these indexes lists that is there. The files lie below the URL's directory.
    Directory(&'static [Format]),
}

impl Web {
    pub(super) fn open(url: &Url, access: &Access) -> Result<Self> {
        let allow_http = access.allow_http;
        let name = Uri::Http(url.clone()).to_string();
        if url.scheme() == "http" && !allow_http && !loopback(url) {
            let text = "plain http can be read and changed on its way; use https, or allow http explicitly";
            return Err(Error::new(Kind::Invalid, format!("{name}: {text}")));
        }
        let layout = layout(url).map_err(|e| e.within(&name))?;
        let redirects = Policy::custom(move |attempt| redirect(attempt, allow_http));
        let client = Client::new(redirects, access.authorities.as_deref()).map_err(|e| e.within(&name))?;
        let keys = Keys::lazy(&Uri::Http(url.clone()), access, &client);
        Ok(Self { name, url: url.clone(), layout, client, keys })
    }

    /// Asks the server, and tells it who does. A redirect to another host is followed without that (reqwest drops the
    /// header). Answers of success and others come back; only a refusal of who asks is an error.
    async fn ask(&self, request: &Request) -> Result<Response> {
        let ask = |issued: Arc<Issued>| async move {
            let mut request = request.try_clone().ok_or_else(|| foreign(&self.name))?;
            if let Some(value) = issued.key.authorization()? {
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            let response = self.client.execute(request).await?;
            match response.status() {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    client::accept(response).await.map_err(|e| issued.blame(e))
                }
                _ => Ok(response),
            }
        };
        self.keys.with(ask).await
    }

    /// The same, and only an answer of success comes back.
    async fn send(&self, request: &Request) -> Result<Response> {
        client::accept(self.ask(request).await?).await
    }

    /// Where the file at `path` is asked for. A query of the source's URL, which may be a signature, goes along.
    fn url(&self, path: &[u8]) -> Url {
        let mut url = self.url.clone();
        if let Layout::Directory(_) = self.layout {
            let above = url.path().rfind('/').map_or("", |slash| &url.path()[..slash]);
            let parts =
                path.split(|b| *b == b'/').map(|part| percent_encode(part, client::UNRESERVED).to_string());
            let below = format!("{above}/{}", parts.collect::<Vec<_>>().join("/"));
            url.set_path(&below);
        }
        url
    }

    fn shown(&self, path: &[u8]) -> String {
        match self.layout {
            Layout::File(_) => self.name.clone(),
            Layout::Directory(_) => {
                let base = self.name.split('?').next().unwrap_or_default();
                shown(base.rfind('/').map_or(base, |slash| &base[..slash]), path)
            }
        }
    }

    async fn get(&self, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
        let what = self.shown(&blob.path);
        let validator = Validator::decode(&blob.version).ok_or_else(|| foreign(&what))?;
        let mut request = Request::new(Method::GET, self.url(&blob.path));
        let headers = request.headers_mut();
        range::ask(headers, &range)?;
        if let Some((name, value)) = validator.condition() {
            headers.insert(name, range::value(value)?);
        }
        let response = self.send(&request).await.map_err(|e| match e.kind() {
            Kind::NotFound | Kind::Changed => changed(&what, &e.to_string()),
            _ => e.within(&what),
        })?;
        if !validator.holds(response.headers()) {
            return Err(changed(&what, "the server tells another version of it"));
        }
        range::check(&response, blob.size, &range, &what)?;
        let body = response.bytes_stream().map(|piece| piece.map_err(client::transport));
        Ok(Some(client::exactly(body, range.end - range.start, what)))
    }
}

impl Tier for Web {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        self.get(blob, range).boxed()
    }
}

impl Origin for Web {
    fn name(&self) -> &str {
        &self.name
    }

    /// The query belongs to what is named, but may be secret: its hash stands for it.
    fn identity(&self) -> String {
        match self.url.query() {
            Some(query) => format!("{}#{}", self.name, Digest::of(query.as_bytes())),
            None => self.name.clone(),
        }
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        list::list(self, listing).boxed()
    }
}

fn layout(url: &Url) -> Result<Layout> {
    let last = url.path().rsplit('/').next().unwrap_or_default();
    let name: Vec<u8> = percent_decode_str(last).collect();
    if name.is_empty() {
        return Ok(Layout::Directory(&Format::ALL));
    }
    if let Some(index) = Format::ALL.iter().position(|format| format.file().as_bytes() == name) {
        return Ok(Layout::Directory(&Format::ALL[index..=index]));
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Error::new(Kind::Invalid, format!("{last:?} can't be the name of a file")));
    }
    Ok(Layout::File(name))
}

/// Whether a redirect is followed.
pub(super) fn redirect(attempt: Attempt<'_>, allow_http: bool) -> reqwest::redirect::Action {
    let from = attempt.previous();
    if from.len() > REDIRECTS {
        attempt.error("there are more than 10 redirects")
    } else if !matches!(attempt.url().scheme(), "http" | "https") {
        attempt.error("it leads to what is no web server")
    } else if from.iter().any(|from| exposes(from, attempt.url(), allow_http)) {
        attempt.error("it leads to plain http")
    } else {
        attempt.follow()
    }
}

/// Whether a redirect gives up a protection: what was asked for over TLS is never asked for without it.
pub(super) fn exposes(from: &Url, to: &Url, allow_http: bool) -> bool {
    to.scheme() != "https" && (from.scheme() == "https" || !(allow_http || loopback(to)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_means_a_file_or_a_directory() {
        let of = |text: &str| layout(&Url::parse(text).expect("URL"));
        assert_eq!(of("https://h/a/b%20c?x").expect("file"), Layout::File(b"b c".to_vec()));
        assert_eq!(of("https://h/a/").expect("directory"), Layout::Directory(&Format::ALL));
        assert_eq!(of("https://h").expect("directory"), Layout::Directory(&Format::ALL));
        assert_eq!(of("https://h/bdnfs.json").expect("index"), Layout::Directory(&[Format::Json]));
        assert_eq!(of("https://h/a/SHA256SUMS").expect("index"), Layout::Directory(&[Format::Sums]));
        assert_eq!(of("https://h/a%2Fb").expect_err("slash").kind(), Kind::Invalid);
    }

    #[test]
    fn files_are_asked_for_below_the_directory() {
        let web = |text: &str| Web::open(&Url::parse(text).expect("URL"), &Access::default()).expect("open");
        let directory = web("https://h/d%20e/bdnfs.json?sig=1");
        assert_eq!(directory.url(b"a b/%?#\xff").as_str(), "https://h/d%20e/a%20b/%25%3F%23%FF?sig=1");
        assert_eq!(directory.shown(b"a/b"), "https://h/d%20e/a/b");
        assert!(!directory.identity().contains("sig"));
        assert_ne!(directory.identity(), web("https://h/d%20e/bdnfs.json?sig=2").identity());
        assert_eq!(web("https://h/x?y").url(b"x").as_str(), "https://h/x?y");
    }

    #[test]
    fn plain_http_leads_to_this_machine_only() {
        let open = |text: &str, allow_http| {
            Web::open(&Url::parse(text).expect("URL"), &Access { allow_http, ..Access::default() })
        };
        for near in ["http://localhost:1/x", "http://127.9.0.1/x", "http://[::1]/x"] {
            open(near, false).expect(near);
        }
        for far in ["http://h/x", "http://10.0.0.1/x", "http://localhost.example/x"] {
            let error = open(far, false).expect_err(far);
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("use https"), "{error}");
            open(far, true).expect(far);
        }
    }
}
