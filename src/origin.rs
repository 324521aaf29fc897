//! Origins: the services that sources live on.
//!
//! Each is a [`Tier`](crate::tier::Tier) that can also list what a source holds. An origin keeps no state between a
//! listing and a fetch: what a fetch needs stands in the blob's path and version, so a snapshot taken by one process
//! can be read by the next.
//!
//! ```text
//!  open(uri) ──> local           directories and files of this machine
//!            ──> web             files of a web server, and indexes of them ─┐
//!            ──> object_storage  S3, GCS, Azure, and what speaks S3 ─────────┼──> range_request ──> http_client
//!            ──> hub             repositories of the Hugging Face Hub ───────┘    (auth: the key of each request)
//! ```

mod executable;
mod hub;
mod local;
mod object_storage;
mod pagination;
mod range_request;
mod redirect;
#[cfg(test)]
mod tests;
mod web;

use std::sync::Arc;

use crate::blob::{Blob, WHOLE_MARK};
use crate::error::{Error, Kind, Result};
use crate::source::{Access, Patterns, Uri};
use crate::tier::Origin;

pub(crate) use local::version as file_version;

/// The word that begins the version of a file which is the whole source, in the manifests of hubs and buckets.
const SINGLE_FILE_MARK: &str = "alone";

/// Opens the origin that `uri` names. Whether what it names exists, only a listing tells. A revision of the Hugging Face
/// Hub is resolved here and once: the origin is the commit, and no later push changes it.
///
/// # Errors
/// [`Kind::Unsupported`] for a scheme that is not served yet, [`Kind::Invalid`] and [`Kind::Refused`] for a wrong
/// `access`; for local files also [`Kind::NotFound`], and for the Hub those of
/// [`Tier::fetch`](crate::tier::Tier::fetch).
pub async fn open(uri: &Uri, access: &Access) -> Result<Arc<dyn Origin>> {
    let origin: Arc<dyn Origin> = match uri {
        Uri::File(path) => Arc::new(local::LocalOrigin::open(path, &access.beneath).await?),
        Uri::Bt(_) => {
            let text =
                format!("{uri} is a checkpoint, which only a mirror has: it can be mounted, and not copied");
            return Err(Error::new(Kind::Unsupported, text));
        }
        Uri::Http(url) => Arc::new(web::WebOrigin::open(url, access)?),
        Uri::Hf { kind, id, revision, path } => {
            Arc::new(hub::HubOrigin::open(*kind, id, revision.as_deref(), path, access).await?)
        }
        Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } | Uri::Gs { .. } | Uri::Azure { .. } => {
            Arc::new(object_storage::BucketOrigin::open(uri, access).await?)
        }
    };
    if access.executable.is_empty() {
        return Ok(origin);
    }
    let patterns = Patterns::new(&access.executable, &[])?;
    Ok(Arc::new(executable::ExecutableFiles { origin, patterns }))
}

/// Whether no request can be conditional on `version`: two of them may be answered from two states of the file, and only all of
/// it, held against its published hash, is known to be of one.
pub(crate) fn is_unconditional(version: &[u8]) -> bool {
    web::is_unconditional(version)
}

/// Whether `version` changes with every byte of a file, and a request for a part of it is conditional on it and answered with that.
pub(crate) fn has_strong_version(version: &[u8]) -> bool {
    !is_sequential(version) && (web::has_strong_version(version) || object_storage::is_version(version))
}

/// Whether the origin of `version` sends files only whole and from their beginning.
pub(crate) fn is_sequential(version: &[u8]) -> bool {
    version.starts_with(WHOLE_MARK.as_bytes())
}

/// Whether the origin is asked for all of `blob` by whoever wants a part.
pub(crate) fn is_sent_whole(blob: &Blob) -> bool {
    is_sequential(&blob.version) || hub::is_sent_whole(blob)
}

/// The name of the file at `path` below `origin`, for messages.
fn display_path(origin: &str, path: &[u8]) -> String {
    if path.is_empty() {
        return origin.into();
    }
    let path = String::from_utf8_lossy(path);
    format!("{}/{}", origin.trim_end_matches('/'), path.escape_debug())
}

/// The error for a blob whose version another kind of origin wrote.
fn foreign_version(name: &str) -> Error {
    Error::new(Kind::Invalid, format!("{name}: the version in the manifest is not one of this origin"))
}

/// The error for content that the origin no longer has. To a reader it is content that changed.
fn missing_file_error(name: &str, how: &str) -> Error {
    Error::new(
        Kind::Changed,
        format!("{name} is gone, though the snapshot has it ({how}); restore it, or take a new snapshot"),
    )
}

/// The error for content that is no longer what the snapshot pinned.
pub(crate) fn changed(name: &str, how: &str) -> Error {
    Error::new(Kind::Changed, format!("{name} changed since the snapshot was taken ({how}); take a new one"))
}
