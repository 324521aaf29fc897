//! A bdnfs snapshot as a read-only FUSE file system.
//!
//! [`Mount`] is all there is to it; [`mounts`] tells which mounts there are and who holds them. Beneath lie,
//! from the kernel inwards: `wire`, the protocol, pure; `device`, `/dev/fuse`; `session`, the threads that
//! take requests; `ops`, their answers, from `tree` (names and attributes), `files` (opens and reads) and
//! `xattr`; `later`, the answers that have to wait for the network.
//!
//! A mount outlives the process that serves it where somebody else holds its descriptors ([`held`]): the next process finds
//! what is open in the `ledger`, has what was asked meanwhile sent again, and goes on.
//!
//! What the kernel can be told once, it is told once: nothing in a snapshot ever changes, so names,
//! attributes, listings and pages are cached for ever. What is whole on the local disk, the kernel reads from
//! there by itself (*passthrough*), where it can and may.

pub mod held;
pub mod mounts;

mod ahead;
mod device;
mod errno;
mod files;
mod fusermount;
mod idle;
mod later;
mod ledger;
mod mount;
mod mountpoint;
mod opens;
mod ops;
mod pending;
mod served;
mod session;
mod tidy;
mod tree;
mod wire;
mod xattr;

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bdnfs::cache::relief::Relief;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::snapshot::Snapshot;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::process::{getgid, getuid};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::device::Device;
use crate::files::{Files, Opened, Unopened};
use crate::held::{Expire, Held};
use crate::later::Later;
use crate::ledger::{Entry, Ledger, Terms};
use crate::ops::Filesystem;
use crate::tidy::{Stir, tidy};
use crate::tree::Owner;

pub use crate::served::{Counted, Served};

/// The fewest threads that take requests: with one, opens are a third slower, and one slow disk read stops
/// everybody.
const THREADS: usize = 2;
/// How far the kernel reads ahead, in KiB: four requests, so that the network has work while a reader uses
/// what came.
const READ_AHEAD: u32 = 4096;

/// How a snapshot is mounted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Let other users than the mounting one use the mount.
    pub allow_other: bool,
    /// Whom all files belong to; the mounting user by default.
    pub uid: Option<u32>,
    /// Which group all files belong to; the mounting user's by default.
    pub gid: Option<u32>,
    /// How many threads take requests; at least two.
    pub threads: usize,
    /// Shown as the root's extended attribute `user.bdnfs.control`: where the daemon can be spoken to.
    pub control: Option<PathBuf>,
    /// What counts the requests.
    pub served: Arc<Served>,
    /// Who tells the kernel to look a name up anew; this process, where nobody else does.
    pub expire: Option<Arc<dyn Expire>>,
}

/// A mounted snapshot. When it is dropped, its mount is taken out of the tree; processes that still use it
/// are served until they are done, or this process ends.
#[derive(Debug)]
pub struct Mount {
    mountpoint: PathBuf,
    /// Its device number, by which it is known from whatever else may be mounted at the same place.
    device: (u32, u32),
    filesystem: Arc<Filesystem>,
    ledger: Arc<Ledger>,
    queues: Vec<Arc<Device>>,
    /// Whether the kernel lets another process go on.
    resend: bool,
    /// Whether another process made it.
    resumed: bool,
    /// How many threads still take requests.
    threads: watch::Receiver<usize>,
}

impl Mount {
    /// Mounts `snapshot` at the directory `mountpoint`; it can be used when this returns. Reads that have to
    /// wait run on `runtime`. Blocks on the local disk and the kernel, so it is not for an async thread.
    ///
    /// A mount of ours that a crash left dead at `mountpoint` is replaced.
    ///
    /// # Errors
    /// One line for a person: [`Kind::NotFound`] for a missing mountpoint, [`Kind::Invalid`] for one that is
    /// no directory, [`Kind::Busy`] for one that has a mount, [`Kind::Refused`] without permission,
    /// [`Kind::Unsupported`] without `/dev/fuse` or with a kernel too old.
    pub fn new(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        mountpoint: &Path,
        options: &Options,
    ) -> Result<Self> {
        let mountpoint = mountpoint::ready(mountpoint)?;
        let device = mount::mount(&mountpoint, snapshot.manifest().source(), options.allow_other)?;
        Self::start(snapshot, runtime, &mountpoint, options, device).inspect_err(|_| {
            let _ = mount::detach(&mountpoint);
        })
    }

