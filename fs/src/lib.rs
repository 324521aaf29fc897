//! A bdnfs snapshot as a read-only FUSE file system.
//!
//! [`Mount`] mounts a snapshot and serves it; [`mounts`] lists mounts and their users. A request travels from
//! top to bottom, and its reply back up:
//!
//! ```text
//!   job: read(2)              the kernel reads a whole file by itself (passthrough) ──> the cache's own file
//!      │ kernel
//!   device      /dev/fuse, one queue for each thread
//!      │ bytes
//!   wire        requests decoded, replies encoded; pure
//!      │ Request
//!   session     the handshake, the threads, one panic becomes one EIO
//!      │ RequestContext
//!   ops ──────> tree      names, attributes, listings: from the manifest, at once
//!      │   ├──> files     handles ─ open_table, ledger; or stateless ─ sequence_detector
//!      │   └──> xattr
//!   replies     a read that has to wait is a task; request_table knows its interruption
//!      │ bdnfs::read::Reader
//!   the engine: cache, peers, mirror, origin
//! ```
//!
//! Beside that path: `mountpoint` checks the directory, and `mount` mounts it, with the helper of `fusermount` for users who are
//! not root; [`mount_copy`] copies a mount into another mount namespace; `invalidation` removes names and pages from the kernel's
//! caches; `expiry` lets go of what has been idle for long. A [`native_mount`] is served by the kernel alone, without any of it.
//!
//! A mount outlives the process that serves it where another process holds its descriptors ([`handover`]): the next server
//! finds the open files in the `ledger`, has the requests that were under way sent again, and continues.
//!
//! What the kernel may cache, it caches for ever, since nothing in a snapshot changes: names, attributes, listings and pages.
//! docs/decisions/ says why the protocol is spoken here (`kernel-protocol`) and what passthrough is for (`passthrough`).
//!
//! ```
//! use bdnfs::engine::Engine;
//! use bdnfs::source::{Access, Patterns};
//! use bdnfs::{origin, task};
//! use bdnfs_fs::{Mount, Options};
//! # use std::time::SystemTime;
//! # use bdnfs::{cache::Limits, engine::Config};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! # let (cache, model, mountpoint) = (home.path().join("cache"), home.path().join("model"), home.path().join("mnt"));
//! # std::fs::create_dir(&model)?;
//! # std::fs::create_dir(&mountpoint)?;
//! # std::fs::write(model.join("config.json"), "{}")?;
//! # let limits = Limits { capacity: Some(1 << 30), reserve: 0 };
//! # let (tenant, quotas) = ("default".into(), Default::default());
//! # let config = Config { cache, tenant, limits, quotas, memory: 64 << 20, now: SystemTime::now };
//! let runtime = tokio::runtime::Handle::current();
//! let engine = Engine::open(&config, runtime.clone())?;
//! let origin = origin::open(&format!("file://{}", model.display()).parse()?, &Access::default()).await?;
//! let snapshot = engine.snapshot(origin, Patterns::default()).await?;
//!
//! // The kernel is asked, and this process reads through it: neither may keep an async thread.
//! let read = task::blocking(move || {
//!     let mount = Mount::new(snapshot, runtime, &mountpoint, &Options::default())?;
//!     let read = std::fs::read(mountpoint.join("config.json"));
//!     mount.unmount()?;
//!     Ok::<_, bdnfs::error::Error>(read)
//! });
//! assert_eq!(read.await??, b"{}");
//! # Ok(())
//! # }
//! ```

pub mod handover;
pub mod mount_copy;
pub mod mount_identity;
pub mod mounts;
pub mod native_mount;

mod activity;
mod device;
mod errno;
mod expiry;
mod files;
mod flush;
mod fusermount;
mod idle_cache;
mod invalidation;
mod ledger;
mod metrics;
mod mount;
mod mount_options;
mod mountpoint;
mod open_table;
mod ops;
mod replies;
mod request_table;
mod sequence_detector;
mod session;
mod stalled_requests;
mod tree;
mod wire;
mod xattr;

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bdnfs::cache::pressure::CachePressureListener;
use bdnfs::cache::removal::RemovalListener;
use bdnfs::cache::removal_marks::Removal;
use bdnfs::error::{Error, Result};
use bdnfs::snapshot::Snapshot;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::activity::ActivitySignal;
use crate::device::Device;
use crate::expiry::idle_expiry;
use crate::files::{FileHandles, FileTable, StatelessFiles};
use crate::handover::MountDescriptors;
use crate::invalidation::KernelCache;
use crate::ledger::{Ledger, LedgerEntry, MountFeatures};
use crate::ops::Filesystem;
use crate::replies::PendingReplies;
use crate::stalled_requests::StalledRequests;

pub use crate::metrics::{RequestMetrics, RequestTotals};
pub use crate::mount_options::Options;
#[cfg(feature = "fuzz")]
pub use crate::wire::request::decode_request;

