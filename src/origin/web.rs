//! Web servers as origins: one file, or a directory that an index at its URL lists ([`directory_index`]).

mod directory_index;
mod file_probe;
mod validator;
mod web_listing;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use percent_encoding::{percent_decode_str, percent_encode};
use reqwest::header::AUTHORIZATION;
use reqwest::redirect::Policy;
use reqwest::{Method, Request, Response, StatusCode};
use url::Url;

use self::directory_index::IndexFormat;
use self::validator::Validator;
use super::range_request::{RangeRequest, condition};
use super::redirect::RedirectGuard;
use super::{display_path, foreign_version, is_sequential};
use crate::auth::{IssuedKey, KeyCache};
use crate::blob::Blob;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::manifest::Listing;
use crate::source::{Access, Uri, loopback};
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// A file of a web server, or a directory of it.
#[derive(Debug)]
pub(super) struct WebOrigin {
    name: String,
    /// The source's URL.
    url: Url,
    layout: UrlLayout,
    client: HttpClient,
    keys: KeyCache,
    /// Whether files are read of which the server tells no version.
    unpinned: bool,
    /// Whether the server was seen to send a part of a file: some only say that they do.
    has_ranges: AtomicBool,
}

/// The kind of a URL.
#[derive(Debug, PartialEq, Eq)]
enum UrlLayout {
    /// One file, of this name.
    File(Vec<u8>),
    /// A directory, listed by the first of these indexes that exists. The files lie below the URL's directory.
    Directory(&'static [IndexFormat]),
}

impl WebOrigin {
    /// Opens what `url` names; no request is made.
    pub(super) fn open(url: &Url, access: &Access) -> Result<Self> {
        let name = Uri::Http(url.clone()).to_string();
        if url.scheme() == "http" && !access.allow_http && !loopback(url) {
            let text = "plain http can be read and changed on its way; use https, or allow http explicitly";
            return Err(Error::new(Kind::Invalid, format!("{name}: {text}")));
        }
        let layout = UrlLayout::of(url).map_err(|e| e.context(&name))?;
        let authorities = access.authorities.as_deref();
        let client = RedirectGuard::new(url, access).following_client(authorities);
        let client = client.map_err(|e| e.context(&name))?;
        // The provider of keys is not the server.
        let issuers = HttpClient::new(Policy::none(), authorities)?;
        let keys = KeyCache::lazy(&Uri::Http(url.clone()), access, &issuers);
        Ok(Self {
            name,
            url: url.clone(),
            layout,
            client,
            keys,
            unpinned: access.unpinned,
            has_ranges: AtomicBool::new(false),
        })
    }

    /// Sends a request with the key. A redirect to another host is followed without it (reqwest drops the header). Any
    /// response is returned but a refusal, which is an error.
    async fn execute(&self, request: &Request) -> Result<Response> {
        let send = |issued: Arc<IssuedKey>| async move {
            let mut request = request.try_clone().ok_or_else(|| foreign_version(&self.name))?;
            if let Some(value) = issued.key.authorization()? {
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            let response = self.client.execute(request).await?;
            match response.status() {
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    http_client::accept(response).await.map_err(|e| issued.explain_refusal(e))
                }
                _ => Ok(response),
            }
        };
        self.keys.send_with_key(send).await
    }

    /// Sends a request with the key, and makes an error of any response but success.
    async fn send(&self, request: &Request) -> Result<Response> {
        http_client::accept(self.execute(request).await?).await
    }

    /// The URL of the file at `path`. The query of the source's URL, which may be a signature, goes with it.
    fn url(&self, path: &[u8]) -> Url {
        let mut url = self.url.clone();
        if let UrlLayout::Directory(_) = self.layout {
            let above = url.path().rfind('/').map_or("", |slash| &url.path()[..slash]);
            let encode = |part| percent_encode(part, http_client::PATH_SEGMENT_ENCODE_SET).to_string();
            let parts: Vec<_> = path.split(|b| *b == b'/').map(encode).collect();
            let below = format!("{above}/{}", parts.join("/"));
            url.set_path(&below);
        }
        url
    }

    /// The name of the file at `path`, for messages.
    fn file_name(&self, path: &[u8]) -> String {
        match self.layout {
            UrlLayout::File(_) => self.name.clone(),
            UrlLayout::Directory(_) => {
                let base = self.name.split('?').next().unwrap_or_default();
                display_path(base.rfind('/').map_or(base, |slash| &base[..slash]), path)
            }
        }
    }

