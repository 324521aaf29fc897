//! Reading content: asked of the Hub, and read from wherever it leads.

use std::ops::Range;
use std::time::SystemTime;

use futures_util::StreamExt;
use reqwest::{Method, Request, Response};
use url::Url;

use super::Hub;
use super::api::Answer;
use super::told::Told;
use super::version::Version;
use crate::blob::Blob;
use crate::client;
use crate::error::{Error, Kind, Result};
use crate::origin::{changed, foreign, range, shown};
use crate::tier::Body;

/// How often an address in the storage is tried: one that was known, and one that is fresh.
const ADDRESSES: usize = 2;

/// The part `range` of `blob`.
pub(super) async fn get(hub: &Hub, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
    let version = Version::decode(&blob.version).ok_or_else(|| foreign(&shown(&hub.name, &blob.path)))?;
    let what = if version.alone { hub.name.clone() } else { shown(&hub.name, &blob.path) };
    let response = answer(hub, blob, &version, &range, &what).await?;
    range::check(&response, blob.size, &range, &what)?;
    let body = response.bytes_stream().map(|piece| piece.map_err(client::transport));
    Ok(Some(client::exactly(body, range.end - range.start, what)))
}

/// The answer of whoever sends the content.
async fn answer(
    hub: &Hub,
    blob: &Blob,
    version: &Version,
    range: &Range<u64>,
    what: &str,
) -> Result<Response> {
    for _ in 0..ADDRESSES {
        let address = match hub.signed.get(&blob.key, SystemTime::now()) {
            Some(known) => known,
            None => match resolve(hub, blob, version, range, what).await? {
                Answer::Here(response) => return Ok(response),
                Answer::Elsewhere(address) => {
                    hub.signed.keep(blob.key, &address, SystemTime::now());
                    address
                }
            },
        };
        if let Some(response) = stored(hub, &address, range).await.map_err(|e| e.within(what))? {
            return Ok(response);
        }
        hub.signed.forget(&blob.key, &address);
    }
    let text = format!("{what}: the storage behind the Hub refuses the address that the Hub gave for it");
    Err(Error::new(Kind::Unavailable, text))
}

/// Asks the Hub for `range` of the content, or where it is. What the Hub says of it must be what was pinned.
async fn resolve(
    hub: &Hub,
    blob: &Blob,
    version: &Version,
    range: &Range<u64>,
    what: &str,
) -> Result<Answer> {
    let path = match version.alone {
        true => hub.path.clone(),
        false => hub.below(&String::from_utf8_lossy(&blob.path)),
    };
    let mut told = Told::default();
    let url = hub.api.content(&hub.commit.sha, &path);
    let answer = hub.api.ask(Method::GET, url, Some(range), &mut told).await;
    let answer = answer.map_err(|e| match e.kind() {
        Kind::NotFound | Kind::Changed => changed(what, &e.to_string()),
        _ => e.within(what),
    })?;
    if told.commit.is_some_and(|commit| commit != hub.commit.sha) {
        return Err(changed(what, "the Hub answers for another commit"));
    }
    match told.oid {
        Some(oid) if oid.eq_ignore_ascii_case(&version.oid) => Ok(answer),
        Some(_) => Err(changed(what, "the Hub tells another version of it")),
        None => {
            let text = format!("{what}: the Hub doesn't tell which version of it that is");
            Err(Error::new(Kind::Unsupported, text))
        }
    }
}

/// Asks the storage, without the token; `None` where the address is not good, or no longer.
async fn stored(hub: &Hub, address: &Url, range: &Range<u64>) -> Result<Option<Response>> {
    let mut request = Request::new(Method::GET, address.clone());
    range::ask(request.headers_mut(), range)?;
    let response = hub.storage.execute(request).await?;
    match response.status().as_u16() {
        // What storages answer to a signature that has expired, and to an address that was never good.
        400 | 401 | 403 | 404 | 410 => Ok(None),
        _ => client::accept(response).await.map(Some),
    }
}