    /// Begins to serve what is mounted already.
    fn start(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        mountpoint: &Path,
        options: &Options,
        device: Device,
    ) -> Result<Self> {
        let unopened = Files::small(&snapshot);
        let session::Agreed { passthrough, resend } = session::agree(&device, !unopened)?;
        if !unopened && !passthrough {
            tracing::warn!("the kernel offers no passthrough: reads of local files go by the daemon");
        }
        let ledger = Arc::new(Ledger::new(Terms { passthrough, unopened })?);
        let queues = session::queues(Arc::new(device), options.threads.max(THREADS));
        let filesystem = filesystem(snapshot, runtime, options, &queues[0], &ledger, &[]);
        let threads = session::start(&filesystem, &queues, options.threads.max(THREADS))?;
        let device = device_of(mountpoint)?;
        ledger.set_device(device);
        read_ahead(device);
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

    /// Goes on serving what another process mounted at `mountpoint`, with the same snapshot and options: who uses it notices
    /// nothing. That process must have ended, or have [left](Self::leave) the mount.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when that was another version of this program that did it otherwise. The mount is as before.
    pub fn resume(
        snapshot: Arc<Snapshot>,
        runtime: Handle,
        mountpoint: &Path,
        options: &Options,
        held: Held,
    ) -> Result<Self> {
        let Held { ledger, queues } = held;
        let (ledger, entries) = Ledger::open(ledger)?;
        let ledger = Arc::new(ledger);
        let queues: Vec<_> = queues.into_iter().map(|fd| Arc::new(Device::from(fd))).collect();
        let filesystem = filesystem(snapshot, runtime, options, &queues[0], &ledger, &entries);
        // Before the first request is taken here: what this process has under way must not come a second time. An error
        // means that the mount has gone, which the threads will find.
        let _ = queues[0].resend();
        let threads = session::start(&filesystem, &queues, options.threads.max(THREADS))?;
        let device = ledger.device();
        let mountpoint = mountpoint.into();
        Ok(Self { mountpoint, device, filesystem, ledger, queues, resend: true, resumed: true, threads })
    }

    /// What keeps the mount alive without this process, for whoever is to keep it; `None` where the kernel can't go on with
    /// another process (Linux before 6.9).
    ///
    /// # Errors
    /// [`Kind::Disk`] without free descriptors.
    pub fn hold(&self) -> Result<Option<Held>> {
        if !self.resend {
            return Ok(None);
        }
        let fault = |e| Error::disk("cannot duplicate a descriptor", e);
        let ledger = self.ledger.as_fd().try_clone_to_owned().map_err(fault)?;
        let queues = self.queues.iter().map(|queue| queue.as_fd().try_clone_to_owned());
        Ok(Some(Held { ledger, queues: queues.collect::<std::io::Result<_>>().map_err(fault)? }))
    }

    /// Leaves the mount to whoever holds it: takes no more requests, and does not unmount. What is under way and has no
    /// answer when this process ends, the next one gets. There is no way back.
    pub fn leave(&self) {
        self.filesystem.later.leave();
        // What is registered with the kernel must stay so.
        std::mem::forget(Arc::clone(&self.filesystem));
    }

    /// Whether another process made it, and this one [resumed](Self::resume) it.
    pub fn was_resumed(&self) -> bool {
        self.resumed
    }

    /// Whether it was left.
    pub fn has_left(&self) -> bool {
        self.filesystem.later.has_left()
    }

    /// Unmounts. It is no error if the mount is gone already.
    ///
    /// # Errors
    /// [`Kind::Busy`] when processes use it; [`mounts::holders`] tells which. The mount stays.
    pub fn unmount(&self) -> Result<()> {
        if self.mounted()? { mount::unmount(&self.mountpoint) } else { Ok(()) }
    }

    /// Waits until the kernel has let the mount go, however that came about.
    pub async fn ended(&self) {
        // An error means that the counters are gone, and so the threads.
        let _ = self.threads.clone().wait_for(|left| *left == 0).await;
    }

    /// Where it is mounted: the full path.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether the kernel reads whole files by itself.
    pub fn passthrough(&self) -> bool {
        self.filesystem.files.passthrough()
    }

    /// Whether it would, but the kernel or the privileges don't allow it. Trees of small files do without by choice.
    pub fn lacks_passthrough(&self) -> bool {
        self.filesystem.files.lack_passthrough()
    }

    /// Whether it still is what is mounted at its mountpoint.
    fn mounted(&self) -> Result<bool> {
        Ok(mounts::at(&self.mountpoint)?.is_some_and(|mounted| mounted.device == self.device))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.has_left() {
            return;
        }
        let detached = match self.mounted() {
            Ok(true) => mount::detach(&self.mountpoint),
            other => other.map(|_| ()),
        };
        if let Err(error) = detached {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "a mount is left behind");
        }
    }
}

