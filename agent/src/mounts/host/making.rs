//! Making mounts: from what is asked for to a mount that serves.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bdnfs::engine::Engine;
use bdnfs::error::Kind;
use bdnfs::snapshot::Snapshot;
use bdnfs_fs::{Mount, Options};

use super::{Hold, Host, blocking};
use crate::api::{Failure, MountInfo, MountRequest};
use crate::mounts::hosted::Hosted;
use crate::mounts::kept::Kept;
use crate::mounts::snapshot::{self, Made};
use crate::{runtime, text};

/// So many threads take a mount's requests, however few processors there are: what they wait for is the cache's disk, where a small
/// file is opened and read whose pages are not in memory. On two processors eight of them read a quarter more of such files than two,
/// sixteen no more than eight. What is in memory already, but new to the mount, is answered a tenth slower; a large file is all the same.
const DEVICE_THREADS: usize = 8;
/// From so many files on, what a listing took is worth to be given back at once.
const LONG: u64 = 100_000;

impl Host {
    /// Mounts a source. Dropping the future, as when the client has left, gives it up.
    pub async fn mount(self: &Arc<Self>, request: MountRequest) -> Result<MountInfo, Failure> {
        let place = &request.weights.mountpoint;
        if self.cache.starts_with(place) {
            let place = place.display();
            let text =
                format!("the cache lies below {place}, so the mount would hide it; choose another directory");
            return Err(Failure::new(Kind::Invalid, text));
        }
        let _hold = self.reserve(place)?;
        tokio::select! {
            biased;
            () = self.closed() => Err(Failure::closing()),
            mounted = self.make(request.clone()) => mounted,
        }
    }

    fn reserve(self: &Arc<Self>, place: &Path) -> Result<Hold, Failure> {
        let mut table = self.table();
        if *self.closing.borrow() {
            return Err(Failure::closing());
        }
        // What is mounted there already, the mount itself finds out.
        if !table.reserved.insert(place.to_owned()) {
            let message = format!("another mount is being made at {}", place.display());
            return Err(Failure::new(Kind::Busy, message));
        }
        table.holds += 1;
        self.asked.notify_one();
        Ok(Hold { host: Arc::clone(self), place: Some(place.to_owned()) })
    }

    async fn make(self: &Arc<Self>, request: MountRequest) -> Result<MountInfo, Failure> {
        // Numbers and mountpoints of what comes back go first.
        self.ready().await;
        let (engine, equipped) = (self.engine_of(&request).await?, self.equip(&request));
        let made = snapshot::make(&engine, &self.cache, &equipped).await?;
        let Made { snapshot, resolved, note } = made;
        if snapshot.manifest().files() == 0 {
            let message = format!("{} holds no file", snapshot.manifest().source());
            return Err(Failure::new(Kind::NotFound, message));
        }
        let (bare, bereft) = request.without_secrets()?;
        let kept = Kept {
            id: 0,
            since: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            request: bare,
            bereft,
            snapshot: snapshot.id().to_string(),
            resolved,
            staged: false,
        };
        let mount = self.attach(&snapshot, &request).await?;
        if snapshot.manifest().files() >= LONG {
            blocking(|| {
                runtime::trim_heap();
                Ok(())
            })
            .await?;
        }
        let warnings = self.warnings(&snapshot, &mount, &request).into_iter().chain(note).collect();
        let hosted = self.register(snapshot, mount, kept, request).await?;
        Ok(MountInfo { warnings, ..hosted.mounted() })
    }

    /// The engine of the tenant whose mount it is.
    pub(crate) async fn engine_of(&self, request: &MountRequest) -> Result<Engine, Failure> {
        let Some(tenant) = request.tenant.clone() else { return Ok(self.engine.clone()) };
        let engine = self.engine.clone();
        blocking(move || Ok(engine.of(&tenant)?)).await
    }

