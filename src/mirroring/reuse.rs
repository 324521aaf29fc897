//! Reuse of the previous snapshot: where one file of a pack has changed, the others are read from the old pack in the mirror,
//! not from the origin.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::blob::{Blob, Key};
use crate::block::{self, Arrival, BLOCK};
use crate::digest::Digest;
use crate::error::Result;
use crate::fetch::{FetchScope, Ladder};
use crate::manifest::{Manifest, Node, PackedFile, content_version};
use crate::tier::Urgency;

/// The time for which the mirror is asked again while nothing arrives; then the origin is.
const OLD_PACK_STALL_LIMIT: Duration = Duration::from_secs(10);

/// The previous snapshot, and the mirror that has it.
pub(super) struct PreviousSnapshot {
    manifest: Manifest,
    mirror: Ladder,
}

/// Files of the listing, with where their content lies in an old pack.
type PackedRanges = Vec<(u32, Range<u64>)>;

impl PreviousSnapshot {
    pub(super) fn new(manifest: Manifest, mirror: Ladder) -> Self {
        Self { manifest, mirror }
    }

    /// The content of those of `files` of `listing` that are in an old pack in the same version. What is not
    /// available is left out.
    pub(super) async fn content(&self, listing: &Manifest, files: &[u32]) -> HashMap<u32, Bytes> {
        let mut content = HashMap::new();
        let packs = self.packs(listing, files).unwrap_or_default();
        for (pack, found) in packs {
            match self.read(pack, &found).await {
                Ok(read) => content.extend(read),
                Err(error) => tracing::debug!(%error, "an old pack cannot be reused"),
            }
        }
        content
    }

    /// The old packs that hold some of `files`.
    fn packs(&self, listing: &Manifest, files: &[u32]) -> Result<BTreeMap<u32, PackedRanges>> {
        let mut known: HashMap<u32, Vec<PackedFile>> = HashMap::new();
        let mut packs: BTreeMap<u32, PackedRanges> = BTreeMap::new();
        for &file in files {
            let blob = listing.blob(file)?;
            let Some((pack, offset)) = self.lookup(&blob)? else { continue };
            let parts = match known.entry(pack) {
                std::collections::hash_map::Entry::Occupied(parts) => parts.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => place.insert(self.files_in(pack)?),
            };
            let at = parts.binary_search_by_key(&offset, |part| part.range.start);
            let part = at.ok().map(|at| &parts[at]);
            if let Some(part) = part.filter(|part| part.path == blob.path && part.version == blob.version) {
                packs.entry(pack).or_default().push((file, part.range.clone()));
            }
        }
        Ok(packs)
    }

    /// The files in an old blob, which may be one itself.
    fn files_in(&self, index: u32) -> Result<Vec<PackedFile>> {
        if self.manifest.is_pack(index)? {
            return self.manifest.parts(index);
        }
        let Blob { size, path, version, .. } = self.manifest.blob(index)?;
        Ok(vec![PackedFile { range: 0..size, path, version }])
    }

    /// The digest of the old blob that is the file of `blob`, of which only the content is known.
    pub(super) fn digest(&self, blob: &Blob) -> Result<Option<Digest>> {
        let Some((index, _)) = self.lookup(blob)? else { return Ok(None) };
        let old = self.manifest.blob(index)?;
        let is_same = old.size == blob.size && content_version(&old.key) == blob.version;
        Ok(match old.key {
            Key::Content(digest) if is_same => Some(digest),
            _ => None,
        })
    }

    /// The place where the file of `blob` was: its old blob, and the slice of that.
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

    /// The files `found` in an old pack, verified. Only the blocks that they lie in are in memory meanwhile.
    async fn read(&self, pack: u32, found: &PackedRanges) -> Result<HashMap<u32, Bytes>> {
        let blob = self.manifest.blob(pack)?;
        let blocks = Mutex::new(HashMap::new());
        let accept = async |arrival: Arrival| {
            let known = blob.checks.as_ref().and_then(|checks| checks.get(arrival.index as usize));
            let block = arrival.verify(known)?;
            let mut blocks = blocks.lock();
            blocks.insert(block.index(), block.bytes().clone());
            Ok(block.index())
        };
        let wanted: BTreeSet<_> = found.iter().flat_map(|(_, range)| block::touched(range)).collect();
        let wanted: Vec<_> = wanted.into_iter().collect();
        self.mirror
            .fetch(&blob, wanted, (FetchScope::Direct, &|| Urgency::Stage), OLD_PACK_STALL_LIMIT, accept)
            .await?;
        let blocks = blocks.into_inner();
        Ok(found.iter().filter_map(|(file, range)| Some((*file, cut(&blocks, range)?))).collect())
    }
}

/// A copy of `range` out of `blocks`, so that what is not wanted of them doesn't stay in memory; `None` where one is missing.
fn cut(blocks: &HashMap<u64, Bytes>, range: &Range<u64>) -> Option<Bytes> {
    let mut content = Vec::with_capacity((range.end - range.start) as usize);
    for index in block::touched(range) {
        let (start, end) =
            (range.start.saturating_sub(index * BLOCK), (range.end - index * BLOCK).min(BLOCK));
        content.extend_from_slice(blocks.get(&index)?.get(start as usize..end as usize)?);
    }
    Some(content.into())
}
