//! The pack of a native snapshot: the content of its small files, each from a boundary of a block on, as an origin that has one
//! file. So it is fetched, verified, leased and evicted as any other content; what it is made of is read from the snapshot itself.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};

use super::data_layout::DataLayout;
use crate::blob::Blob;
use crate::error::Result;
use crate::manifest::{ListedFile, Listing, Node};
use crate::snapshot::Snapshot;
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// The name of its only file.
const PACK_FILE: &[u8] = b"pack";
/// The version of the layout. Another one makes other packs, which are other blobs.
const VERSION: &str = "2";
/// The number of bytes of a file that are read at once: no more than what is packed has.
const PACK_PIECE_BYTES: usize = 1 << 20;

/// The pack of a snapshot, read from the snapshot's files.
pub struct AlignedPack {
    name: String,
    snapshot: Arc<Snapshot>,
    layout: Arc<DataLayout>,
}

impl AlignedPack {
    /// The pack of `snapshot`, whose files lie as `layout` has it.
    pub fn new(snapshot: Arc<Snapshot>, layout: Arc<DataLayout>) -> Self {
        Self { name: format!("native:{}", snapshot.tree_id()), snapshot, layout }
    }

    /// The bytes `range`, of which those between two files are zero.
    fn body(&self, range: Range<u64>) -> Body {
        let (snapshot, end) = (self.snapshot.clone(), range.end);
        let parts: Vec<_> =
            self.layout.packed_from(range.start).take_while(|(start, _)| *start < end).collect();
        let ends = parts.iter().skip(1).map(|(start, _)| *start).chain([self.layout.pack_bytes()]);
        let parts: Vec<_> = parts.iter().copied().zip(ends).collect();
        let pieces = stream::iter(parts).then(move |((start, part), next)| {
            let (snapshot, wanted) = (snapshot.clone(), range.start.max(start)..range.end.min(next));
            let range = part.from + wanted.start - start..part.from + wanted.end - start;
            async move { read_padded(&snapshot, part.entry, range).await }
        });
        pieces.map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok))).try_flatten().boxed()
    }
}

/// The bytes `range` of file `entry`, and zeros after its end.
async fn read_padded(snapshot: &Snapshot, entry: u32, range: Range<u64>) -> Result<Vec<Bytes>> {
    let Node::File(slice) = snapshot.manifest().entry(entry)?.node else { return Ok(Vec::new()) };
    let reader = snapshot.open(slice)?;
    let (mut pieces, mut at) = (Vec::new(), range.start);
    let end = range.end.min(slice.len);
    while at < end {
        let len = PACK_PIECE_BYTES.min((end - at) as usize);
        pieces.extend(reader.read_at(at, len).await?);
        at += len as u64;
    }
    if range.end > at {
        pieces.push(Bytes::from(vec![0; (range.end - at) as usize]));
    }
    Ok(pieces)
}

impl Tier for AlignedPack {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move { Ok(Some(self.body(range))) }.boxed()
    }
}

impl Origin for AlignedPack {
    fn name(&self) -> &str {
        &self.name
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        let version = format!("{VERSION}-{}", self.layout.block_bits);
        listing.file(ListedFile {
            path: PACK_FILE,
            size: self.layout.pack_bytes(),
            mtime: (0, 0),
            executable: false,
            version: version.as_bytes(),
            sha256: None,
        });
        std::future::ready(Ok(())).boxed()
    }
}

impl fmt::Debug for AlignedPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedPack({}, {} bytes)", self.name, self.layout.pack_bytes())
    }
}
