//! What a source was mirrored as before: where one file of a pack has changed, the others are taken from the old pack,
//! not from the origin.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::blob::Blob;
use crate::block::{self, Arrival, BLOCK};
use crate::error::Result;
use crate::fetch::{Ladder, Reach};
use crate::manifest::{Manifest, Node, Part};
use crate::tier::Urgency;

/// How long the mirror is asked again while nothing arrives; then the origin is.
const PATIENCE: Duration = Duration::from_secs(10);

/// The snapshot that there was, and the mirror that has it.
pub(super) struct Before {
    manifest: Manifest,
    mirror: Ladder,
}

/// Files of the listing, with where their content lies in an old pack.
type Found = Vec<(u32, Range<u64>)>;

impl Before {
    pub(super) fn new(manifest: Manifest, mirror: Ladder) -> Self {
        Self { manifest, mirror }
    }

    /// The content of those of `files` of `listing` that are in an old pack in the same version. What can't be had is
    /// left out.
    pub(super) async fn content(&self, listing: &Manifest, files: &[u32]) -> HashMap<u32, Bytes> {
        let mut content = HashMap::new();
        let packs = self.packs(listing, files).unwrap_or_default();
        for (pack, found) in packs {
            match self.read(pack).await {
                // Copied, so that what is not wanted of the pack doesn't stay in memory.
                Ok(pack) => content.extend(found.into_iter().map(|(file, range)| {
                    (file, Bytes::copy_from_slice(&pack[range.start as usize..range.end as usize]))
                })),
                Err(error) => tracing::debug!(%error, "an old pack is of no use"),
            }
        }
        content
    }

    /// The old packs that hold some of `files`.
    fn packs(&self, listing: &Manifest, files: &[u32]) -> Result<BTreeMap<u32, Found>> {
        let mut known: HashMap<u32, Vec<Part>> = HashMap::new();
        let mut packs: BTreeMap<u32, Found> = BTreeMap::new();
        for &file in files {
            let blob = listing.blob(file)?;
            let Some((pack, offset)) = self.lookup(&blob)? else { continue };
            let parts = match known.entry(pack) {
                std::collections::hash_map::Entry::Occupied(parts) => parts.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => place.insert(self.manifest.parts(pack)?),
            };
            let at = parts.binary_search_by_key(&offset, |part| part.range.start);
            let part = at.ok().map(|at| &parts[at]);
            if let Some(part) = part.filter(|part| part.path == blob.path && part.version == blob.version) {
                packs.entry(pack).or_default().push((file, part.range.clone()));
            }
        }
        Ok(packs)
    }

    /// Where the file of `blob` lay: its blob and its place there.
    fn lookup(&self, blob: &Blob) -> Result<Option<(u32, u64)>> {
        let mut entry = 0;
        for name in blob.path.split(|b| *b == b'/') {
            match self.manifest.entry(entry)?.node {
                Node::Directory(_) => {}
                _ => return Ok(None),
            }
            let Some(child) = self.manifest.lookup(entry, name)? else { return Ok(None) };
            entry = child;
        }
        Ok(match self.manifest.entry(entry)?.node {
            Node::File(slice) if slice.len == blob.size => Some((slice.blob, slice.offset)),
            _ => None,
        })
    }

    /// All of an old pack, verified.
    async fn read(&self, pack: u32) -> Result<Bytes> {
        let blob = self.manifest.blob(pack)?;
        let content = Mutex::new(vec![0; blob.size as usize]);
        let accept = async |arrival: Arrival| {
            let known = blob.checks.as_ref().and_then(|checks| checks.get(arrival.index as usize));
            let block = arrival.verify(known)?;
            let start = (block.index() * BLOCK) as usize;
            let mut content = content.lock().unwrap_or_else(PoisonError::into_inner);
            content[start..start + block.bytes().len()].copy_from_slice(block.bytes());
            Ok(block.index())
        };
        let blocks = (0..block::count(blob.size)).collect();
        self.mirror.fetch(&blob, blocks, (Reach::All, Urgency::Stage), PATIENCE, accept).await?;
        Ok(content.into_inner().unwrap_or_else(PoisonError::into_inner).into())
    }
}