/// A mounted snapshot. When it is dropped, it is detached (a lazy unmount); processes that still use it are served until they
/// are done, or this process ends.
#[derive(Debug)]
pub struct Mount {
    mountpoint: PathBuf,
    /// The device number, which tells it from other mounts at the same place.
    device: (u32, u32),
    filesystem: Arc<Filesystem>,
    ledger: Arc<Ledger>,
    queues: Vec<Arc<Device>>,
    /// Whether the kernel can send requests again to another process.
    resend: bool,
    /// Whether another process mounted it.
    resumed: bool,
    /// The number of threads that still serve it.
    threads: watch::Receiver<usize>,
}

impl Mount {
    /// Mounts `snapshot` at the directory `mountpoint`; it can be used when this returns. Reads that have to wait run on
    /// `runtime`. Blocks on the local disk and the kernel, so it must not be called on an async thread.
    ///
    /// A mount of ours that a crash left dead at `mountpoint` is replaced.
    ///
    /// # Errors
    /// Of the [kinds](bdnfs::error::Kind) `NotFound` for a missing mountpoint, `Invalid` for one that is no directory, `Busy` for
    /// one that has a mount, `Refused` without permission, `Unsupported` without `/dev/fuse` or with a kernel too old.
    pub fn new(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        mountpoint: &Path,
        options: &Options,
    ) -> Result<Self> {
        let mountpoint = mountpoint::prepare(mountpoint)?;
        let device = mount::mount(&mountpoint, snapshot.manifest().source(), options.allow_other)?;
        Self::start(snapshot, runtime, &mountpoint, options, device).inspect_err(|_| {
            let _ = mount::detach(&mountpoint);
        })
    }

    /// Starts to serve a file system that was just mounted.
    fn start(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        mountpoint: &Path,
        options: &Options,
        device: Device,
    ) -> Result<Self> {
        let stateless = FileTable::stateless(&snapshot);
        let session::KernelFeatures { passthrough, resend } = session::handshake(&device, !stateless)?;
        if !stateless && !passthrough {
            tracing::warn!(
                "the kernel has no passthrough (Linux 6.9+): reads of local files go through the agent"
            );
        }
        let ledger = Arc::new(Ledger::new(MountFeatures { passthrough, stateless })?);
        let queues = session::queues(Arc::new(device), options.threads);
        let filesystem = filesystem(snapshot, runtime, options, &queues[0], &ledger, &[]);
        let threads = session::start(&filesystem, &queues, options.threads)?;
        if stateless {
            // Before another process holds descriptors: until then, the mount ends with this process.
            flush::disable_flush(mountpoint, filesystem.snapshot.manifest());
        }
        let device = mount::device_number(mountpoint)?;
        ledger.set_device(device);
        mount::set_read_ahead(device);
        Ok(Self {
            mountpoint: mountpoint.into(),
            device,
            filesystem,
            ledger,
            queues,
            resend,
            resumed: false,
            threads,
        })
    }

    /// Continues to serve what another process mounted at `mountpoint`, with the same snapshot and options. Its users notice
    /// nothing. The other process must have ended, or have [handed over](Self::hand_over) the mount.
    ///
    /// # Errors
    /// [`Kind::Unsupported`](bdnfs::error::Kind::Unsupported) when the mount was made by an incompatible version of bdnfs. It stays
    /// as it was.
    pub fn resume(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        mountpoint: &Path,
        options: &Options,
        descriptors: MountDescriptors,
    ) -> Result<Self> {
        let MountDescriptors { ledger, queues } = descriptors;
        let (ledger, entries) = Ledger::open(ledger)?;
        let ledger = Arc::new(ledger);
        let queues: Vec<_> = queues.into_iter().map(|fd| Arc::new(Device::from(fd))).collect();
        let filesystem = filesystem(snapshot, runtime, options, &queues[0], &ledger, &entries);
        // Before the first request is read here: none that this process has read may come a second time. An error means that
        // the mount has gone, which the threads will notice.
        let _ = queues[0].resend();
        let threads = session::start(&filesystem, &queues, options.threads)?;
        let device = ledger.device();
        let mountpoint = mountpoint.into();
        Ok(Self { mountpoint, device, filesystem, ledger, queues, resend: true, resumed: true, threads })
    }

    /// Duplicates of the descriptors, for another process that keeps the mount alive without this one; `None` where the
    /// kernel can't send requests again (Linux before 6.9).
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the process has too many open files.
    pub fn descriptors(&self) -> Result<Option<MountDescriptors>> {
        if !self.resend {
            return Ok(None);
        }
        let fault = |e| Error::disk("cannot duplicate a descriptor", e);
        let ledger = self.ledger.memory().as_fd().try_clone_to_owned().map_err(fault)?;
        let queues = self.queues.iter().map(|queue| queue.as_fd().try_clone_to_owned());
        Ok(Some(MountDescriptors { ledger, queues: queues.collect::<std::io::Result<_>>().map_err(fault)? }))
    }

