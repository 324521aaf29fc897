//! The host: all mounts of one daemon, and whether it is still needed.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bdnfs::engine::Engine;
use bdnfs::error::Kind;
use bdnfs::snapshot::Snapshot;
use bdnfs_fs::{Mount, Options};
use tokio::sync::{Notify, watch};

use super::hosted::Hosted;
use super::snapshot;
use crate::control::api::{Daemon, Failure, MountRequest, Mounted, Staging, Status};
use crate::text;

/// Two device threads already answer twice as fast as one; beyond eight they only get in each other's way.
const DEVICE_THREADS: (usize, usize) = (2, 8);
/// How long the answer to how far a stage is may be held back: its end is told at once, and progress as often as is
/// smooth to the eye.
const NEWS: Duration = Duration::from_millis(200);
/// An unmounted mount ends at once, but for one that somebody detached (`umount -l`) and others still use.
const FAREWELL: Duration = Duration::from_secs(5);

/// All mounts of one daemon.
#[derive(Debug)]
pub struct Host {
    engine: Engine,
    cache: PathBuf,
    socket: PathBuf,
    table: Mutex<Table>,
    changed: Notify,
    asked: Notify,
    closing: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Table {
    mounts: BTreeMap<u64, Arc<Hosted>>,
    last: u64,
    holds: usize,
    /// Where mounts are being made.
    reserved: HashSet<PathBuf>,
}

/// Keeps the daemon from ending, and a mountpoint from being used twice.
#[derive(Debug)]
pub struct Hold {
    host: Arc<Host>,
    place: Option<PathBuf>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.host.table();
        table.holds -= 1;
        if let Some(place) = &self.place {
            table.reserved.remove(place);
        }
        drop(table);
        self.host.changed.notify_one();
    }
}

impl Host {
    /// A host without mounts, of the cache directory `cache`, which can be reached at `socket`.
    pub fn new(engine: Engine, cache: PathBuf, socket: PathBuf) -> Self {
        let closing = watch::Sender::new(false);
        Self {
            engine,
            cache,
            socket,
            table: Mutex::default(),
            changed: Notify::new(),
            asked: Notify::new(),
            closing,
        }
    }

    /// Waits until what has arrived is safe on the disk.
    pub async fn close(&self) {
        self.engine.close().await;
    }

