//! Origins: the services that sources live on.
//!
//! Each is a [`Tier`](crate::tier::Tier) that can also say what a source holds. An origin keeps no state between a
//! listing and a fetch: what a fetch needs stands in the blob's path and version, so a snapshot taken by one process
//! can be read by the next.

mod file;
mod hf;
mod http;
mod object;
mod pages;
mod range;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::source::{Access, Uri};
use crate::tier::Origin;

/// Opens the origin that `uri` names. Whether what it names is there, the listing tells. A revision of the Hugging Face
/// Hub is resolved here and once: the origin is the commit, and no later push changes it.
///
/// # Errors
/// [`Kind::Unsupported`] for a scheme that is not served yet, [`Kind::Invalid`] and [`Kind::Refused`] for an `access`
/// that does not do; for local files also [`Kind::NotFound`], and for the Hub those of
/// [`Tier::fetch`](crate::tier::Tier::fetch).
pub async fn open(uri: &Uri, access: &Access) -> Result<Arc<dyn Origin>> {
    Ok(match uri {
        Uri::File(path) => Arc::new(file::Files::open(path).await?),
        Uri::Http(url) => Arc::new(http::Web::open(url, access)?),
        Uri::Hf { kind, id, revision, path } => {
            Arc::new(hf::Hub::open(*kind, id, revision.as_deref(), path, access).await?)
        }
        Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } | Uri::Gs { .. } | Uri::Azure { .. } => {
            Arc::new(object::Objects::open(uri, access).await?)
        }
    })
}

/// The name of what lies at `path` below the origin `origin`, for messages.
fn shown(origin: &str, path: &[u8]) -> String {
    if path.is_empty() {
        return origin.into();
    }
    let path = String::from_utf8_lossy(path);
    format!("{}/{}", origin.trim_end_matches('/'), path.escape_debug())
}

/// The error for a blob whose version is not in its origin's own words.
fn foreign(what: &str) -> Error {
    Error::new(Kind::Invalid, format!("{what}: the manifest's version of it is none of this origin's"))
}

/// The error for content that is no longer what the snapshot pinned.
fn changed(what: &str, how: &str) -> Error {
    Error::new(Kind::Changed, format!("{what} changed since the snapshot was taken ({how}); take a new one"))
}
