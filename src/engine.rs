//! The engine: one cache, one memory budget, and the snapshots that are served through them.

mod mirrored_from_files;
mod mirrored_snapshot;
mod reopen;

use std::collections::{BTreeMap, HashMap};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tempfile::NamedTempFile;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::announcements::Announcements;
use crate::budget::{Budget, BudgetUsage};
use crate::buffer::BufferPool;
use crate::cache::eviction::EvictionPause;
use crate::cache::layout::Layout;
use crate::cache::node::NodeCache;
use crate::cache::{Cache, Limits};
use crate::content::{RecentBlocks, RecentFragments, Refutations, SharedResources};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::fetch::Ladder;
use crate::manifest::{HubCache, Listing, Manifest};
use crate::metrics::{EngineMetrics, EngineTotals, SnapshotMetrics};
use crate::mirror::Mirror;
use crate::mirror::catalog::Ref;
use crate::peer::client::Peers;
use crate::placement::Placement;
use crate::snapshot::{Contents, Snapshot, SnapshotView};
use crate::source::Patterns;
use crate::task::blocking;
use crate::tier::lazy_origin::OriginOpener;
use crate::tier::reference::ReferenceTier;
use crate::tier::{Origin, Tier};

/// The time that closing an engine waits for flights: those whose bytes have arrived need no longer to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The most memory that is on its way to other nodes, in bytes: 64 blocks, more than the sockets of a fast network take in
/// the time that a block needs to be read.
pub const PEER_SEND_BYTES: u64 = 64 << 20;

/// The number of blocks per core that are hashed and written at once: while one waits for the disk another is hashed.
const HASH_PERMITS_PER_CORE: usize = 2;

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cache's directory; made if it is missing.
    pub cache: PathBuf,
    /// The tenant that it serves where no other is [named](Engine::of). Tenants share nothing.
    pub tenant: String,
    /// The limits of the cache.
    pub limits: Limits,
    /// The most that the blobs of single tenants may occupy, in bytes.
    pub quotas: BTreeMap<String, u64>,
    /// The most memory that fetches under way may hold, in bytes. Those that wait for other nodes may hold half as much on
    /// top of it, and what is sent to other nodes [`PEER_SEND_BYTES`].
    pub memory: u64,
    /// The clock.
    pub now: fn() -> SystemTime,
}

/// The engine, as one tenant uses it. Clones are handles to the same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    node: Arc<NodeState>,
    resources: Arc<SharedResources>,
    contents: Arc<Contents>,
}

/// The state that all tenants of a node share.
#[derive(Debug)]
struct NodeState {
    node: NodeCache,
    direct_budget: Arc<Budget>,
    cluster_budget: Arc<Budget>,
    send_budget: Arc<Budget>,
    hash_permits: Arc<Semaphore>,
    recent_blocks: RecentBlocks,
    recent_fragments: RecentFragments,
    runtime: Handle,
    metrics: Arc<EngineMetrics>,
    buffers: Arc<BufferPool>,
    cluster: OnceLock<Arc<Announcements>>,
    tenants: Mutex<HashMap<String, TenantState>>,
}

/// The resources and contents of one tenant.
type TenantState = (Arc<SharedResources>, Arc<Contents>);

/// The usage of a cache.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Usage {
    /// Bytes that the cache's blobs occupy; `None` while they are still being counted after a start.
    pub used: Option<u64>,
    /// The most that they may occupy.
    pub capacity: Option<u64>,
    /// Bytes free on the cache's file system.
    pub free: u64,
    /// Bytes that are to stay free there.
    pub reserve: u64,
    /// Bytes evicted since the start.
    pub evicted: u64,
}

impl Usage {
    /// The usage of `node`.
    pub fn of(node: &NodeCache) -> Self {
        let evictor = node.evictor();
        let Limits { capacity, reserve } = evictor.limits();
        Self { used: evictor.used(), capacity, free: evictor.free(), reserve, evicted: evictor.evicted() }
    }