    /// Keeps the daemon from ending.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.table().holds += 1;
        Hold { host: Arc::clone(self), place: None }
    }

    /// Mounts a source. Dropping the future, as when the client has left, gives it up.
    pub async fn mount(self: &Arc<Self>, request: MountRequest) -> Result<Mounted, Failure> {
        let _hold = self.reserve(&request.mountpoint)?;
        tokio::select! {
            biased;
            () = self.closed() => Err(Failure::closing()),
            made = self.make(&request) => {
                let (made, note) = made?;
                let mounted = self.register(made, &request)?;
                let warnings = mounted.warnings.into_iter().chain(note).collect();
                Ok(Mounted { warnings, ..mounted })
            }
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

    /// Makes a mount, with what its user should know.
    async fn make(
        &self,
        request: &MountRequest,
    ) -> Result<((Arc<Snapshot>, Mount), Option<String>), Failure> {
        let (snapshot, note) = snapshot::make(&self.engine, &self.cache, request).await?;
        if snapshot.manifest().files() == 0 {
            let message = format!("{} holds no file", snapshot.manifest().source());
            return Err(Failure::new(Kind::NotFound, message));
        }
        let threads = std::thread::available_parallelism().map_or(DEVICE_THREADS.0, usize::from);
        let options = Options {
            allow_other: request.allow_other,
            uid: request.uid,
            gid: request.gid,
            threads: threads.clamp(DEVICE_THREADS.0, DEVICE_THREADS.1),
            control: Some(self.socket.clone()),
        };
        let (served, place) = (Arc::clone(&snapshot), request.mountpoint.clone());
        let runtime = tokio::runtime::Handle::current();
        let mount = blocking(move || Ok(Mount::new(served, runtime, &place, &options)?)).await?;
        Ok(((snapshot, mount), note))
    }

    fn register(
        self: &Arc<Self>,
        (snapshot, mount): (Arc<Snapshot>, Mount),
        request: &MountRequest,
    ) -> Result<Mounted, Failure> {
        let warnings = self.warnings(&mount, request);
        let hosted = {
            let mut table = self.table();
            if *self.closing.borrow() {
                // Dropping the mount unmounts it.
                return Err(Failure::closing());
            }
            table.last += 1;
            let hosted = Arc::new(Hosted::new(table.last, snapshot, mount));
            table.mounts.insert(hosted.id(), Arc::clone(&hosted));
            hosted
        };
        let mounted = Mounted { warnings, ..hosted.mounted() };
        tracing::info!("mounted {} at {}", mounted.source, mounted.mountpoint.display());
        let host = Arc::clone(self);
        tokio::spawn(async move {
            hosted.mount().ended().await;
            host.forget(&hosted).await;
        });
        Ok(mounted)
    }

    fn warnings(&self, mount: &Mount, request: &MountRequest) -> Vec<String> {
        let mut warnings = Vec::new();
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

    async fn forget(&self, hosted: &Hosted) {
        hosted.snapshot().release().await;
        self.table().mounts.remove(&hosted.id());
        tracing::info!("unmounted {}", hosted.mountpoint().display());
        hosted.forgotten();
        self.changed.notify_one();
    }

    /// Unmounts a mount and waits until it is gone; `lazy`: takes it out of sight and doesn't wait.
    pub async fn unmount(&self, id: u64, lazy: bool) -> Result<(), Failure> {
        let hosted = self.find(id)?;
        let leaving = Arc::clone(&hosted);
        if lazy {
            return blocking(move || Ok(leaving.detach()?)).await;
        }
        blocking(move || Ok(leaving.mount().unmount()?)).await?;
        // Too late: it ends with the last of its users.
        let _ = tokio::time::timeout(FAREWELL, hosted.gone()).await;
        Ok(())
    }

    /// Waits until a mount is gone, or the daemon about to go.
    pub async fn ended(&self, id: u64) -> Result<(), Failure> {
        let hosted = self.find(id)?;
        tokio::select! {
            () = hosted.gone() => {}
            () = self.closed() => {}
        }
        Ok(())
    }

    /// Begins to make all of a mount local.
    pub fn stage(&self, id: u64) -> Result<Staging, Failure> {
        Ok(self.find(id)?.stage())
    }

    /// How far that is.
    pub async fn staging(&self, id: u64) -> Result<Staging, Failure> {
        let staging = self.find(id)?.staging(NEWS).await;
        staging.ok_or_else(|| Failure::new(Kind::NotFound, format!("mount {id} is not being staged")))
    }

    /// How all is doing.
    pub async fn status(&self) -> Result<Status, Failure> {
        let mut mounts: Vec<_> = self.table().mounts.values().cloned().collect();
        mounts.retain(|hosted| !hosted.is_detached());
        let (engine, cache) = (self.engine.clone(), self.cache.clone());
        blocking(move || {
            let (version, pid) = (env!("CARGO_PKG_VERSION").to_owned(), std::process::id());
            let daemon = Daemon { version, pid, cache, usage: engine.usage() };
            Ok(Status { daemon, mounts: mounts.iter().map(|hosted| hosted.status()).collect() })
        })
        .await
    }

    /// Waits until nothing is mounted and nobody holds it. From then on it refuses mounts.
    pub async fn idle(&self) {
        loop {
            {
                let table = self.table();
                if table.mounts.is_empty() && table.holds == 0 {
                    self.closing.send_replace(true);
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Refuses mounts from now on, and unmounts all that there are: what is held is taken out of sight.
    pub async fn unmount_all(&self) {
        let mounts: Vec<_> = {
            let table = self.table();
            self.closing.send_replace(true);
            table.mounts.values().filter(|hosted| !hosted.is_detached()).map(|hosted| hosted.id()).collect()
        };
        for id in mounts {
            let Err(failure) = self.unmount(id, false).await else { continue };
            tracing::warn!("{failure}; detaching it");
            if let Err(failure) = self.unmount(id, true).await {
                tracing::warn!("{failure}");
            }
        }
    }

    /// Waits until a mount has been asked for. For one waiter.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    async fn closed(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    fn find(&self, id: u64) -> Result<Arc<Hosted>, Failure> {
        let missing = || Failure::new(Kind::NotFound, format!("there is no mount {id} any more"));
        self.table().mounts.get(&id).cloned().ok_or_else(missing)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change under the lock is whole, so a panic elsewhere leaves it usable.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let failed = |e| Failure::new(Kind::Unavailable, format!("the daemon failed: {e}"));
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}
