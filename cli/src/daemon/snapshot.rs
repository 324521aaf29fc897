//! The snapshot that a mount request asks for: the mirror's where it has one, else what the origin holds now.

use std::path::Path;
use std::sync::Arc;

use bdnfs::engine::Engine;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::origin;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns, Uri};
use bdnfs::tier::parts::Opener;

use crate::control::api::{Failure, MountRequest};
use crate::mirror::place;

/// Finds or takes it, with what its user should know. Files without a name may be made in the directory `scratch`.
pub async fn make(
    engine: &Engine,
    scratch: &Path,
    request: &MountRequest,
) -> Result<(Arc<Snapshot>, Option<String>), Failure> {
    let uri: Uri = request.source.expose().parse()?;
    let patterns = Patterns::filter(request.allow.as_deref(), &request.ignore)?;
    let mut note = None;
    if let Some(at) = &request.mirror {
        let mirror = place::open(at, scratch.to_owned())?;
        let key = source_key(&uri.identity(&request.access), &patterns);
        let open = |found: &Ref| opener(&uri, found, &request.access);
        if let Some(snapshot) = engine.mirrored(&mirror, &key, open).await? {
            return Ok((snapshot, None));
        }
        note = Some(format!(
            "{uri} is not in the mirror {}, so it is read from where it lives; see `bdnfs mirror add`",
            mirror.name()
        ));
    }
    let origin = origin::open(&uri, &request.access).await?;
    Ok((engine.snapshot(origin, patterns).await?, note))
}

/// How the origin of a mirrored source is opened: in the state in which it was listed, where its name tells that.
fn opener(uri: &Uri, found: &Ref, access: &Access) -> Opener {
    let uri = match (uri, found.resolved.parse()) {
        (Uri::Hf { .. }, Ok(resolved)) => resolved,
        _ => uri.clone(),
    };
    let access = access.clone();
    Box::new(move || {
        let (uri, access) = (uri.clone(), access.clone());
        Box::pin(async move { origin::open(&uri, &access).await })
    })
}
