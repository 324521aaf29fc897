//! Content that the mirror may have under another name is hashed before it is uploaded.
//!
//! A large file's digest is known when all of it was read, and then it has been uploaded. Where reading is cheap, it is read
//! twice instead, if the mirror has a blob of the same size that begins the same: the mirror knows such blobs by recipes of
//! these two. So what a job saves again in each of its checkpoints, a frozen shard, is uploaded once, and what differs from
//! its beginning on, as all that training changes, is read once.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::origin_reader::read;
use crate::blob::{Blob, Key};
use crate::block::Check;
use crate::digest::Digest;
use crate::error::Result;
use crate::extent::{Extent, MAX_EXTENT_BLOCKS};
use crate::fetch::Ladder;
use crate::mirror::record::recipe;
use crate::task::blocking;

/// The number of extents that are read and hashed at once.
const READS_IN_FLIGHT: usize = 4;

/// The recipe of any content of `size` bytes whose first blocks are these; an extent of them, or all where there are fewer.
pub(super) fn fingerprint(size: u64, first: &[Bytes]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for block in first.iter().take(MAX_EXTENT_BLOCKS as usize) {
        hasher.update(block);
    }
    let (Key::Origin(name) | Key::Content(name)) =
        Key::origin("beginning", hasher.finalize().as_bytes(), b"");
    recipe([(name.0, size)])
}

/// The digest of a blob that lies at `origin`, which sends all of it.
pub(super) async fn digest(
    origin: &Ladder,
    blob: &Blob,
    extents: impl Iterator<Item = Extent>,
) -> Result<Digest> {
    let size = blob.size;
    let checks = stream::iter(extents).map(|extent| async move {
        let blocks = read(origin, blob, extent).await?;
        let checks = move || {
            let blocks = (extent.first..).zip(&blocks);
            Ok(blocks.map(|(index, bytes)| Check::of(size, index, bytes)).collect::<Vec<_>>())
        };
        blocking(checks).await
    });
    let checks: Vec<_> = checks.buffered(READS_IN_FLIGHT).try_concat().await?;
    Check::combine(size, &checks)
}
