//! Finds the snapshot of a mount: in the mirror where that has one, else at the origin; or the snapshot of a record.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bdnfs::auth::load;
use bdnfs::digest::Digest;
use bdnfs::engine::Engine;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::HubCache;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::origin;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns, TreeLayout, Uri};
use bdnfs::task::blocking;
use bdnfs::tier::lazy_origin::OriginOpener;
use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use tokio::sync::Semaphore;

use super::checkpoint_source;
use super::history::{PastSnapshot, SourceHistory};
use super::record::MountRecord;
use super::resolved_snapshot::ResolvedSnapshot;
use crate::api::{ApiResult, Failure, MountRequest};
use crate::{mirror, text};

/// Lets one view be built at a time: each may take hundreds of megabytes.
static VIEW_BUILD_PERMIT: Semaphore = Semaphore::const_new(1);

/// Finds the snapshot that `request` asks for or, where neither mirror nor origin answers, the newest one that the cache has
/// whole. Unnamed files may be made in the directory `scratch`.
pub async fn resolve(
    engine: &Engine,
    scratch: &Path,
    history: &SourceHistory,
    request: &MountRequest,
) -> ApiResult<ResolvedSnapshot> {
    let found = resolve_listed(engine, scratch, history, request).await?;
    apply_layout(engine, &found.snapshot, request, &found.resolved).await?;
    Ok(found)
}

/// Shows a snapshot in the layout that `request` asks for.
async fn apply_layout(
    engine: &Engine,
    snapshot: &Arc<Snapshot>,
    request: &MountRequest,
    resolved: &str,
) -> Result<()> {
    let Some(TreeLayout::HfCache) = request.weights.layout else { return Ok(()) };
    let cache = HubCache::new(&request.weights.source.expose().parse()?, &resolved.parse()?)?;
    let (engine, snapshot) = (engine.clone(), Arc::clone(snapshot));
    let permit = VIEW_BUILD_PERMIT.acquire().await;
    blocking(move || {
        // Held until it is built, even when the caller is gone.
        let _permit = permit;
        engine.show_as_hub_cache(&snapshot, &cache)
    })
    .await
}

/// Finds the snapshot of a request, in the layout of the origin.
async fn resolve_listed(
    engine: &Engine,
    scratch: &Path,
    history: &SourceHistory,
    request: &MountRequest,
) -> ApiResult<ResolvedSnapshot> {
    let uri: Uri = request.weights.source.expose().parse()?;
    if request.snapshot.is_some() && !matches!(uri, Uri::Bt(_)) {
        let text = format!("{uri}: a snapshot can be named of a checkpoint only");
        return Err(Failure::new(Kind::Invalid, text));
    }
    let patterns = Patterns::filter(request.weights.allow.as_deref(), &request.weights.ignore)?;
    let key = source_key(&uri.tree_identity(&request.weights.access), &patterns);
    if request.offline {
        let cached = find_cached(engine, scratch, history, request, &uri, &key).await?;
        let (resolved, listed) = cached.ok_or_else(|| {
            let text = format!(
                "{uri} was never mounted, or the cache no longer has all of it; mount it without --offline"
            );
            Failure::new(Kind::NotFound, text)
        })?;
        let note = Some(format!(
            "{uri} is mounted from the cache as of {listed}; neither its mirror nor its origin was asked"
        ));
        return Ok(ResolvedSnapshot { note, ..resolved });
    }
    let (found, listed) = match resolve_online(engine, scratch, request, &uri, patterns).await {
        Err(failure) if failure.is(Kind::Unavailable) || failure.is(Kind::Timeout) => {
            let Some((resolved, listed)) = find_cached(engine, scratch, history, request, &uri, &key).await?
            else {
                return Err(failure);
            };
            let note = Some(format!("{uri} is mounted from the cache as of {listed}: {failure}"));
            return Ok(ResolvedSnapshot { note, ..resolved });
        }
        answer => answer?,
    };
    let (snapshot, resolved) = (found.snapshot.id().to_string(), found.resolved.clone());
    history
        .remember(engine.tenant(), &key, PastSnapshot { snapshot, resolved, listed: listed.timestamp() })
        .await;
    Ok(found)
}

/// Whether the cache has a snapshot of the source of `request` whole, of whichever time.
pub async fn is_cached(
    engine: &Engine,
    scratch: &Path,
    history: &SourceHistory,
    request: &MountRequest,
) -> ApiResult<bool> {
    let uri: Uri = request.weights.source.expose().parse()?;
    let patterns = Patterns::filter(request.weights.allow.as_deref(), &request.weights.ignore)?;
    let key = source_key(&uri.tree_identity(&request.weights.access), &patterns);
    Ok(find_cached(engine, scratch, history, request, &uri, &key).await?.is_some())
}