    /// Hands the mount over to the next process: this one serves no more requests, and does not unmount. Requests that are
    /// pending when it ends go to the next one. There is no way back.
    pub fn hand_over(&self) {
        self.filesystem.replies.hand_over();
        // Backing files must stay registered with the kernel.
        std::mem::forget(Arc::clone(&self.filesystem));
    }

    /// Whether another process mounted it, and this one [resumed](Self::resume) it.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Whether the mount was [handed over](Self::hand_over).
    pub fn is_handed_over(&self) -> bool {
        self.filesystem.replies.is_handed_over()
    }

    /// Unmounts it. It is no error if the mount is gone already.
    ///
    /// # Errors
    /// [`Kind::Busy`](bdnfs::error::Kind::Busy) when processes use it; [`mounts::users`] tells which. The mount stays.
    pub fn unmount(&self) -> Result<()> {
        if self.is_mounted()? { mount::unmount(&self.mountpoint) } else { Ok(()) }
    }

    /// Waits until the mount has ended, however that came about.
    pub async fn await_end(&self) {
        // An error means that all threads have ended.
        let _ = self.threads.clone().wait_for(|running| *running == 0).await;
    }

    /// The mount point, as a full path.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the kernel reads whole files by itself.
    pub fn passthrough(&self) -> bool {
        self.filesystem.files.passthrough()
    }

    /// Whether the mount would use passthrough, but the kernel or the privileges don't allow it. Stateless
    /// mounts do without by choice.
    pub fn lacks_passthrough(&self) -> bool {
        self.filesystem.files.lacks_passthrough()
    }

    /// Whether the mount point still shows this mount.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the mount table can't be read.
    pub fn is_mounted(&self) -> Result<bool> {
        Ok(mounts::at(&self.mountpoint)?.is_some_and(|mounted| mounted.device == self.device))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_handed_over() {
            return;
        }
        let detached = match self.is_mounted() {
            Ok(true) => mount::detach(&self.mountpoint),
            other => other.map(|_| ()),
        };
        if let Err(error) = detached {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "cannot unmount");
        }
    }
}

/// The file system of `snapshot` with the ledger's features, and with the ledger's `entries` as open files.
fn filesystem(
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    options: &Options,
    device: &Arc<Device>,
    ledger: &Arc<Ledger>,
    entries: &[LedgerEntry],
) -> Arc<Filesystem> {
    let features = ledger.features();
    let kernel = KernelCache::new(runtime.clone(), device.clone(), options.invalidator.clone());
    let files = if features.stateless {
        FileTable::Stateless(StatelessFiles::new(snapshot.clone(), runtime.clone(), kernel))
    } else {
        let (device, ledger, runtime) = (device.clone(), ledger.clone(), runtime.clone());
        let (snapshot, passthrough) = (snapshot.clone(), features.passthrough);
        let handles =
            FileHandles::new(snapshot, runtime, device, passthrough, options.steady, ledger, kernel);
        handles.restore(entries);
        FileTable::Handles(handles)
    };
    let (replies, metrics) = (PendingReplies::new(runtime.clone()), options.metrics.clone());
    let (control, (activity, wake_signal)) = (options.control.clone(), ActivitySignal::new());
    let filesystem = Arc::new_cyclic(|itself| Filesystem {
        itself: itself.clone(),
        runtime: runtime.clone(),
        snapshot,
        owner: options.owner(),
        control,
        steady: options.steady,
        files,
        replies,
        metrics,
        activity,
        late: StalledRequests::default(),
    });
    runtime.spawn(idle_expiry(Arc::downgrade(&filesystem), wake_signal));
    // Backing files of the previous process may be idle already.
    filesystem.activity.record();
    let listener: Weak<Filesystem> = Arc::downgrade(&filesystem);
    filesystem.snapshot.on_cache_pressure(listener);
    let listener: Weak<Filesystem> = Arc::downgrade(&filesystem);
    filesystem.snapshot.on_removal(listener);
    filesystem
}

impl CachePressureListener for Filesystem {
    fn release_idle(&self) {
        self.files.expire(Instant::now() + open_table::BACKING_IDLE_TIMEOUT);
    }
}

impl RemovalListener for Filesystem {
    fn blob_removed(&self, removal: &Removal, _: Option<&File>) {
        let key = removal.key();
        let files = match self.snapshot.files_of(key) {
            Ok(files) => files,
            Err(error) => {
                removal.leave_mark();
                return tracing::error!(%key, %error, "cannot tell which files to read anew: unmount and mount again");
            }
        };
        let Some(filesystem) = self.itself.upgrade().filter(|_| !files.is_empty()) else { return };
        tracing::warn!(%key, files = files.len(), "damaged data is read anew");
        self.snapshot.stage_again();
        let (removal, invalidation) = (removal.clone(), removal.begin_invalidation());
        self.runtime.spawn(async move {
            for index in files {
                filesystem.files.renew(index).await;
            }
            drop((invalidation, removal));
        });
    }
}
