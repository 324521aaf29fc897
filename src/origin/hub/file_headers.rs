//! The headers in which the Hub describes a file, wherever the file itself comes from.

use reqwest::Response;
use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderName};

use crate::http_client::header;

const COMMIT_HEADER: HeaderName = HeaderName::from_static("x-repo-commit");
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");

/// The headers of the responses to one request; the first response that has one counts.
#[derive(Debug, Default)]
pub(super) struct FileHeaders {
    /// The commit that it is the file of.
    pub commit: Option<String>,
    /// The id of its content, without quotes: the SHA-256 of a large file, else that of git.
    pub oid: Option<String>,
    /// The size in bytes, as a response to HEAD tells it.
    pub size: Option<u64>,
}

impl FileHeaders {
    /// Adds what `response` says.
    pub(super) fn add(&mut self, response: &Response) {
        let headers = response.headers();
        let text = |name: &HeaderName| header(headers, name).map(str::to_owned);
        // The plain headers of a redirect are about the redirect itself.
        let plain = |name: &HeaderName| text(name).filter(|_| response.status().is_success());
        let oid = text(&LINKED_ETAG).or_else(|| plain(&ETAG));
        let size = text(&LINKED_SIZE).or_else(|| plain(&CONTENT_LENGTH));
        self.commit = self.commit.take().or_else(|| text(&COMMIT_HEADER));
        self.oid = self.oid.take().or_else(|| oid.map(|etag| unquote(&etag).to_owned()));
        self.size = self.size.or_else(|| size?.parse().ok());
    }
}

/// An ETag without its quotes. A weak one will do: it is the id of the content, whatever the encoding.
fn unquote(etag: &str) -> &str {
    etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"')
}