/// The newest snapshot of a source that the cache has whole, held there, and when the source had it.
async fn find_cached(
    engine: &Engine,
    scratch: &Path,
    history: &SourceHistory,
    request: &MountRequest,
    uri: &Uri,
    key: &Digest,
) -> ApiResult<Option<(ResolvedSnapshot, String)>> {
    for PastSnapshot { snapshot, resolved, listed } in history.of(engine.tenant(), key).await? {
        if request.snapshot.as_ref().is_some_and(|pinned| *pinned != snapshot) {
            continue;
        }
        let id = snapshot.parse()?;
        let reopened = if request.offline {
            engine.reopen_offline(&id).await?
        } else {
            let mirror =
                request.mirror.as_ref().map(|at| mirror::open(at, scratch.to_owned())).transpose()?;
            engine.reopen(&id, mirror, opener(uri, &resolved, &request.weights.access)).await?
        };
        let Some(snapshot) = reopened else { continue };
        let candidate = Arc::clone(&snapshot);
        let held = blocking(move || {
            // Leased first, so that nothing is evicted after it was checked.
            candidate.hold()?;
            candidate.is_whole()
        });
        if held.await? {
            let listed = format!("{} UTC", text::minute(listed));
            return Ok(Some((ResolvedSnapshot { snapshot, resolved, note: None }, listed)));
        }
    }
    Ok(None)
}

/// Asks the mirror, else the origin, for the snapshot, and when the source had it.
async fn resolve_online(
    engine: &Engine,
    scratch: &Path,
    request: &MountRequest,
    uri: &Uri,
    patterns: Patterns,
) -> ApiResult<(ResolvedSnapshot, DateTime<Utc>)> {
    if let Uri::Bt(selector) = uri {
        return checkpoint_source::open(engine, scratch, request, selector, &patterns).await;
    }
    let now = SystemTime::now().into();
    let Some(at) = &request.mirror else {
        return Ok((list_origin(engine, uri, patterns, &request.weights.access).await?, now));
    };
    let asked = at.clone();
    if blocking(move || mirror::is_missing(&asked)).await? {
        let resolved = list_origin(engine, uri, patterns, &request.weights.access).await?;
        let note = format!("no mirror found at {}, so {uri} is read from its origin", at.url.expose());
        return Ok((ResolvedSnapshot { note: Some(note), ..resolved }, now));
    }
    let mirror = mirror::open(at, scratch.to_owned())?;
    let found = match find(&mirror, uri, &request.weights.access, &patterns).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let resolved = list_origin(engine, uri, patterns, &request.weights.access).await?;
            let name = mirror.name();
            let why = format!("{uri} is not in the mirror {name}, so it is read from its origin");
            let note = Some(format!("{why}; see `bdnfs mirror add`"));
            return Ok((ResolvedSnapshot { note, ..resolved }, now));
        }
        Err(damage) => {
            return Ok((fall_back_to_origin(engine, uri, patterns, request, damage, None).await?, now));
        }
    };
    let open = opener(uri, &found.resolved, &request.weights.access);
    match engine.mirrored(&mirror, &found, open).await {
        Ok(snapshot) => {
            Ok((ResolvedSnapshot { snapshot, resolved: found.resolved, note: None }, found.listed))
        }
        Err(damage) => {
            Ok((fall_back_to_origin(engine, uri, patterns, request, damage, Some(&found)).await?, now))
        }
    }
}

/// The snapshot that `uri` is mirrored as. Refuses a mirror of another version.
async fn find(mirror: &Mirror, uri: &Uri, access: &Access, patterns: &Patterns) -> Result<Option<Ref>> {
    let (checked, found) = tokio::join!(mirror.check_format(), mirror::find(mirror, uri, access, patterns));
    checked.and(found)
}

/// Lists the origin for a snapshot of its present state.
async fn list_origin(
    engine: &Engine,
    uri: &Uri,
    patterns: Patterns,
    access: &Access,
) -> ApiResult<ResolvedSnapshot> {
    let origin = origin::open(uri, access).await?;
    let resolved = origin.name().to_owned();
    Ok(ResolvedSnapshot { snapshot: engine.snapshot(origin, patterns).await?, resolved, note: None })
}

