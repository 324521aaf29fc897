//! Handover: the descriptors that keep a mount alive when the process that serves it ends.
//!
//! Another process (the fd store) holds duplicates of them. Requests then wait until the next process takes them up, or until
//! the last duplicate is closed, which ends the mount.

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::{io, iter};

use crate::device::Device;

/// An invalidation under way. Whether it was done; else it has to be done here.
pub type StartedInvalidation = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Invalidates what the kernel caches, from another process than the one that serves the mount.
///
/// An invalidation may wait for requests on the directory or the file that are under way. A process that waits so can't end,
/// not even when it is killed, while those requests wait for it alone: another process is not in the way of the next server.
pub trait DentryInvalidator: Debug + Send + Sync {
    /// Starts to invalidate `name` in the directory with the node id `node` on `device`, or with an empty name the
    /// pages of the file `node`. `None`: it has to be done here. Blocks on the other process.
    fn invalidate(
        self: Arc<Self>,
        device: BorrowedFd<'_>,
        node: u64,
        name: &[u8],
    ) -> Option<StartedInvalidation>;
}

/// Invalidates one directory entry on `device`, or the pages of a file where the name is empty. It may wait for long, see
/// [`DentryInvalidator`].
pub fn invalidate_dentry(device: OwnedFd, node: u64, name: &[u8]) {
    // An error means that the kernel doesn't know it, or has let the mount go: there is nothing to invalidate.
    let _ = Device::from(device).invalidate(node, name);
}

/// All descriptors of a mount: every queue that requests are read from, since closing the last descriptor of a queue fails
/// the requests that were read from it; and the ledger of open files.
#[derive(Debug)]
pub struct MountDescriptors {
    pub(crate) ledger: OwnedFd,
    pub(crate) queues: Vec<OwnedFd>,
}

impl MountDescriptors {
    /// The descriptors that [`iter`](Self::iter) gave, in another process and in the same order; `None` when some are missing.
    pub fn new(descriptors: impl IntoIterator<Item = OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let ledger = descriptors.next()?;
        let queues: Vec<_> = descriptors.collect();
        (!queues.is_empty()).then_some(Self { ledger, queues })
    }

    /// All descriptors.
    pub fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        iter::once(self.ledger.as_fd()).chain(self.queues.iter().map(AsFd::as_fd))
    }

    /// The device: `poll` reports an error of it (`POLLERR`) once the mount has ended.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.queues[0].as_fd()
    }

    /// Makes the kernel queue the requests of a server that has ended again. They wait for the next server
    /// all the same, but their callers can be killed.
    ///
    /// # Errors
    /// When the mount has ended.
    pub fn requeue_requests(&self) -> io::Result<()> {
        let device = Device::from(self.device().try_clone_to_owned()?);
        Ok(device.resend()?)
    }
}
