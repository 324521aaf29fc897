//! Bases: a node's one mount of a tenant's snapshot with an owner, for all its publications.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bdnfs::digest::Digest;
use bdnfs::error::Result;
use bdnfs::source::AuthMethod;
use bdnfs::task::blocking;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::api::publication::PublicationProgress;
use crate::api::{ApiResult, Failure, MountRequest, StageState};
use crate::context::Context;
use crate::deploy::{AdmissionQueue, await_count, stage_all};
use crate::mounts::{ManagedMount, MountManager, ResolvedSnapshot};
use crate::text;

/// The fault of a publication whose base is not mounted any more.
pub const ENDED_MOUNT_FAULT: &str = "its mount has ended: restart the containers that have it";

/// The key of a base: the snapshot that it shows, the owner of its files, and the identity that it is read by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseKey {
    /// The tenant.
    pub tenant: String,
    /// The snapshot, as it is shown.
    pub snapshot: Digest,
    /// Owner of all files.
    pub uid: Option<u32>,
    /// Group of all files.
    pub gid: Option<u32>,
    /// The identity that tokens of pods are exchanged for: only those of its own pods can renew its keys.
    pub identity: Option<AuthMethod>,
    /// Whether it is read by what pods, containers or jobs gave only: none of their secrets is to replace an administrator's.
    pub explicit_only: bool,
}

/// A base: the one mount of a snapshot that publications bind.
#[derive(Debug)]
pub struct Base {
    key: BaseKey,
    path: PathBuf,
    mount: OnceCell<Arc<ManagedMount>>,
    staged: OnceCell<()>,
    /// When staging began.
    staging_since: OnceLock<Instant>,
    /// The number of publications that have it. It is changed while the table of bases is locked.
    users: AtomicUsize,
    /// Whether none joins it any more, since somebody else has unmounted it: it is there for those that have it.
    superseded: AtomicBool,
}

/// The bases of an agent.
#[derive(Debug)]
pub struct Bases {
    directory: PathBuf,
    mounts: Arc<MountManager>,
    admission: Arc<AdmissionQueue>,
    table: Mutex<Vec<Arc<Base>>>,
    /// The directory that was made last. None is made twice: an ended mount at the same path may have the device number that the
    /// kernel gives to the new one.
    last_number: AtomicU64,
}

impl BaseKey {
    /// The key of the base for `request`, which shows `snapshot` to `tenant`.
    pub fn new(tenant: String, snapshot: Digest, request: &MountRequest) -> Self {
        let access = &request.weights.access;
        let identity = access.auth.clone().filter(|auth| auth.token().is_some());
        let explicit_only = access.explicit_only;
        Self { tenant, snapshot, uid: request.uid, gid: request.gid, identity, explicit_only }
    }
}

impl Base {
    /// The path at which it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The snapshot that it shows.
    pub fn snapshot(&self) -> Digest {
        self.key.snapshot
    }

    /// Whether its key is `key`.
    pub fn has_key(&self, key: &BaseKey) -> bool {
        self.key == *key
    }

    /// The mount of the base, once it has one.
    pub fn mount(&self) -> Option<&Arc<ManagedMount>> {
        self.mount.get()
    }

    /// Whether all of it was local, verified and leased.
    pub fn is_staged(&self) -> bool {
        self.staged.initialized()
    }

    /// Whether it was mounted, and somebody else has unmounted it, or covers it: its path shows another. Blocks on the kernel.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the mount table can't be read.
    pub fn is_unmounted(&self) -> Result<bool> {
        self.mount().map_or(Ok(false), |mount| Ok(!mount.is_mounted()?))
    }

