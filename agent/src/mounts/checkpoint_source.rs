//! Checkpoints as sources: found in the mirror's index, and pinned to the snapshot that they are now.

use std::path::Path;

use bdnfs::checkpoint::CheckpointSelector;
use bdnfs::engine::Engine;
use bdnfs::error::{Error, Kind};
use bdnfs::mirror::index::ChosenCheckpoint;
use bdnfs::source::{Patterns, Uri};
use bdnfs::tier::lazy_origin::OriginOpener;
use chrono::{DateTime, Utc};
use futures_util::FutureExt;

use super::resolved_snapshot::ResolvedSnapshot;
use crate::api::{ApiResult, Failure, MountRequest};
use crate::mirror;

/// Opens the checkpoint that `selector` means in the mirror of `request`, or in this machine's own; and when it was saved. Where
/// the request names a snapshot of it, that is opened, even if the checkpoint has changed since, or was removed and is not
/// collected yet.
pub async fn open(
    engine: &Engine,
    scratch: &Path,
    request: &MountRequest,
    selector: &CheckpointSelector,
    patterns: &Patterns,
) -> ApiResult<(ResolvedSnapshot, DateTime<Utc>)> {
    if !patterns.all() {
        let text = format!("{selector} is a checkpoint, which is mounted whole: leave the patterns out");
        return Err(Failure::new(Kind::Unsupported, text));
    }
    let at = match &request.mirror {
        Some(at) => at.clone(),
        None if request.direct => {
            let text =
                format!("{selector} is a checkpoint, which only a mirror has: do not forbid the mirror");
            return Err(Failure::new(Kind::Invalid, text));
        }
        None => mirror::default_request(engine.tenant())?,
    };
    let mirror = mirror::open(&at, scratch.to_owned())?;
    if let (Some(pinned), Some(id)) = (&request.snapshot, selector.pinned()) {
        let open = no_origin(&Uri::Bt(selector.clone()));
        let opened = engine.mirrored_snapshot(&mirror, pinned.parse()?, open).await;
        let snapshot = opened.map_err(|e| e.context(format!("{id} as it was when the job was submitted")))?;
        return Ok((ResolvedSnapshot { snapshot, resolved: id.to_string(), note: None }, Utc::now()));
    }
    let (checked, chosen) = tokio::join!(mirror.check_format(), mirror.choose_checkpoint(selector));
    let chosen = checked.and(chosen)?;
    let note = chosen.note("mounted");
    let ChosenCheckpoint { saved, manifest, .. } = chosen;
    let resolved = saved.id.to_string();
    let open = no_origin(&Uri::Bt(saved.id.into()));
    let snapshot = engine.mirrored_snapshot(&mirror, manifest, open).await?;
    Ok((ResolvedSnapshot { snapshot, resolved, note }, saved.saved))
}

/// Refuses to open the origin of a checkpoint: there is none.
pub fn no_origin(uri: &Uri) -> OriginOpener {
    let text = format!("{uri} is in the mirror only");
    Box::new(move || std::future::ready(Err(Error::new(Kind::NotFound, text.clone()))).boxed())
}
