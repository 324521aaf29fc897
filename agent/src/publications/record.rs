//! Records of publications: what the next agent resumes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bdnfs::error::Result;
use bdnfs::source::{Access, Secret, Uri};
use serde::{Deserialize, Serialize};

use crate::api::publication::PublicationRequest;

/// The record of a publication. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublicationRecord {
    /// The request without its secrets.
    pub request: PublicationRequest,
    /// The mount point of its base; empty while it is pending.
    pub base: PathBuf,
    /// The boot in which it was asked for: binds and containers do not outlive it.
    pub boot: String,
    /// The part for a pending one. An agent that knows only published ones takes it for one that has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingRecord>,
    /// Whether its base was lost once with its agent: containers may still have that mount, which is dead.
    #[serde(default)]
    pub lost_mount: bool,
}

/// The part of a record that only a pending publication has.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PendingRecord {
    /// Whether the request had secrets: without them it can't be resumed.
    pub lacks_secrets: bool,
}

/// The parts of `request` that identify it among others under its key: all but its secrets and its requester. And
/// whether it had secrets.
///
/// # Errors
/// [`Kind::Invalid`](bdnfs::error::Kind::Invalid) for a source or mirror that is none.
pub fn identity(request: &PublicationRequest) -> Result<(PublicationRequest, bool)> {
    let (access, access_had) = request.access.without_secrets();
    let mirror = request.mirror.as_ref().map(|mirror| mirror.without_secrets()).transpose()?;
    let (mirror, mirror_had) = mirror.map_or((None, false), |(mirror, had)| (Some(mirror), had));
    let uri: Uri = request.source.expose().parse()?;
    let signed = matches!(&uri, Uri::Http(url) if url.query().is_some());
    let had = access_had || mirror_had || signed || !request.secrets.is_empty();
    let bare = PublicationRequest {
        // The source is recorded without a signature.
        source: Secret::new(uri.to_string()),
        access,
        mirror,
        secrets: BTreeMap::new(),
        consumer: None,
        keep: false,
        ..request.clone()
    };
    Ok((bare, had))
}

/// A request without what the rules of the node make of it: tenant, trust and authorities.
pub fn without_rules(request: PublicationRequest) -> PublicationRequest {
    let access = Access { authorities: None, ..request.access };
    PublicationRequest { tenant: None, trusted: false, access, ..request }
}