    /// Bytes that can be written without evicting anything; none while the cache is being counted.
    pub fn spare(&self) -> u64 {
        let Some(used) = self.used else { return 0 };
        let disk = self.free.saturating_sub(self.reserve);
        self.capacity.map_or(disk, |capacity| disk.min(capacity.saturating_sub(used)))
    }
}

impl NodeState {
    /// Announces complete snapshots of `cache` to the cluster, if there is one, and withdraws them on eviction.
    fn announce(&self, cache: &Cache) {
        let Some(announcements) = self.cluster.get() else { return };
        let listener: Weak<Announcements> = Arc::downgrade(announcements);
        cache.removal_listeners().add(listener);
        let (announcements, partition) = (announcements.clone(), cache.partition().clone());
        self.runtime.spawn_blocking(move || {
            if let Err(error) = announcements.announce_found(&partition) {
                tracing::warn!(%error, "cannot announce the snapshots of the cache to peers");
            }
        });
    }
}

impl Engine {
    /// Opens the cache and takes its lock. Fetches run on `runtime`. Blocks on the local disk.
    ///
    /// # Errors
    /// Those of [`NodeCache::open`].
    pub fn open(config: &Config, runtime: Handle) -> Result<Self> {
        Self::open_held(config, runtime).map(|(engine, _)| engine)
    }

    /// Opens the cache as [`open`](Self::open) does. Nothing is evicted before the returned pause is dropped, so that the
    /// lease holders from before a restart can take their leases again.
    ///
    /// # Errors
    /// Those of [`NodeCache::open`].
    pub fn open_held(config: &Config, runtime: Handle) -> Result<(Self, EvictionPause)> {
        let (node, hold) = NodeCache::open(&config.cache, config.limits, config.quotas.clone(), config.now)?;
        let permits = HASH_PERMITS_PER_CORE * std::thread::available_parallelism().map_or(2, usize::from);
        let shared = NodeState {
            node,
            direct_budget: Budget::new(config.memory),
            cluster_budget: Budget::new(config.memory / 2),
            send_budget: Budget::new(PEER_SEND_BYTES),
            hash_permits: Arc::new(Semaphore::new(permits)),
            recent_blocks: RecentBlocks::default(),
            recent_fragments: RecentFragments::default(),
            metrics: Arc::default(),
            buffers: Arc::default(),
            runtime,
            cluster: OnceLock::new(),
            tenants: Mutex::default(),
        };
        Ok((Self::for_tenant(Arc::new(shared), &config.tenant)?, hold))
    }

    /// An engine for another tenant, with the same resources. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for what can't be a tenant, [`Kind::Disk`].
    pub fn of(&self, tenant: &str) -> Result<Self> {
        Self::for_tenant(self.node.clone(), tenant)
    }

    /// The tenant that this handle is for.
    pub fn tenant(&self) -> &str {
        self.resources.cache.layout().tenant()
    }

    /// Joins the cluster: what comes from a mirror is from now on asked of `peers` first. Once, before the first snapshot.
    /// Announces complete snapshots to them.
    pub fn join(&self, peers: Arc<Peers>) {
        // A second call is a slip of the caller, and the first cluster as good as any.
        self.node.cluster.set(Arc::new(Announcements::new(peers))).ok();
        let tenants = self.node.tenants.lock();
        tenants.values().for_each(|(resources, _)| self.node.announce(&resources.cache));
    }

    /// The placement of the snapshot `id` in the cluster, if there is one.
    fn placement(&self, id: Digest) -> Option<Arc<dyn Placement>> {
        self.peers().map(|peers| peers.placement(self.tenant(), id))
    }

    fn ladder(&self, placement: Option<Arc<dyn Placement>>, tiers: Vec<Arc<dyn Tier>>) -> Arc<Ladder> {
        let ladder =
            Ladder::new(tiers, SnapshotMetrics::in_engine(&self.node.metrics), self.node.buffers.clone());
        Arc::new(ladder.with_placement(placement))
    }

    /// The announcement of a complete snapshot to the cluster, if there is one.
    fn announcements(&self) -> Option<Arc<Announcements>> {
        self.node.cluster.get().cloned()
    }

