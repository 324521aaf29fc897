//! Asking a web server for a file's size and version before it is read.

use std::sync::atomic::Ordering;

use reqwest::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, LAST_MODIFIED,
};
use reqwest::{Method, Request, Response, StatusCode};
use url::Url;

use super::WebOrigin;
use super::validator::Validator;
use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::http_client::{accept, header};
use crate::origin::range_request::{IDENTITY, content_range, encoded, is_encoded, is_part, set_range};

/// The metadata of a file in a server's headers.
#[derive(Debug)]
pub(super) struct FileProbe {
    pub size: u64,
    pub validator: Option<Validator>,
    pub mtime: Option<(i64, u32)>,
    /// Whether the server ignores Range and sends all of it.
    pub whole: bool,
    /// Whether its size may be that of an encoded form, made on the way. A part is one of what is stored (RFC 9110, section 14.4).
    encoded: bool,
}

impl FileProbe {
    /// Asks for the headers of `url`, or for its first byte where a server refuses that (a signature, for one, may be
    /// valid for GET only). Where the server does not say that it has ranges, or none was seen yet, the first byte tells.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for a file that comes encoded: a mount would show the encoded form as its content.
    pub(super) async fn of(web: &WebOrigin, url: Url) -> Result<Self> {
        let probe = Self::ask(web, url).await?;
        if probe.encoded { Err(encoded()) } else { Ok(probe) }
    }

    /// The metadata, encoded or not.
    ///
    /// # Errors
    /// Those of the server.
    pub(super) async fn ask(web: &WebOrigin, url: Url) -> Result<Self> {
        let mut request = Request::new(Method::HEAD, url.clone());
        request.headers_mut().insert(ACCEPT_ENCODING, IDENTITY);
        let response = match web.execute(&request).await {
            Err(e) if e.kind() == Kind::Refused => return Self::first_byte(web, url).await,
            answer => answer?,
        };
        match response.status().as_u16() {
            400 | 405 | 501 => return Self::first_byte(web, url).await,
            _ => {
                let response = accept(response).await?;
                let headers = response.headers();
                let ranges = header(headers, &ACCEPT_RANGES).is_some_and(|unit| unit == "bytes")
                    && web.has_ranges.load(Ordering::Relaxed);
                match length(headers).map(|size| Self::new(size, &response)) {
                    // Some servers say so of every file, in answer to HEAD.
                    Some(probe) if probe.size == 0 => {
                        let first = Self::first_byte(web, url).await?;
                        // The response of an empty file, 416, need not have its version.
                        Ok(if first.size == 0 { Self { encoded: first.encoded, ..probe } } else { first })
                    }
                    Some(probe) if !probe.encoded && (ranges || probe.size <= BLOCK) => Ok(probe),
                    Some(probe) => {
                        let first = match Self::first_byte(web, url).await {
                            Ok(first) => first,
                            // Only the first byte tells whether what is stored is encoded.
                            Err(error) if probe.encoded => return Err(error),
                            Err(_) => return Ok(probe),
                        };
                        probe.agree(&first)?;
                        web.has_ranges.fetch_or(!first.whole, Ordering::Relaxed);
                        Ok(first)
                    }
                    None => Self::first_byte(web, url).await,
                }
            }
        }
    }

    /// Checks that the `first` byte is of the file whose headers these are. A response that is not, such as a page of a proxy,
    /// may be the only one.
    fn agree(&self, first: &Self) -> Result<()> {
        if self.encoded || first.encoded {
            return Ok(());
        }
        let how = if self.size != first.size {
            format!("sizes: {} and {} bytes", self.size, first.size)
        } else if let (Some(told), Some(sent)) = (&self.validator, &first.validator)
            && told.contradicts(sent)
        {
            format!("versions: {} and {}", told.encode(), sent.encode())
        } else {
            return Ok(());
        };
        let text = format!(
            "the server's responses to HEAD and to GET have different {how}; try again, or check the server"
        );
        Err(Error::new(Kind::Unavailable, text))
    }

    async fn first_byte(web: &WebOrigin, url: Url) -> Result<Self> {
        let mut request = Request::new(Method::GET, url);
        request.headers_mut().insert(ACCEPT_ENCODING, IDENTITY);
        set_range(request.headers_mut(), &(0..1));
        let response = web.execute(&request).await?;
        // An empty file has no first byte; the response says so.
        let (status, empty) = (response.status(), StatusCode::RANGE_NOT_SATISFIABLE);
        let response = if status == empty { response } else { accept(response).await? };
        let headers = response.headers();
        let size = match status {
            StatusCode::OK => length(headers),
            _ => {
                let sent = header(headers, &CONTENT_RANGE).and_then(content_range);
                sent.and_then(|(_, total)| total).or((status == empty).then_some(0))
            }
        };
        match size {
            Some(size) => {
                Ok(Self { whole: status == StatusCode::OK && size > 1, ..Self::new(size, &response) })
            }
            None => Err(Error::new(Kind::Unsupported, "the server does not send the size of the file")),
        }
    }

    fn new(size: u64, response: &Response) -> Self {
        let headers = response.headers();
        let modified =
            header(headers, &LAST_MODIFIED).and_then(|date| chrono::DateTime::parse_from_rfc2822(date).ok());
        let mtime = modified.map(|date| (date.timestamp(), 0));
        let encoded = size > 0 && is_encoded(response) && !is_part(response);
        Self { size, validator: Validator::of(headers), mtime, whole: false, encoded }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    header(headers, &CONTENT_LENGTH)?.parse().ok()
}
