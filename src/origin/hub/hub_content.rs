//! Reading content: located by the Hub, and read from wherever that is.

use std::ops::Range;

use reqwest::{Method, Request, Response};
use url::Url;

use super::HubOrigin;
use super::hub_api::HubAnswer;
use super::hub_version::HubVersion;
use super::signed_url::ContentLocation;
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::http_client;
use crate::origin::range_request::RangeRequest;
use crate::origin::{display_path, foreign_version};
use crate::tier::Body;

/// How many signed URLs are tried: one that was known, and a new one.
const URL_ATTEMPTS: usize = 2;

/// Reads the part `range` of `blob`.
pub(super) async fn get(hub: &HubOrigin, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
    let name = display_path(&hub.name, &blob.path);
    let version = HubVersion::decode(&blob.version).ok_or_else(|| foreign_version(&name))?;
    let name = if version.alone { hub.name.clone() } else { name };
    let wanted = RangeRequest::new(name, blob, range);
    let response = request(hub, blob, &version, &wanted).await?;
    wanted.check(&response)?;
    Ok(Some(wanted.body(response)))
}

/// Asks for the range wherever the content is.
async fn request(
    hub: &HubOrigin,
    blob: &Blob,
    version: &HubVersion,
    wanted: &RangeRequest,
) -> Result<Response> {
    for _ in 0..URL_ATTEMPTS {
        let mut sent = None;
        let ask = async {
            Ok(match locate(hub, blob, version, wanted).await? {
                HubAnswer::Here(response) => {
                    sent = Some(response);
                    ContentLocation::Hub
                }
                HubAnswer::Elsewhere(url) => ContentLocation::Storage(url),
            })
        };
        let location = hub.locations.get_or_locate(blob.key, ask).await?;
        if let Some(response) = sent {
            return Ok(response);
        }
        let url = match location {
            ContentLocation::Storage(url) => url,
            // Whoever located it has only the range that it asked for.
            ContentLocation::Hub => match locate(hub, blob, version, wanted).await? {
                HubAnswer::Here(response) => return Ok(response),
                HubAnswer::Elsewhere(url) => url,
            },
        };
        if let Some(response) = stored(hub, &url, wanted).await? {
            return Ok(response);
        }
        hub.locations.forget(blob.key, &url).await;
    }
    let text =
        format!("{}: the storage behind the Hub refuses the URL that the Hub gave for it", wanted.name);
    Err(Error::new(Kind::Unavailable, text))
}

/// Asks the Hub for the range, or where it is. What the Hub says of the file must be what was pinned.
async fn locate(
    hub: &HubOrigin,
    blob: &Blob,
    version: &HubVersion,
    wanted: &RangeRequest,
) -> Result<HubAnswer> {
    let path = match version.alone {
        true => hub.path.clone(),
        false => hub.below(&String::from_utf8_lossy(&blob.path)),
    };
    let url = hub.api.content(&hub.commit.sha, &path);
    let located = hub.api.locate(Method::GET, url, Some(wanted)).await;
    let (answer, file) = located.map_err(|e| wanted.failed(e))?;
    if file.commit.is_some_and(|commit| commit != hub.commit.sha) {
        return Err(wanted.changed("the Hub answers for another commit"));
    }
    match file.oid {
        Some(oid) if oid.eq_ignore_ascii_case(&version.oid) => Ok(answer),
        Some(_) => Err(wanted.changed("the Hub has another version of it")),
        None => {
            let text = format!("{}: the Hub does not say which version of it that is", wanted.name);
            Err(Error::new(Kind::Unsupported, text))
        }
    }
}

/// Asks the storage, without the token; `None` where the URL is not valid, or no longer.
async fn stored(hub: &HubOrigin, url: &Url, wanted: &RangeRequest) -> Result<Option<Response>> {
    let mut request = Request::new(Method::GET, url.clone());
    wanted.set_headers(request.headers_mut());
    let within = |e: Error| e.within(&wanted.name);
    let response = hub.storage.execute(request).await.map_err(within)?;
    match response.status().as_u16() {
        // What storages answer to a signature that has expired, and to a URL that was never valid.
        400 | 401 | 403 | 404 | 410 => Ok(None),
        _ => http_client::accept(response).await.map(Some).map_err(within),
    }
}
