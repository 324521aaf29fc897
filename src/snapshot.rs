//! Snapshots: immutable states of a source, ready to be read.

mod contents;
mod open;
mod view;

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::announcements::Announcements;
use crate::blob::Key;
use crate::cache::commit::known_digest;
use crate::cache::disk_reads::DiskReads;
use crate::cache::leases::{LeaseGroup, LeaseSet, ManifestLease};
use crate::cache::pressure::CachePressureListener;
use crate::cache::removal::RemovalListener;
use crate::content::SharedResources;
use crate::digest::Digest;
use crate::error::Result;
use crate::fetch::Ladder;
use crate::manifest::{ListingNotes, Manifest, Node, Slice};
use crate::metrics::Traffic;
use crate::mirror::lease::ServeLease;
use crate::stage::Stage;

pub use contents::Contents;
pub(crate) use view::SnapshotView;

/// One immutable state of a source, and the way to its bytes.
#[derive(Debug)]
pub struct Snapshot {
    id: Digest,
    manifest: Arc<Manifest>,
    notes: ListingNotes,
    resources: Arc<SharedResources>,
    contents: Arc<Contents>,
    ladder: Arc<Ladder>,
    /// The tree that is shown in place of the manifest's own.
    view: OnceLock<SnapshotView>,
    stage: Mutex<Option<Arc<Stage>>>,
    held: OnceLock<LeaseSet>,
    _manifest: ManifestLease,
    /// Keeps the mirror from collecting what is still to come.
    lease: Mutex<LeaseState>,
    /// Tells other nodes when all of it is here, where there are any.
    announcements: Option<Arc<Announcements>>,
    /// The number of each blob by the first bytes of its digest: built when another node first asks for a blob.
    blob_index: OnceLock<Vec<(u64, u32)>>,
    /// The copy of its small files that native mounts read, as long as there is one.
    native_pack: Mutex<Weak<Snapshot>>,
}

/// A mirror's lease to keep a snapshot's content.
#[derive(Debug, Default)]
enum LeaseState {
    #[default]
    None,
    Held(Box<ServeLease>),
    Released,
}

impl Snapshot {
    /// The snapshot that `manifest` describes, whose missing bytes come down `ladder`.
    pub(crate) fn new(
        id: Digest,
        manifest: Arc<Manifest>,
        notes: ListingNotes,
        (resources, contents): (Arc<SharedResources>, Arc<Contents>),
        ladder: Arc<Ladder>,
    ) -> Self {
        let kept = resources.cache.leases().lease_manifest(id);
        resources.cache.partition().open_manifests.add(id, &manifest);
        Self {
            id,
            manifest,
            notes,
            resources,
            contents,
            ladder,
            view: OnceLock::new(),
            stage: Mutex::default(),
            held: OnceLock::new(),
            _manifest: kept,
            lease: Mutex::default(),
            announcements: None,
            blob_index: OnceLock::new(),
            native_pack: Mutex::default(),
        }
    }

    /// Notes that native mounts read a copy of its small files, which is a snapshot of its own.
    pub(crate) fn set_native_pack(&self, pack: &Arc<Snapshot>) {
        *self.native_pack.lock() = Arc::downgrade(pack);
    }

    /// The copy of its small files that native mounts read, if any does.
    pub(crate) fn native_pack(&self) -> Weak<Snapshot> {
        self.native_pack.lock().clone()
    }

    /// Adds the mirror's lease that keeps its content.
    pub(crate) fn with_lease(self, lease: Option<ServeLease>) -> Self {
        Self {
            lease: Mutex::new(lease.map_or(LeaseState::None, |lease| LeaseState::Held(Box::new(lease)))),
            ..self
        }
    }

    /// Adds the mirror's lease to a snapshot that is served already. If it has been [released](Self::release) meanwhile,
    /// so is the lease.
    pub(crate) async fn lease_with(&self, lease: ServeLease) {
        let spare = {
            let mut held = self.lease.lock();
            match *held {
                LeaseState::None => {
                    *held = LeaseState::Held(Box::new(lease));
                    None
                }
                _ => Some(lease),
            }
        };
        if let Some(lease) = spare {
            lease.release().await;
        }
    }

    /// Adds the announcements that tell other nodes when all of it is local.
    pub(crate) fn with_announcements(self, announcements: Option<Arc<Announcements>>) -> Self {
        Self { announcements, ..self }
    }