    /// Describes what is wrong with it, in one line: its mount has ended, or it has lost staged blocks. Needs no disk.
    pub fn fault(&self) -> Option<String> {
        let Some(mount) = self.mount().filter(|mount| !mount.is_detached() && !mount.is_gone()) else {
            return Some(ENDED_MOUNT_FAULT.to_owned());
        };
        if !self.is_staged() {
            return None;
        }
        let stage = mount.snapshot().staged()?;
        let progress = stage.progress();
        match stage.outcome() {
            Some(Err(error)) => Some(format!("data is missing in the cache and cannot be fetched: {error}")),
            None if stage.is_planned() && progress.bytes_done < progress.bytes => {
                let (local, all) = (text::size(progress.bytes_done), text::size(progress.bytes));
                Some(format!("data is missing in the cache and is fetched again: {local} of {all} are local"))
            }
            None | Some(Ok(())) => None,
        }
    }

    /// Fetches again what it has lost, where that failed before.
    pub fn retry_refill(&self) {
        if let Some(mount) = self.mount().filter(|mount| self.is_staged() && !mount.is_detached())
            && matches!(mount.stage_state(), Some(StageState::Failed(_)))
        {
            mount.stage(false);
        }
    }

    /// The staging progress of the base.
    pub fn progress(&self) -> Option<PublicationProgress> {
        let done = self.mount()?.snapshot().staged()?.progress();
        let seconds = self.staging_since.get().map_or(0.0, |since| since.elapsed().as_secs_f64());
        // Bytes that were local before say nothing about the pace of fetches.
        let fetched = done.bytes_done.saturating_sub(done.bytes_found);
        let rate = if seconds > 0.0 { (fetched as f64 / seconds) as u64 } else { 0 };
        let seconds_left = done.bytes.saturating_sub(done.bytes_done).div_ceil(rate.max(1));
        Some(PublicationProgress {
            files: done.files,
            bytes_done: done.bytes_done,
            bytes: done.bytes,
            rate,
            seconds_left: (rate > 0 && !self.is_staged()).then_some(seconds_left),
        })
    }
}