/// Lists the origin instead of a mirror that is damaged, in the state that was mirrored where the origin still has that.
///
/// # Errors
/// `damage` itself where it is another error: the mirror could not be read.
async fn fall_back_to_origin(
    engine: &Engine,
    uri: &Uri,
    patterns: Patterns,
    request: &MountRequest,
    damage: Error,
    found: Option<&Ref>,
) -> ApiResult<ResolvedSnapshot> {
    if damage.kind() != Kind::Corrupt {
        return Err(damage.into());
    }
    tracing::warn!(error = %damage, "reading {uri} from its origin");
    let pinned = found.map_or_else(|| uri.clone(), |found| pinned(uri, &found.resolved));
    let resolved =
        list_origin(engine, &pinned, patterns, &request.weights.access).await.map_err(|failure| {
            let message = format!("{damage}; and it cannot be read from its origin: {failure}");
            // An origin that is away may come back, and meanwhile the cache may have all of it.
            let away = failure.is(Kind::Unavailable) || failure.is(Kind::Timeout);
            if away { Failure { message, ..failure } } else { Failure::new(damage.kind(), message) }
        })?;
    let state = match found {
        Some(found) if found.listing == resolved.snapshot.id() => "in the state that was mirrored",
        Some(_) => "in the state that it has now, which is not the one that was mirrored",
        None => "in the state that it has now",
    };
    Ok(ResolvedSnapshot {
        note: Some(format!("{damage}; until then {uri} is read from its origin, {state}")),
        ..resolved
    })
}

/// Opens the snapshot of a record from the cache, without a network. `request` is the record's, with its
/// secrets where they are known, and with the agent's defaults.
pub async fn reopen(
    engine: &Engine,
    scratch: &Path,
    record: &MountRecord,
    request: &MountRequest,
) -> ApiResult<Arc<Snapshot>> {
    let uri: Uri = request.weights.source.expose().parse()?;
    let open = if let Uri::Bt(_) = uri {
        checkpoint_source::no_origin(&uri)
    } else if record.lacks_secrets {
        opener_once_given(&uri, &record.resolved, &request.weights.access)
    } else {
        opener(&uri, &record.resolved, &request.weights.access)
    };
    let mirror = mirror_of(scratch, record, request).and_then(|opened| {
        opened.inspect_err(|error| tracing::warn!("{uri} is served without its mirror: {error}")).ok()
    });
    let gone = || {
        let text = format!("the cache no longer has the manifest of {uri}; mount it again");
        Failure::new(Kind::NotFound, text)
    };
    let id = record.snapshot.parse()?;
    let reopened = match request.offline {
        true => engine.reopen_offline(&id).await?,
        false => engine.reopen(&id, mirror, open).await?,
    };
    let snapshot = reopened.ok_or_else(gone)?;
    apply_layout(engine, &snapshot, request, &record.resolved).await?;
    Ok(snapshot)
}

/// Takes the manifest of a record, which the cache lacks, from the mirror of its `request`. False where that names none.
pub async fn fetch_manifest(
    engine: &Engine,
    scratch: &Path,
    record: &MountRecord,
    request: &MountRequest,
) -> ApiResult<bool> {
    let Some(mirror) = mirror_of(scratch, record, request) else { return Ok(false) };
    engine.fetch_manifest(&mirror?, &record.snapshot.parse()?).await?;
    Ok(true)
}

/// The mirror of a record's `request`, if that may be asked. The record's own credentials for it are lost with the others.
fn mirror_of(scratch: &Path, record: &MountRecord, request: &MountRequest) -> Option<Result<Mirror>> {
    let has_credentials = !record.lacks_secrets || record.request.mirror.is_none();
    let at = request.mirror.as_ref().filter(|_| has_credentials && !request.offline);
    at.map(|at| mirror::open(at, scratch.to_owned()))
}

/// Opens the origin of a source, in the state in which it was listed where its name says that.
fn opener(uri: &Uri, resolved: &str, access: &Access) -> OriginOpener {
    let (uri, access) = (pinned(uri, resolved), access.clone());
    Box::new(move || {
        let (uri, access) = (uri.clone(), access.clone());
        Box::pin(async move {
            // A secret that could not be read when the mount was restored may name the endpoint, too.
            let (source, given) = (uri.clone(), access);
            let access = blocking(move || load::complete_access(&source, given)).await?;
            origin::open(&uri, &access).await
        })
    })
}

/// A source in the state that it was `resolved` to, where its name can say that.
fn pinned(uri: &Uri, resolved: &str) -> Uri {
    match (uri, resolved.parse()) {
        (Uri::Hf { .. }, Ok(resolved)) => resolved,
        _ => uri.clone(),
    }
}

/// Opens the origin of a source whose credentials are lost as soon as a publication brings them again.
fn opener_once_given(uri: &Uri, resolved: &str, access: &Access) -> OriginOpener {
    let (open, refuse, access) = (opener(uri, resolved, access), without_credentials(uri), access.clone());
    let is_given = move || access.given_secret().is_some_and(|(name, secrets)| secrets.get(name).is_some());
    Box::new(move || if is_given() { open() } else { refuse() })
}

/// Refuses to open an origin whose credentials are lost.
fn without_credentials(uri: &Uri) -> OriginOpener {
    let text = format!(
        "{uri}: its credentials came with the mount and were not kept when the agent ended; mount it again, or let it \
         name a secret"
    );
    Box::new(move || std::future::ready(Err(Error::new(Kind::Refused, text.clone()))).boxed())
}
