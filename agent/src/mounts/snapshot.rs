//! The snapshot of a mount: the mirror's where it has one, else what the origin holds now; or the one that it was before.

use std::path::Path;
use std::sync::Arc;

use bdnfs::engine::Engine;
use bdnfs::error::{Error, Kind};
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::origin;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns, Uri};
use bdnfs::tier::lazy_origin::OriginOpener;
use futures_util::FutureExt;

use crate::api::{Failure, MountRequest};
use crate::mirror;
use crate::mounts::kept::Kept;

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
    let uri: Uri = request.weights.source.expose().parse()?;
    let patterns = Patterns::filter(request.weights.allow.as_deref(), &request.weights.ignore)?;
    let Some(at) = &request.mirror else {
        return list(engine, &uri, patterns, &request.weights.access).await;
    };
    let mirror = mirror::open(at, scratch.to_owned())?;
    let found = match mirror.find(&source_key(&uri.identity(&request.weights.access), &patterns)).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let made = list(engine, &uri, patterns, &request.weights.access).await?;
            let name = mirror.name();
            let why = format!("{uri} is not in the mirror {name}, so it is read from where it lives");
            return Ok(Made { note: Some(format!("{why}; see `bdnfs mirror add`")), ..made });
        }
        Err(damage) => return instead(engine, &uri, patterns, request, damage, None).await,
    };
    let open = opener(&uri, &found.resolved, &request.weights.access);
    match engine.mirrored(&mirror, &found, open).await {
        Ok(snapshot) => Ok(Made { snapshot, resolved: found.resolved, note: None }),
        Err(damage) => instead(engine, &uri, patterns, request, damage, Some(&found)).await,
    }
}

/// Takes it from its origin.
async fn list(engine: &Engine, uri: &Uri, patterns: Patterns, access: &Access) -> Result<Made, Failure> {
    let origin = origin::open(uri, access).await?;
    let resolved = origin.name().to_owned();
    Ok(Made { snapshot: engine.snapshot(origin, patterns).await?, resolved, note: None })
}

/// Takes it from its origin because of `damage` to the mirror, if it is that: in the state in which it was `found`, where the
/// origin still has that.
async fn instead(
    engine: &Engine,
    uri: &Uri,
    patterns: Patterns,
    request: &MountRequest,
    damage: Error,
    found: Option<&Ref>,
) -> Result<Made, Failure> {
    if damage.kind() != Kind::Corrupt {
        return Err(damage.into());
    }
    tracing::warn!(error = %damage, "reading {uri} from where it lives");
    let pinned = found.map_or_else(|| uri.clone(), |found| pinned(uri, &found.resolved));
    let made = list(engine, &pinned, patterns, &request.weights.access).await.map_err(|failure| {
        Failure::new(damage.kind(), format!("{damage}; and it can't be read from where it lives: {failure}"))
    })?;
    let state = match found {
        Some(found) if found.listing == made.snapshot.id() => "in the state that was mirrored",
        Some(_) => "in the state that it has now, which is not the one that was mirrored",
        None => "in the state that it has now",
    };
    Ok(Made {
        note: Some(format!("{damage}; until then {uri} is read from where it lives, {state}")),
        ..made
    })
}

/// Finds what `kept` tells of, in the cache and without asking anybody; `request` is what was asked for, with what this
/// daemon adds to it.
pub async fn again(
    engine: &Engine,
    scratch: &Path,
    kept: &Kept,
    request: &MountRequest,
) -> Result<Arc<Snapshot>, Failure> {
    let uri: Uri = request.weights.source.expose().parse()?;
    let open =
        if kept.bereft { refused(&uri) } else { opener(&uri, &kept.resolved, &request.weights.access) };
    // Its own credentials for the mirror went with the others.
    let at = request.mirror.as_ref().filter(|_| !kept.bereft || kept.request.mirror.is_none());
    let mirror = at.and_then(|at| {
        let opened = mirror::open(at, scratch.to_owned());
        opened.inspect_err(|error| tracing::warn!("{uri} is served without its mirror: {error}")).ok()
    });
    let gone = || {
        let text = format!("the cache no longer has the manifest of {uri}; mount it again");
        Failure::new(Kind::NotFound, text)
    };
    engine.reopen(&kept.snapshot.parse()?, mirror, open).await?.ok_or_else(gone)
}

/// How the origin of a source is opened: in the state in which it was listed, where its name tells that.
fn opener(uri: &Uri, resolved: &str, access: &Access) -> OriginOpener {
    let (uri, access) = (pinned(uri, resolved), access.clone());
    Box::new(move || {
        let (uri, access) = (uri.clone(), access.clone());
        Box::pin(async move { origin::open(&uri, &access).await })
    })
}

/// A source in the state that it was `resolved` to, where its name can tell that.
fn pinned(uri: &Uri, resolved: &str) -> Uri {
    match (uri, resolved.parse()) {
        (Uri::Hf { .. }, Ok(resolved)) => resolved,
        _ => uri.clone(),
    }
}

/// How an origin is opened whose credentials are gone.
fn refused(uri: &Uri) -> OriginOpener {
    let text = format!(
        "{uri}: its credentials came with the mount and were not kept when the agent ended; mount it again, or let it \
         name a secret"
    );
    Box::new(move || std::future::ready(Err(Error::new(Kind::Refused, text.clone()))).boxed())
}