/// The file system of `snapshot` by the ledger's terms, with what stands in it as `entries` open.
fn filesystem(
    snapshot: Arc<Snapshot>,
    runtime: Handle,
    options: &Options,
    device: &Arc<Device>,
    ledger: &Arc<Ledger>,
    entries: &[Entry],
) -> Arc<Filesystem> {
    let terms = ledger.terms();
    let files = if terms.unopened {
        Files::Unopened(Unopened::new(snapshot.clone(), runtime.clone()))
    } else {
        let (device, ledger) = (device.clone(), ledger.clone());
        let (runtime, expire) = (runtime.clone(), options.expire.clone());
        let opened = Opened::new(snapshot.clone(), runtime, device, terms.passthrough, ledger, expire);
        opened.inherit(entries);
        Files::Opened(opened)
    };
    let owner = Owner {
        uid: options.uid.unwrap_or_else(|| getuid().as_raw()),
        gid: options.gid.unwrap_or_else(|| getgid().as_raw()),
    };
    let (later, served) = (Later::new(runtime.clone()), options.served.clone());
    let (control, (stir, stirred)) = (options.control.clone(), Stir::new());
    let filesystem = Arc::new(Filesystem { snapshot, owner, control, files, later, served, stir });
    runtime.spawn(tidy(Arc::downgrade(&filesystem), stirred));
    // What another process had registered may be idle already.
    filesystem.stir.note();
    let relief: Weak<Filesystem> = Arc::downgrade(&filesystem);
    filesystem.snapshot.relieve_with(relief);
    filesystem
}

impl Relief for Filesystem {
    fn relieve(&self) {
        self.files.expire(Instant::now() + opens::IDLE_TIME);
    }
}

/// The device number of the mount at `mountpoint`. It is asked for without a request to this process itself: killed while it
/// waits for its own answer, it could never end.
fn device_of(mountpoint: &Path) -> Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let root = rustix::fs::statx(CWD, mountpoint, flags, StatxFlags::empty())
        .map_err(|e| Error::with(Kind::Disk, "the new mount can't be looked at", std::io::Error::from(e)))?;
    Ok((root.stx_dev_major, root.stx_dev_minor))
}

/// Makes the kernel read further ahead on `device` than it does of its own accord, where it lets us.
fn read_ahead((major, minor): (u32, u32)) {
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&knob, READ_AHEAD.to_string()) {
        tracing::debug!(%error, knob, "the kernel's readahead stays as it is");
    }
}
