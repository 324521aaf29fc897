//! The peer block service: what this node has, and can get from the mirror, for its peers.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use moka::future::Cache;
use moka::policy::EvictionPolicy;

use crate::blob::Key;
use crate::block::BLOCK;
use crate::cache;
use crate::cache::disk_reads::DiskReads;
use crate::content::{Content, SharedResources};
use crate::digest::Digest;
use crate::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::mirror::Mirror;
use crate::peer::server::BlockProvider;
use crate::peer::wire::{BlockRequest, Role};
use crate::snapshot::Snapshot;
use crate::task::blocking;
use crate::tier::Body;

/// The number of snapshots that stay open for other nodes, the most recently used: as many as a cluster deploys at the same time.
/// Each is a mapped manifest, and 16 bytes a blob.
const OPEN_SNAPSHOTS: u64 = 32;

/// Serves the blobs of an engine to other nodes.
pub struct PeerBlockService {
    engine: Engine,
    mirror: Mirror,
    /// By their ids; each is opened once, however many ask for it at the same time.
    snapshots: Cache<Digest, Arc<Snapshot>>,
}

impl PeerBlockService {
    /// Serves what `engine` has and what it can fetch from `mirror`.
    pub fn new(engine: Engine, mirror: Mirror) -> Self {
        let recency = EvictionPolicy::lru();
        let snapshots = Cache::builder().max_capacity(OPEN_SNAPSHOTS).eviction_policy(recency).build();
        Self { engine, mirror, snapshots }
    }

    /// The content of the requested blob, as the mirror's manifest describes it.
    async fn content(&self, request: &BlockRequest) -> Result<Arc<Content>> {
        let open = self.engine.open_for_peers(&self.mirror, request.snapshot);
        let snapshot = self.snapshots.try_get_with(request.snapshot, open).await.map_err(|e| e.share())?;
        let digest = request.blob;
        let content =
            blocking(move || snapshot.blob_by_digest(&digest).map(|blob| snapshot.content(blob)).transpose());
        let matches_request =
            |content: &Arc<Content>| content.blob().size == request.size && content.blob().checks.is_some();
        content.await?.filter(matches_request).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("blob {digest} is not in the snapshot {}", request.snapshot))
        })
    }

    /// The file of the requested blob, if all of it is present.
    async fn whole(&self, request: &BlockRequest) -> Result<Option<File>> {
        let (resources, key, size) = (self.resources().clone(), Key::Content(request.blob), request.size);
        let (reads, runtime) = (resources.cache.reads().clone(), resources.runtime.clone());
        let look = move || {
            // Asked first: a peer's idea of its size is no reason to take a blob for damaged.
            if resources.cache.has(&key, size) { resources.cache.open_whole(&key, size) } else { Ok(None) }
        };
        reads.run_blocking(&runtime, look).await?.unwrap_or(Ok(None))
    }

    fn resources(&self) -> &Arc<SharedResources> {
        self.engine.resources()
    }
}

impl BlockProvider for Arc<PeerBlockService> {
    fn provide<'a>(&'a self, request: &'a BlockRequest) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            // Contents in use are looked up without the disk, which may be busy: the peer waits for an answer.
            let live = self.engine.contents().get(&Key::Content(request.blob));
            let live = live.filter(|content| content.blob().size == request.size);
            if let Some(content) = live.filter(|content| content.has(&request.range)) {
                return Ok(Some(content.serve_range(request.range.clone(), request.urgency)));
            }
            if let Some(file) = self.whole(request).await? {
                return Ok(Some(body(self.resources().clone(), Arc::new(file), request)));
            }
            if request.role == Role::Holder {
                return Ok(None);
            }
            let (service, request) = (self.clone(), request.clone());
            let body = async move {
                let content = service.content(&request).await?;
                if request.role == Role::Draining && !content.has_or_fetches(&request.range) {
                    return Err(Error::new(Kind::NotFound, "a draining node starts no new fetches"));
                }
                Ok(content.serve_range(request.range, request.urgency))
            };
            Ok(Some(body.into_stream().try_flatten().boxed()))
        }
        .boxed()
    }

    fn progress(&self) -> u64 {
        self.resources().blocks_transferred.load(Relaxed)
    }
}

/// The requested bytes of a whole blob, a block at a time. They are copied into the process: a page that is missing would
/// hold up a thread that serves others, if it were sent from where the kernel keeps it.
fn body(resources: Arc<SharedResources>, file: Arc<File>, request: &BlockRequest) -> Body {
    let (range, urgency) = (request.range.clone(), request.urgency);
    let starts = range.clone().step_by(BLOCK as usize);
    stream::iter(starts)
        .then(move |start| {
            let (resources, file, len) = (resources.clone(), file.clone(), BLOCK.min(range.end - start));
            async move {
                let read = move || {
                    let fault = |e| Error::disk("cannot read a blob in the cache", e);
                    Ok(vec![cache::io::read(&file, start, len as usize).map_err(fault)?])
                };
                let read = async {
                    let read = resources.cache.reads().run_blocking(&resources.runtime, read).await?;
                    read.unwrap_or_else(|| Err(DiskReads::refusal()))
                };
                resources.send_buffer(len, urgency, read).await
            }
        })
        .boxed()
}

impl fmt::Debug for PeerBlockService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerBlockService({:?})", self.mirror)
    }
}