    /// A request, with what this daemon adds to it.
    pub(crate) fn equip(&self, request: &MountRequest) -> MountRequest {
        let mut request = request.clone();
        request.weights.access.secrets.extend_from_slice(&self.secrets);
        if request.mirror.is_none() && !request.direct {
            request.mirror.clone_from(&self.mirror);
            if let (Some(mirror), Some(tenant)) = (&mut request.mirror, &request.tenant) {
                mirror.tenant.clone_from(tenant);
            }
        }
        request
    }

    /// Mounts a snapshot.
    pub(crate) async fn attach(
        &self,
        snapshot: &Arc<Snapshot>,
        request: &MountRequest,
    ) -> Result<Mount, Failure> {
        let options = self.options(request);
        let (served, place) = (Arc::clone(snapshot), request.weights.mountpoint.clone());
        let runtime = tokio::runtime::Handle::current();
        blocking(move || Ok(Mount::new(served, runtime, &place, &options)?)).await
    }

    /// How what is asked for is mounted.
    pub(crate) fn options(&self, request: &MountRequest) -> Options {
        Options {
            allow_other: request.allow_other,
            uid: request.uid,
            gid: request.gid,
            threads: DEVICE_THREADS,
            control: Some(self.socket.clone()),
            metrics: Arc::clone(&self.served),
            invalidator: self.keeper.clone().map(|keeper| keeper as _),
        }
    }

    /// Takes a mount into the table, and keeps a record of it; one without a number gets its number here.
    pub(crate) async fn register(
        self: &Arc<Self>,
        snapshot: Arc<Snapshot>,
        mount: Mount,
        kept: Kept,
        request: MountRequest,
    ) -> Result<Arc<Hosted>, Failure> {
        let host = Arc::clone(self);
        // In one piece: who leaves meanwhile leaves a mount, or none.
        let hosted = blocking(move || {
            let is_new = kept.id == 0;
            let id = if is_new { host.next() } else { kept.id };
            let hosted = Arc::new(Hosted::new(snapshot, mount, Kept { id, ..kept }, request));
            if is_new {
                host.keep(&hosted)?;
            }
            let mut table = host.table();
            if *host.closing.borrow() {
                drop(table);
                // What is not new comes back. Dropping the mount unmounts it, unless it is left.
                if is_new {
                    host.drop_record(id);
                }
                if hosted.mount().is_resumed() {
                    hosted.mount().hand_over();
                }
                return Err(Failure::closing());
            }
            let superseded: Vec<u64> = table.superseded(hosted.mountpoint()).collect();
            table.mounts.insert(id, Arc::clone(&hosted));
            table.missing.retain(|id, _| !superseded.contains(id));
            drop(table);
            superseded.into_iter().for_each(|id| host.drop_record(id));
            host.have_held(&hosted);
            Ok(hosted)
        })
        .await?;
        tracing::info!(
            "mounted {} at {}",
            hosted.snapshot().manifest().source(),
            hosted.mountpoint().display()
        );
        let (host, leaving) = (Arc::clone(self), Arc::clone(&hosted));
        tokio::spawn(async move {
            leaving.mount().ended().await;
            if !leaving.mount().is_handed_over() {
                host.forget(&leaving).await;
            }
        });
        Ok(hosted)
    }

    fn warnings(&self, snapshot: &Snapshot, mount: &Mount, request: &MountRequest) -> Vec<String> {
        let source = snapshot.manifest().source();
        let unmatched = snapshot.unmatched().iter().map(|pattern| text::unmatched(pattern, source));
        let mut warnings: Vec<_> = unmatched.collect();
        if mount.lacks_passthrough() {
            warnings.push(
                "the kernel can't read local files by itself (that needs Linux 6.9 and root), so reads go \
                 through the daemon and are slower"
                    .to_owned(),
            );
        }
        let capacity = self.engine.usage().capacity;
        if let Some(size) = request.cache_size.filter(|&size| Some(size) != capacity) {
            let has = capacity.map_or("no limit".to_owned(), |has| format!("a limit of {}", text::size(has)));
            let asked = text::size(size);
            warnings.push(format!(
                "the daemon of this cache runs with {has}, not {asked}; it takes another limit when all its mounts \
                 have ended"
            ));
        }
        warnings
    }
}
