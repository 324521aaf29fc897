//! Reading content: located by the Hub, and read from wherever that is.
//!
//! A small file's git id, which the tree has, identifies it: it is read whole and verified by that, so its ETag may be anything.

use std::ops::Range;

use futures_util::{StreamExt, stream};
use reqwest::{Method, Request, Response};
use url::Url;

use super::HubOrigin;
use super::hub_api::HubResponse;
use super::hub_version::HubVersion;
use super::signed_url::ContentLocation;
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::http_client;
use crate::origin::range_request::RangeRequest;
use crate::origin::{display_path, foreign_version};
use crate::tier::Body;

/// The number of signed URLs that are tried: one that was known, and a new one.
const URL_ATTEMPT_LIMIT: usize = 2;

/// The largest file that is read whole for its git id, in bytes. The Hub has none over 10 MB in git.
const MAX_GIT_FILE_BYTES: u64 = 16 << 20;

/// Reads the part `range` of `blob`.
pub(super) async fn get(hub: &HubOrigin, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
    let name = display_path(&hub.name, &blob.path);
    let version = HubVersion::decode(&blob.version).ok_or_else(|| foreign_version(&name))?;
    let name = if version.alone { hub.name.clone() } else { name };
    if !is_checked(&version, blob) {
        let wanted = RangeRequest::new(name, blob, range);
        let (response, _) = request(hub, blob, &version, &wanted).await?;
        return Ok(Some(wanted.body(response)));
    }
    let whole = RangeRequest::new(name, blob, 0..blob.size);
    let (response, doubt) = request(hub, blob, &version, &whole).await?;
    let content =
        http_client::read(response, whole.bytes() as usize).await.map_err(|e| e.context(&whole.name))?;
    if version.matches_git_id(&content) == Some(false) {
        // The Hub may lead to the right content next time.
        hub.locations.remove(blob.key).await;
        let text = format!("{}: the Hub sends content that does not have the git id of its tree", whole.name);
        return Err(doubt.unwrap_or_else(|| Error::new(Kind::Corrupt, text)));
    }
    if content.len() as u64 != blob.size {
        let text = format!("{}: the Hub sends {} bytes instead of {}", whole.name, content.len(), blob.size);
        return Err(Error::new(Kind::Changed, text));
    }
    let part = content.slice(range.start as usize..range.end as usize);
    Ok(Some(stream::iter([Ok(part)]).boxed()))
}

/// Whether `blob` is a file of the Hub that is read whole.
pub(in crate::origin) fn is_sent_whole(blob: &Blob) -> bool {
    HubVersion::decode(&blob.version).is_some_and(|version| is_checked(&version, blob))
}

/// Whether the content is held against its git id. Larger files than the Hub has in git are not read whole.
fn is_checked(version: &HubVersion, blob: &Blob) -> bool {
    version.is_git_id() && blob.size <= MAX_GIT_FILE_BYTES
}

/// Requests the range from wherever the content is. Returns also why it may be of another version, where the content tells.
async fn request(
    hub: &HubOrigin,
    blob: &Blob,
    version: &HubVersion,
    wanted: &RangeRequest,
) -> Result<(Response, Option<Error>)> {
    for _ in 0..URL_ATTEMPT_LIMIT {
        let (mut sent, mut doubt) = (None, None);
        let ask = async {
            let (answer, doubted) = locate(hub, blob, version, wanted).await?;
            doubt = doubted;
            Ok(match answer {
                HubResponse::Here(response) => {
                    sent = Some(response);
                    ContentLocation::Hub
                }
                HubResponse::Elsewhere(url) => ContentLocation::Storage(url),
            })
        };
        let location = hub.locations.get_or_locate(blob.key, ask).await?;
        if let Some(response) = sent {
            wanted.check(&response)?;
            return Ok((response, doubt));
        }
        let url = match location {
            ContentLocation::Storage(url) => url,
            // The reader that located it received only the range that it asked for.
            ContentLocation::Hub => match locate(hub, blob, version, wanted).await? {
                (HubResponse::Here(response), doubt) => {
                    wanted.check(&response)?;
                    return Ok((response, doubt));
                }
                (HubResponse::Elsewhere(url), _) => url,
            },
        };
        let response = stored(hub, &url, wanted).await;
        if let Ok(Some(response)) = response {
            return Ok((response, doubt));
        }
        // The Hub may lead to another host next time.
        hub.locations.forget(blob.key, &url).await;
        response?;
    }
    let text =
        format!("{}: the storage behind the Hub refuses the URL that the Hub gave for it", wanted.name);
    Err(Error::new(Kind::Unavailable, text))
}

/// Asks the Hub for the range, or where it is. What the Hub says of the file must be what was pinned, unless the content is
/// checked: then what speaks against it comes along.
async fn locate(
    hub: &HubOrigin,
    blob: &Blob,
    version: &HubVersion,
    wanted: &RangeRequest,
) -> Result<(HubResponse, Option<Error>)> {
    let path = match version.alone {
        true => hub.path.clone(),
        false => hub.below(&String::from_utf8_lossy(&blob.path)),
    };
    let url = hub.api.content(&hub.commit.sha, &path);
    let located = hub.api.locate(Method::GET, url, Some(wanted)).await;
    let (answer, file) = located.map_err(|e| wanted.failed(e))?;
    if file.commit.is_some_and(|commit| commit != hub.commit.sha) {
        return Err(wanted.changed("the Hub's response is for another commit"));
    }
    let doubt = match file.oid {
        Some(oid) if oid.eq_ignore_ascii_case(&version.oid) => return Ok((answer, None)),
        Some(_) => wanted.changed("the Hub has another version of it"),
        None => {
            let text = format!("{}: the Hub does not say which version of it that is", wanted.name);
            Error::new(Kind::Unsupported, text)
        }
    };
    if is_checked(version, blob) { Ok((answer, Some(doubt))) } else { Err(doubt) }
}

/// Requests the range from the storage, without the token; `None` where the URL is not valid, or no longer.
async fn stored(hub: &HubOrigin, url: &Url, wanted: &RangeRequest) -> Result<Option<Response>> {
    let mut request = Request::new(Method::GET, url.clone());
    wanted.set_headers(request.headers_mut());
    let with_context = |e: Error| e.context(&wanted.name);
    let response = hub.storage.execute(request).await.map_err(with_context)?;
    match response.status().as_u16() {
        // Storages answer so to an expired signature, and to a URL that was never valid.
        400 | 401 | 403 | 404 | 410 => Ok(None),
        _ => {
            let response = http_client::accept(response).await.map_err(with_context)?;
            wanted.check(&response)?;
            Ok(Some(response))
        }
    }
}