    async fn get(&self, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
        let wanted = RangeRequest::new(self.file_name(&blob.path), blob, range);
        let validator = Validator::decode(&blob.version).ok_or_else(|| foreign_version(&wanted.name))?;
        let mut request = Request::new(Method::GET, self.url(&blob.path));
        let headers = request.headers_mut();
        wanted.set_headers(headers);
        if let Some((name, value)) = validator.condition() {
            headers.insert(name, condition(value)?);
        }
        let response = self.send(&request).await.map_err(|e| wanted.failed(e))?;
        if Validator::of(response.headers()).is_none() && validator.condition().is_some() {
            return Err(wanted.lacks_version());
        }
        if !validator.matches(response.headers()) {
            return Err(wanted.changed("the server sends another version of it"));
        }
        wanted.check_encoding(&response)?;
        if is_sequential(&blob.version) && wanted.is_whole(&response)? {
            return Ok(Some(wanted.body_of_whole(response)));
        }
        wanted.check_range(&response)?;
        Ok(Some(wanted.body(response)))
    }
}

impl Tier for WebOrigin {
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

impl Origin for WebOrigin {
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
        web_listing::list(self, listing).boxed()
    }
}

/// Whether `version` is a strong ETag of a web server.
pub(super) fn has_strong_version(version: &[u8]) -> bool {
    matches!(Validator::decode(version), Some(Validator::Etag(_)))
}

/// Whether no request can be conditional on `version`, and so nothing of it is read before it is whole and checked.
pub(super) fn is_unconditional(version: &[u8]) -> bool {
    matches!(Validator::decode(version), Some(Validator::Sha256(_)))
}

impl UrlLayout {
    fn of(url: &Url) -> Result<Self> {
        let last = url.path().rsplit('/').next().unwrap_or_default();
        let name: Vec<u8> = percent_decode_str(last).collect();
        if name.is_empty() {
            return Ok(Self::Directory(&IndexFormat::ALL));
        }
        if let Some(index) = IndexFormat::ALL.iter().position(|format| format.file().as_bytes() == name) {
            return Ok(Self::Directory(&IndexFormat::ALL[index..=index]));
        }
        if name.contains(&b'/') || name.contains(&0) {
            return Err(Error::new(Kind::Invalid, format!("{last:?} is not a valid file name")));
        }
        Ok(Self::File(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_layout_is_a_file_or_a_directory() {
        let of = |text: &str| UrlLayout::of(&Url::parse(text).expect("URL"));
        assert_eq!(of("https://h/a/b%20c?x").expect("file"), UrlLayout::File(b"b c".to_vec()));
        assert_eq!(of("https://h/a/").expect("directory"), UrlLayout::Directory(&IndexFormat::ALL));
        assert_eq!(of("https://h").expect("directory"), UrlLayout::Directory(&IndexFormat::ALL));
        assert_eq!(of("https://h/bdnfs.json").expect("index"), UrlLayout::Directory(&[IndexFormat::Json]));
        assert_eq!(of("https://h/a/SHA256SUMS").expect("index"), UrlLayout::Directory(&[IndexFormat::Sums]));
        assert_eq!(of("https://h/a%2Fb").expect_err("slash").kind(), Kind::Invalid);
    }

    #[test]
    fn url_of_a_file_lies_below_the_directory() {
        let web =
            |text: &str| WebOrigin::open(&Url::parse(text).expect("URL"), &Access::default()).expect("open");
        let directory = web("https://h/d%20e/bdnfs.json?sig=1");
        assert_eq!(directory.url(b"a b/%?#\xff").as_str(), "https://h/d%20e/a%20b/%25%3F%23%FF?sig=1");
        assert_eq!(directory.file_name(b"a/b"), "https://h/d%20e/a/b");
        assert!(!directory.identity().contains("sig"));
        assert_ne!(directory.identity(), web("https://h/d%20e/bdnfs.json?sig=2").identity());
        assert_eq!(web("https://h/x?y").url(b"x").as_str(), "https://h/x?y");
    }

    #[test]
    fn plain_http_is_opened_on_loopback_only() {
        let open = |text: &str, allow_http| {
            WebOrigin::open(&Url::parse(text).expect("URL"), &Access { allow_http, ..Access::default() })
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