    fn for_tenant(node: Arc<NodeState>, tenant: &str) -> Result<Self> {
        let mut tenants = node.tenants.lock();
        let (resources, contents) = match tenants.get(tenant) {
            Some(known) => known.clone(),
            None => {
                let resources = SharedResources {
                    cache: node.node.tenant(tenant)?,
                    direct_budget: node.direct_budget.clone(),
                    cluster_budget: node.cluster_budget.clone(),
                    send_budget: node.send_budget.clone(),
                    blocks_transferred: AtomicU64::new(0),
                    metrics: node.metrics.clone(),
                    hash_permits: node.hash_permits.clone(),
                    recent_blocks: node.recent_blocks.of(tenants.len() as u64),
                    recent_fragments: node.recent_fragments.of(tenants.len() as u64),
                    refutations: Refutations::default(),
                    runtime: node.runtime.clone(),
                };
                let new: TenantState = (Arc::new(resources), Arc::default());
                let contents: Weak<Contents> = Arc::downgrade(&new.1);
                // Added before all mounts: what they read anew comes from here.
                new.0.cache.removal_listeners().add(contents);
                node.announce(&new.0.cache);
                tenants.insert(tenant.to_owned(), new.clone());
                new
            }
        };
        drop(tenants);
        Ok(Self { node, resources, contents })
    }

    /// Lists `origin`, and makes what it holds now readable.
    ///
    /// # Errors
    /// Those of [`Origin::list`] and [`Listing::finish`].
    pub async fn snapshot(&self, origin: Arc<dyn Origin>, patterns: Patterns) -> Result<Arc<Snapshot>> {
        let mut listing =
            Listing::new(&origin.identity(), patterns, self.resources.cache.layout().manifests());
        origin.list(&mut listing).await?;
        let notes = listing.notes();
        let resources = self.resources.clone();
        let kept = blocking(move || save_manifest(listing, resources.cache.layout()));
        let (id, manifest) = kept.await?;
        let ladder = self.ladder(None, vec![origin]);
        let shared = (self.resources.clone(), self.contents.clone());
        Ok(Arc::new(Snapshot::new(id, Arc::new(manifest), notes, shared, ladder)))
    }

    /// Makes readable what `mirror` has `found` a source to be mirrored as. What the mirror can't send right comes from the
    /// origin that `open` opens, which is not opened before.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest there is damaged or missing, [`Kind::Disk`] for the cache; those of the mirror's
    /// store.
    pub async fn mirrored(&self, mirror: &Mirror, found: &Ref, open: OriginOpener) -> Result<Arc<Snapshot>> {
        self.mirrored_snapshot(mirror, found.manifest, open).await
    }

    /// Opens the snapshot `id` of `mirror` for other nodes: what it lacks comes from the mirror, and from peers that have it.
    ///
    /// # Errors
    /// Those of [`mirrored`](Self::mirrored).
    pub(crate) async fn open_for_peers(&self, mirror: &Mirror, id: Digest) -> Result<Arc<Snapshot>> {
        let manifest = Arc::new(self.manifest(mirror, &id).await?);
        let ladder = self.ladder(self.placement(id), vec![Arc::new(mirror.clone())]);
        let shared = (self.resources.clone(), self.contents.clone());
        Ok(Arc::new(Snapshot::new(id, manifest, Default::default(), shared, ladder)))
    }

    /// Shows `snapshot`, which is not mounted yet, as `cache` names it. Reads the whole manifest.
    ///
    /// # Errors
    /// Those of [`HubCache::view`].
    pub fn show_as_hub_cache(&self, snapshot: &Snapshot, cache: &HubCache) -> Result<()> {
        let manifest = Arc::new(cache.view(snapshot.listed_manifest())?);
        snapshot.show(SnapshotView { manifest, ladder: self.ladder(None, vec![Arc::new(ReferenceTier)]) });
        Ok(())
    }

    /// The resources that every content uses.
    pub(crate) fn resources(&self) -> &Arc<SharedResources> {
        &self.resources
    }

