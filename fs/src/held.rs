//! What keeps a mount alive when the process that serves it ends: duplicates of its descriptors, in the hands of somebody
//! who lives on. Requests then wait until the next process takes them up, or until the last duplicate is closed, which is
//! the end of the mount.

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{io, iter};

use crate::device::Device;

/// Tells the kernel to look names up anew, in another process than the one that serves the mount. That may have to wait for
/// requests on the directory that are under way; and a process that waits so can't end, not even killed, while those requests
/// wait for nobody but it. Whoever does it in its place is not in the way of the next process.
pub trait Expire: Debug + Send + Sync {
    /// Has it done for `name` in the directory with the node id `parent`, on `device`. False: it has to be done here.
    fn expire(&self, device: BorrowedFd<'_>, parent: u64, name: &[u8]) -> bool;
}

/// Does what [`Expire`] is for. It may wait for long, see there.
pub fn expire(device: OwnedFd, parent: u64, name: &[u8]) {
    // An error means that the kernel doesn't know the name, or has let the mount go: nothing is left to tell.
    let _ = Device::from(device).forget_name(parent, name);
}

/// All descriptors of a mount: every queue that requests are taken from, since a queue whose last descriptor is closed fails
/// what was taken from it; and the ledger of what is open.
#[derive(Debug)]
pub struct Held {
    pub(crate) ledger: OwnedFd,
    pub(crate) queues: Vec<OwnedFd>,
}

impl Held {
    /// What [`descriptors`](Self::descriptors) gave, elsewhere and in that order; `None` when that can't be.
    pub fn new(descriptors: impl IntoIterator<Item = OwnedFd>) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let ledger = descriptors.next()?;
        let queues: Vec<_> = descriptors.collect();
        (!queues.is_empty()).then_some(Self { ledger, queues })
    }

    /// All of them.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        iter::once(self.ledger.as_fd()).chain(self.queues.iter().map(AsFd::as_fd))
    }

    /// The device: `poll` tells an error of it (`POLLERR`) once the mount has ended.
    pub fn device(&self) -> BorrowedFd<'_> {
        self.queues[0].as_fd()
    }

    /// Has the kernel take back the requests that nobody will answer because the process that took them has ended. They wait
    /// for the next one all the same, but now their callers can be killed.
    ///
    /// # Errors
    /// When the mount has ended.
    pub fn take_back(&self) -> io::Result<()> {
        let device = Device::from(self.device().try_clone_to_owned()?);
        Ok(device.resend()?)
    }
}
