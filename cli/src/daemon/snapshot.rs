//! The snapshot of a mount: the mirror's where it has one, else what the origin holds now; or the one that it was before.

use std::path::Path;
use std::sync::Arc;

use bdnfs::engine::Engine;
use bdnfs::error::{Error, Kind};
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::origin;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns, Uri};
use bdnfs::tier::parts::Opener;
use futures_util::FutureExt;

use super::kept::Kept;
use crate::control::api::{Failure, MountRequest};
use crate::mirror::place;

/// A snapshot that was asked for.
pub struct Made {
    /// Itself.
    pub snapshot: Arc<Snapshot>,
    /// What the source was resolved to, as its origin names it.
    pub resolved: String,
    /// What its user should know.
    pub note: Option<String>,
}

/// Finds or takes it. Files without a name may be made in the directory `scratch`.
pub async fn make(engine: &Engine, scratch: &Path, request: &MountRequest) -> Result<Made, Failure> {
    let uri: Uri = request.source.expose().parse()?;
    let patterns = Patterns::filter(request.allow.as_deref(), &request.ignore)?;
    let mut note = None;
    if let Some(at) = &request.mirror {
        let mirror = place::open(at, scratch.to_owned())?;
        let key = source_key(&uri.identity(&request.access), &patterns);
        let mut resolved = String::new();
        let open = |found: &Ref| {
            resolved.clone_from(&found.resolved);
            opener(&uri, &found.resolved, &request.access)
        };
        if let Some(snapshot) = engine.mirrored(&mirror, &key, open).await? {
            return Ok(Made { snapshot, resolved, note });
        }
        note = Some(format!(
            "{uri} is not in the mirror {}, so it is read from where it lives; see `bdnfs mirror add`",
            mirror.name()
        ));
    }
    let origin = origin::open(&uri, &request.access).await?;
    let resolved = origin.name().to_owned();
    Ok(Made { snapshot: engine.snapshot(origin, patterns).await?, resolved, note })
}

/// Finds what `kept` tells of, in the cache and without asking anybody; `request` is what was asked for, with what this
/// daemon adds to it.
pub async fn again(
    engine: &Engine,
    scratch: &Path,
    kept: &Kept,
    request: &MountRequest,
) -> Result<Arc<Snapshot>, Failure> {
    let uri: Uri = request.source.expose().parse()?;
    let open = if kept.bereft { refused(&uri) } else { opener(&uri, &kept.resolved, &request.access) };
    // Its own credentials for the mirror went with the others.
    let at = request.mirror.as_ref().filter(|_| !kept.bereft || kept.request.mirror.is_none());
    let mirror = at.and_then(|at| {
        let opened = place::open(at, scratch.to_owned());
        opened.inspect_err(|error| tracing::warn!("{uri} is served without its mirror: {error}")).ok()
    });
    let gone = || {
        let text = format!("the cache no longer has the manifest of {uri}; mount it again");
        Failure::new(Kind::NotFound, text)
    };
    engine.again(&kept.snapshot.parse()?, mirror, open).await?.ok_or_else(gone)
}

/// How the origin of a source is opened: in the state in which it was listed, where its name tells that.
fn opener(uri: &Uri, resolved: &str, access: &Access) -> Opener {
    let uri = match (uri, resolved.parse()) {
        (Uri::Hf { .. }, Ok(resolved)) => resolved,
        _ => uri.clone(),
    };
    let access = access.clone();
    Box::new(move || {
        let (uri, access) = (uri.clone(), access.clone());
        Box::pin(async move { origin::open(&uri, &access).await })
    })
}

/// How an origin is opened whose credentials are gone.
fn refused(uri: &Uri) -> Opener {
    let text = format!(
        "{uri}: its credentials came with the mount and were not kept when the agent ended; mount it again, or let it \
         name a secret"
    );
    Box::new(move || std::future::ready(Err(Error::new(Kind::Refused, text.clone()))).boxed())
}
