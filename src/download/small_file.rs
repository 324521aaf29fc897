//! Reads single small files of a mirrored snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::STALL_TIMEOUT;
use crate::block::{self, Arrival, BLOCK};
use crate::error::{Error, Kind, Result};
use crate::fetch::{FetchScope, Ladder};
use crate::manifest::{Manifest, Node};
use crate::mirror::Mirror;
use crate::tier::Urgency;

/// The content of the file `name` in the root of the snapshot `manifest` of `mirror`, verified. `None` where there is none, or
/// it is larger than a block.
///
/// # Errors
/// [`Kind::Corrupt`] for content that is not what was saved; those of the store.
pub async fn read_small_file(mirror: &Mirror, manifest: &Manifest, name: &[u8]) -> Result<Option<Bytes>> {
    let Some(entry) = manifest.lookup(0, name)? else { return Ok(None) };
    let slice = match manifest.entry(entry)?.node {
        Node::File(slice) if slice.len <= BLOCK => slice,
        _ => return Ok(None),
    };
    let range = slice.offset..slice.offset + slice.len;
    if range.is_empty() {
        return Ok(Some(Bytes::new()));
    }
    let blob = manifest.blob(slice.blob)?;
    let blocks = Mutex::new(BTreeMap::new());
    let accept = async |arrival: Arrival| {
        let unknown = || Error::new(Kind::Corrupt, "the manifest has no checks for it");
        let checks = blob.checks.as_ref().ok_or_else(unknown)?;
        let check = checks.get(arrival.index as usize);
        let verified = arrival.verify(check)?;
        blocks.lock().insert(verified.index(), verified.bytes().clone());
        Ok(verified.index())
    };
    let touched = block::touched(&range);
    let ladder = Ladder::new(vec![Arc::new(mirror.clone())], Arc::default(), Arc::default());
    let wanted: Vec<_> = touched.clone().collect();
    ladder.fetch(&blob, wanted, (FetchScope::Direct, &|| Urgency::Read), STALL_TIMEOUT, accept).await?;
    let all: Vec<u8> = blocks.into_inner().into_values().flatten().collect();
    let start = (range.start - touched.start * BLOCK) as usize;
    Ok(all.get(start..start + slice.len as usize).map(Bytes::copy_from_slice))
}