    /// The contents in use.
    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// A manifest of the mirror's, kept in the cache.
    async fn manifest(&self, mirror: &Mirror, id: &Digest) -> Result<Manifest> {
        let (manifests, id) = (self.resources.cache.layout().manifests().to_owned(), *id);
        let resources = self.resources.clone();
        if let Some(manifest) = blocking(move || Ok(saved_manifest(resources.cache.layout(), &id))).await? {
            return Ok(manifest);
        }
        let directory = manifests.clone();
        let fault = move |e| save_failed(&directory, e);
        let draft = NamedTempFile::new_in(&manifests).map_err(&fault)?;
        let file = Arc::new(draft.as_file().try_clone().map_err(&fault)?);
        if mirror.copy_manifest(&id, file).await.map_err(|e| e.on_disk(&manifests))?.is_none() {
            let text = format!("the mirror {} lacks the manifest {id}; add the source again", mirror.name());
            return Err(Error::new(Kind::Corrupt, text));
        }
        blocking(move || {
            draft.as_file().sync_all().map_err(&fault)?;
            let file = draft.persist(manifests.join(id.to_string())).map_err(|e| fault(e.error))?;
            Manifest::open(&file)
        })
        .await
    }

    /// Waits until what has arrived is durable, so that nothing of it is fetched again by the next process. What is
    /// partly here stays so; flights under way are given up with the process, and removals are left to the next one.
    pub async fn close(&self) {
        self.cache().leave_removals();
        let all: Vec<_> = {
            let tenants = self.node.tenants.lock();
            tenants.values().map(|(_, contents)| contents.clone()).collect()
        };
        join_all(all.iter().map(|contents| contents.await_finished(CLOSE_TIMEOUT))).await;
    }

    /// The cache on the disk, of all tenants.
    pub fn cache(&self) -> &NodeCache {
        &self.node.node
    }

    /// The counts since it was opened, of all tenants.
    pub fn metrics(&self) -> EngineTotals {
        self.node.metrics.totals()
    }

    /// The use of memory by direct flights, by those that may wait for other nodes, and by what is sent to others.
    pub fn memory(&self) -> [BudgetUsage; 3] {
        [&self.node.direct_budget, &self.node.cluster_budget, &self.node.send_budget]
            .map(|budget| budget.usage())
    }

    /// The other nodes, where it has joined a cluster.
    pub fn peers(&self) -> Option<&Arc<Peers>> {
        self.node.cluster.get().map(|announcements| announcements.peers())
    }

    /// Whether what the cache held at its start has been counted.
    pub fn is_counted(&self) -> bool {
        self.node.node.evictor().is_counted()
    }

    /// Returns the use of the cache and its limits.
    pub fn usage(&self) -> Usage {
        Usage::of(&self.node.node)
    }
}

/// The manifest `id` that was kept, if it is whole.
fn saved_manifest(layout: &Layout, id: &Digest) -> Option<Manifest> {
    let manifest = Manifest::open(&layout.open_manifest(id).ok()?).ok()?;
    (manifest.digest() == *id).then_some(manifest)
}

/// Writes a manifest under its digest, durably, and opens it. One that is there stays: a disk syncs in milliseconds, which a
/// mount of what is local would wait for.
fn save_manifest(listing: Listing, layout: &Layout) -> Result<(Digest, Manifest)> {
    let manifests = layout.manifests();
    let fault = |e| save_failed(manifests, e);
    let mut draft = NamedTempFile::new_in(manifests).map_err(fault)?;
    let mut out = BufWriter::with_capacity(1 << 20, draft.as_file_mut());
    let id = listing.finish(&mut out)?;
    out.flush().map_err(fault)?;
    drop(out);
    if let Some(saved) = saved_manifest(layout, &id) {
        return Ok((id, saved));
    }
    draft.as_file().sync_all().map_err(fault)?;
    let file = draft.persist(manifests.join(id.to_string())).map_err(|e| fault(e.error))?;
    Ok((id, Manifest::open(&file)?))
}

fn save_failed(manifests: &Path, error: std::io::Error) -> Error {
    Error::disk(format!("cannot keep a manifest in {}", manifests.display()), error)
}