    /// Tells other nodes that all of it is here, for as long as it stays in the cache.
    pub(crate) fn announce(&self) {
        if let Some(announcements) = &self.announcements {
            announcements.announce(&self.id, self.manifest.clone(), self.resources.cache.partition().clone());
        }
    }

    /// The number of the blob with this digest; `None` when the snapshot has none. Looks through all blobs, the first time.
    pub(crate) fn blob_by_digest(&self, digest: &Digest) -> Option<u32> {
        let numbers = self.blob_index.get_or_init(|| {
            let keys = (0..self.manifest().blobs()).map(|n| (n, self.manifest().key(n)));
            let contents = keys.filter_map(|(n, key)| match key {
                Ok(Key::Content(digest)) => Some((digest_prefix(&digest), n)),
                _ => None,
            });
            let mut numbers: Vec<_> = contents.collect();
            numbers.sort_unstable();
            numbers
        });
        let from = numbers.partition_point(|(key, _)| *key < digest_prefix(digest));
        let alike = numbers[from..].iter().take_while(|(key, _)| *key == digest_prefix(digest));
        let named = |n: &u32| self.manifest().key(*n).is_ok_and(|key| key == Key::Content(*digest));
        alike.map(|(_, n)| *n).find(named)
    }

    /// Releases the mirror's lease, and waits until it is deleted. From then on the mirror may collect content that is not
    /// local yet.
    pub async fn release(&self) {
        let lease = {
            let mut held = self.lease.lock();
            std::mem::replace(&mut *held, LeaseState::Released)
        };
        if let LeaseState::Held(lease) = lease {
            lease.release().await;
        }
        if self.held.get().is_some() {
            let (manifest, cache) = (self.shared_manifest(), self.resources.cache.clone());
            // A leased blob may not have been opened for days, and was in use all the same.
            let touched = self.resources.runtime.spawn_blocking(move || {
                let keys = (0..manifest.blobs()).filter_map(|blob| manifest.key(blob).ok());
                keys.for_each(|key| cache.mark_key_used(&key));
            });
            touched.await.ok();
        }
    }

    /// The digest of its manifest.
    pub fn id(&self) -> Digest {
        self.id
    }

    /// The manifest, or the view of it that is [shown](crate::engine::Engine::show_as_hub_cache).
    pub fn manifest(&self) -> &Manifest {
        self.view.get().map_or(&self.manifest, |view| &view.manifest)
    }

    /// The notes for users on its listing.
    pub fn notes(&self) -> &ListingNotes {
        &self.notes
    }

    /// The resources that every content uses.
    pub(crate) fn resources(&self) -> &Arc<SharedResources> {
        &self.resources
    }

    /// The runtime of its fetches.
    pub fn runtime(&self) -> &Handle {
        &self.resources.runtime
    }

    /// Whether the cache has every blob of it, whole. Looks at each on the local disk.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn is_whole(&self) -> Result<bool> {
        for blob in 0..self.manifest().blobs() {
            let size = self.manifest().blob_size(blob)?;
            if size > 0 && !self.resources.cache.has(&self.manifest().key(blob)?, size) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts the bytes of `slice` that lie in the node's cache; of a part of a blob, at least so many. Touches the local disk,
    /// never the network, and counts as no use of it.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is; [`Busy`](crate::error::Kind::Busy) while the disk does not
    /// answer.
    pub fn local_bytes(&self, slice: Slice) -> Result<u64> {
        let (key, size) = (self.manifest().key(slice.blob)?, self.manifest().blob_size(slice.blob)?);
        let reads = self.resources.cache.reads();
        if reads.are_late() {
            return Err(DiskReads::refusal());
        }
        // A whole blob that is opened is marked as used.
        let is_whole = reads.run(self.runtime(), || self.resources.cache.has(&key, size));
        let local = if is_whole { size } else { self.content(slice.blob)?.local_bytes() };
        Ok(local.saturating_sub(size - slice.len))
    }

    /// The digest of the file that is `slice`, where the manifest or a whole local copy tells it. Of a part of a blob,
    /// neither does.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn digest(&self, slice: Slice) -> Result<Option<Digest>> {
        let blob = self.manifest().blob(slice.blob)?;
        if slice.len != blob.size {
            return Ok(None);
        }
        if let Key::Content(digest) = blob.key {
            return Ok(Some(digest));
        }
        let Some(file) = self.content(slice.blob)?.whole() else { return Ok(None) };
        Ok(known_digest(&blob.key, &file))
    }

