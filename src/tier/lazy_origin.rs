//! The origin of a mirrored snapshot, opened when it is first needed. It knows nothing of packs, so blocks of a pack are
//! assembled from the files in it.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::sync::OnceCell;

use super::{Body, Origin, Tier, TierKind, Urgency};
use crate::blob::{Blob, Key, MirrorLocation};
use crate::error::{Error, Kind, Result};
use crate::manifest::{Manifest, PackedFile};

/// The number of parts that are asked for at once: a block of small files must arrive before the fetch takes it for stalled.
const MAX_PARALLEL_PARTS: usize = 16;

/// The function that opens an origin.
pub type OriginOpener = Box<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn Origin>>> + Send + Sync>;

/// An origin, asked for the blobs of a mirrored snapshot. It is opened when it is first asked: until then it
/// need not be there.
pub struct LazyOrigin {
    open: OriginOpener,
    origin: OnceCell<Arc<dyn Origin>>,
    manifest: Arc<Manifest>,
    /// The packs' numbers in the manifest: gathered when the first one is asked for, which seldom happens.
    packs: OnceLock<HashMap<Key, u32>>,
}

impl LazyOrigin {
    /// The origin that `open` opens, asked for the blobs of `manifest`.
    pub fn new(open: OriginOpener, manifest: Arc<Manifest>) -> Self {
        Self { open, origin: OnceCell::new(), manifest, packs: OnceLock::new() }
    }

    /// The number of the pack `key`, if it is one.
    fn pack(&self, key: &Key) -> Option<u32> {
        let gather = || {
            let packs = (0..self.manifest.blobs()).filter(|i| self.manifest.is_pack(*i).unwrap_or_default());
            packs.filter_map(|i| Some((self.manifest.blob(i).ok()?.key, i))).collect()
        };
        self.packs.get_or_init(gather).get(key).copied()
    }

    /// A body of the bytes `range` of pack `index`.
    fn body(
        &self,
        origin: &Arc<dyn Origin>,
        index: u32,
        range: Range<u64>,
        urgency: Urgency,
    ) -> Result<Body> {
        let parts = self.manifest.parts(index)?;
        let wanted = parts.into_iter().filter_map(move |part| {
            let start = part.range.start.max(range.start);
            let end = part.range.end.min(range.end);
            (start < end).then(|| (start - part.range.start..end - part.range.start, part))
        });
        let (origin, source) = (origin.clone(), self.manifest.source().to_owned());
        let bodies = stream::iter(wanted).map(move |(range, part)| {
            let (origin, blob) = (origin.clone(), file(&source, &part));
            async move {
                let body = origin.fetch(&blob, range, urgency).await?;
                body.ok_or_else(|| Error::new(Kind::Changed, format!("{blob} is no longer at the origin")))
            }
        });
        Ok(bodies.buffered(MAX_PARALLEL_PARTS).try_flatten().boxed())
    }
}

/// The failure to open the origin, for who reads what was listed of it.
fn explain_open_failure(error: Error) -> Error {
    match error.kind() {
        // The file itself is there.
        Kind::NotFound => Error::new(Kind::Changed, error.to_string()),
        // The request is right, its credentials are not.
        Kind::Invalid => Error::new(Kind::Refused, error.to_string()),
        _ => error,
    }
}

/// The blob that the origin knows a part by.
fn file(source: &str, part: &PackedFile) -> Blob {
    Blob {
        key: Key::origin(source, &part.path, &part.version),
        size: part.range.end - part.range.start,
        checks: None,
        path: part.path.clone(),
        version: part.version.clone(),
        sha256: None,
        stored: MirrorLocation::default(),
    }
}

impl Tier for LazyOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let origin = self
                .origin
                .get_or_try_init(|| async { (self.open)().await.map_err(explain_open_failure) })
                .await?;
            let pack = if blob.path.is_empty() { self.pack(&blob.key) } else { None };
            match pack {
                Some(index) => self.body(origin, index, range, urgency).map(Some),
                None => origin.fetch(blob, range, urgency).await,
            }
        }
        .boxed()
    }
}

impl fmt::Debug for LazyOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyOrigin({:?}, {:?})", self.origin.get(), self.manifest)
    }
}