impl Bases {
    /// No bases yet; each will be a directory in `directory`, which is made. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn open(directory: &Path, mounts: Arc<MountManager>, admission: Arc<AdmissionQueue>) -> Result<Self> {
        let cannot = || format!("cannot keep bases in {}", directory.display());
        DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(cannot)?;
        let directory = directory.canonicalize().with_context(cannot)?;
        Ok(Self { directory, mounts, admission, table: Mutex::default(), last_number: AtomicU64::new(0) })
    }

    /// Whether a mount at `mountpoint` is a base.
    pub fn has(&self, mountpoint: &Path) -> bool {
        mountpoint.parent() == Some(&self.directory)
    }

    /// Whether the base at `path` has users that are known.
    pub fn is_joined(&self, path: &Path) -> bool {
        self.table.lock().iter().any(|base| base.path == path)
    }

    /// The base for `key`, which is there until it is [released](Self::release): another one where that was unmounted by somebody
    /// else. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn join(&self, key: BaseKey) -> Result<Arc<Base>> {
        let known = || joinable(&self.table.lock(), &key).cloned();
        while let Some(base) = known()
            && base.is_unmounted()?
        {
            tracing::warn!("{} was unmounted by somebody else; it is mounted anew", base.path.display());
            base.superseded.store(true, Relaxed);
        }
        if let Some(base) = joinable(&self.table.lock(), &key) {
            return Ok(base.join());
        }
        let path = self.new_directory()?;
        let mut table = self.table.lock();
        if let Some(base) = joinable(&table, &key) {
            // Another call was faster.
            let _ = std::fs::remove_dir(path);
            return Ok(base.join());
        }
        let base = Base::new(key, path);
        table.push(Arc::clone(&base));
        Ok(base.join())
    }

    /// The base of an earlier run with this mount.
    pub fn restore(&self, mount: Arc<ManagedMount>, is_staged: bool) -> Arc<Base> {
        let tenant = mount.request().tenant.clone();
        let tenant = tenant.unwrap_or_else(|| self.mounts.mounter().engine.tenant().to_owned());
        let key = BaseKey::new(tenant, mount.snapshot().tree_id(), mount.request());
        let mut table = self.table.lock();
        let path = mount.mountpoint().to_owned();
        // Several may have one key, where one of them was unmounted by somebody else.
        let base = table.iter().find(|base| base.path == path).cloned().unwrap_or_else(|| {
            let base = Base::new(key, path);
            table.push(Arc::clone(&base));
            base
        });
        base.mount.set(mount).ok();
        if is_staged {
            base.staged.set(()).ok();
        }
        base.join()
    }

    /// An empty directory. The lowest number that is free: one that is used holds a mount.
    fn new_directory(&self) -> Result<PathBuf> {
        let cannot = || format!("cannot make a directory in {}", self.directory.display());
        loop {
            let number = self.last_number.fetch_add(1, Relaxed) + 1;
            let path = self.directory.join(number.to_string());
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|()| path).with_context(cannot),
            }
        }
    }

    /// Mounts a base, unless it is mounted. Not to be dropped half-way.
    pub async fn mount(&self, base: &Base, request: MountRequest, found: ResolvedSnapshot) -> ApiResult<()> {
        let mount = async {
            let id = self.mounts.mount_resolved(request, found).await?.id;
            self.mounts.find(id)
        };
        base.mount.get_or_try_init(|| mount).await.map(drop)
    }

    /// Admits a base to the cache for `name`, and stages it. `note` is told what it waits for.
    pub async fn stage(&self, base: &Base, name: &str, note: impl Fn(String)) -> ApiResult<()> {
        let Some(mount) = base.mount() else { return Err(Failure::closing()) };
        let stage = async {
            let snapshot = Arc::clone(mount.snapshot());
            await_count(|| self.mounts.mounter().engine.is_counted(), &note).await;
            // No job is to wait for space that containers hold: they don't free it soon.
            self.admission.admit_beside_queue(name, &[snapshot], note).await?;
            base.staging_since.get_or_init(Instant::now);
            stage_all(&self.mounts, std::slice::from_ref(mount), |_| ()).await
        };
        base.staged.get_or_try_init(|| stage).await?;
        // It may have lost blocks since, or be looked through after a restart.
        if matches!(mount.stage_state(), Some(StageState::Done)) {
            return Ok(());
        }
        stage_all(&self.mounts, std::slice::from_ref(mount), |_| ()).await
    }

    /// Fetches again what bases have lost, where that failed before.
    pub fn retry_refills(&self) {
        let bases = self.table.lock().clone();
        bases.iter().for_each(|base| base.retry_refill());
    }

    /// Releases a base. The last user unmounts it: with `wait` it is gone when this returns, unless it is in use.
    pub async fn release(&self, base: &Arc<Base>, wait: bool) {
        {
            let mut table = self.table.lock();
            if base.users.fetch_sub(1, Relaxed) > 1 {
                return;
            }
            table.retain(|known| !Arc::ptr_eq(known, base));
        }
        if let Some(mount) = base.mount() {
            let id = mount.id();
            if !(wait && self.mounts.unmount(id, false).await.is_ok())
                && let Err(failure) = self.mounts.unmount(id, true).await
            {
                tracing::warn!("the base {} is still mounted: {failure}", base.path.display());
            }
        }
        let path = base.path.clone();
        let removed = blocking(move || {
            // A directory that is still a mount point stays.
            let _ = std::fs::remove_dir(path);
            Ok(())
        });
        let _ = removed.await;
    }
}

impl Base {
    fn new(key: BaseKey, path: PathBuf) -> Arc<Self> {
        let (mount, staged, staging_since) = (OnceCell::new(), OnceCell::new(), OnceLock::new());
        let (users, superseded) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { key, path, mount, staged, staging_since, users, superseded })
    }

    /// Counts one more user, with the table locked.
    fn join(self: &Arc<Self>) -> Arc<Self> {
        self.users.fetch_add(1, Relaxed);
        Arc::clone(self)
    }
}

/// The base in `table` that a publication with `key` joins.
fn joinable<'a>(table: &'a [Arc<Base>], key: &BaseKey) -> Option<&'a Arc<Base>> {
    table.iter().find(|base| base.key == *key && !base.superseded.load(Relaxed))
}