    /// Keeps what the cache has of it, and what will come, from being evicted as long as it lives, whether there is room
    /// for all of it or not. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn hold(&self) -> Result<()> {
        self.hold_with(|group| Ok(self.resources.cache.leases().lease_all(group)))
    }

    /// Leases its content, if the cache has room for all of it beside what is held already.
    ///
    /// # Errors
    /// [`NoSpace`](crate::error::Kind::NoSpace), and those of [`hold`](Self::hold).
    pub fn admit(&self) -> Result<()> {
        self.hold_with(|group| Ok(self.resources.cache.space().admit(vec![group])?.remove(0)))
    }

    /// Leases several snapshots of one tenant: all are held, or none that was not before.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn admit_all(snapshots: &[&Self]) -> Result<()> {
        let fresh: Vec<_> = snapshots.iter().filter(|snapshot| snapshot.held.get().is_none()).collect();
        let Some(first) = fresh.first() else { return Ok(()) };
        let groups =
            fresh.iter().map(|snapshot| LeaseGroup::of(snapshot.manifest())).collect::<Result<_>>()?;
        let leases = first.resources.cache.space().admit(groups)?;
        for (snapshot, lease) in fresh.into_iter().zip(leases) {
            snapshot.held.set(lease).ok();
        }
        Ok(())
    }

    /// Makes sure that the cache would have room for several of one tenant if nothing else was leased.
    ///
    /// # Errors
    /// Those of [`admit`](Self::admit).
    pub fn could_be_admitted(snapshots: &[&Self]) -> Result<()> {
        let Some(first) = snapshots.first() else { return Ok(()) };
        let groups = snapshots
            .iter()
            .map(|snapshot| LeaseGroup::of(snapshot.manifest()))
            .collect::<Result<Vec<_>>>()?;
        first.resources.cache.space().ensure_fits(&groups)
    }

    fn hold_with(&self, lease: impl FnOnce(LeaseGroup) -> Result<LeaseSet>) -> Result<()> {
        if self.held.get().is_none() {
            self.held.set(lease(LeaseGroup::of(self.manifest())?)?).ok();
        }
        Ok(())
    }

    /// The bytes of its blobs: what files have in common counts once.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn content_bytes(&self) -> Result<u64> {
        (0..self.manifest().blobs()).map(|blob| self.manifest().blob_size(blob)).sum()
    }

    /// Returns the slot in which [`staging`](crate::staging) keeps its last stage.
    pub(crate) fn stage_slot(&self) -> &Mutex<Option<Arc<Stage>>> {
        &self.stage
    }

    /// The entries of the files whose content lies in the blob `key`. Looks through the whole manifest.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn files_of(&self, key: &Key) -> Result<Vec<u32>> {
        let mut blobs = Vec::new();
        for blob in 0..self.manifest().blobs() {
            if self.manifest().key(blob)? == *key {
                blobs.push(blob);
            }
        }
        let mut files = Vec::new();
        let entries = if blobs.is_empty() { 0 } else { self.manifest().entries() };
        for index in 0..entries {
            if let Node::File(slice) = self.manifest().entry(index)?.node
                && blobs.contains(&slice.blob)
            {
                files.push(index);
            }
        }
        Ok(files)
    }

    /// Tells `listener`, for as long as it lives, when something that the cache had of a blob of this tenant was not right.
    pub fn on_removal(&self, listener: Weak<dyn RemovalListener>) {
        self.resources.cache.removal_listeners().add(listener);
    }

    /// Notifies `listener`, while it is alive, when the cache is full and nothing can be evicted.
    pub fn on_cache_pressure(&self, listener: Weak<dyn CachePressureListener>) {
        self.resources.cache.space().evictor().pressure_listeners().add(listener);
    }

    /// The bytes and requests by tier since this snapshot was opened.
    pub fn traffic(&self) -> Traffic {
        self.ladder.counters().traffic()
    }

    /// The blobs that the mirror has sent wrong bytes of, and what is wrong with each.
    pub fn mirror_damage(&self) -> Vec<(Key, String)> {
        self.ladder.counters().damage()
    }
}

fn digest_prefix(digest: &Digest) -> u64 {
    digest.0.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
