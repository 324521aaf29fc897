//! The fd store's invalidator: does what the agent would wait for in the kernel, and acknowledges it.

use std::os::fd::{AsFd, OwnedFd};

use bdnfs::error::Result;
use bdnfs_fs::handover;
use crossbeam::channel::{self, Sender};

use super::wire::{self, Message};
use crate::context::Context;

/// The number of invalidations that may wait. While so many do, nothing more is received from the agent.
const INVALIDATION_QUEUE_LEN: usize = 1024;

/// A directory entry that the kernel is to look up again; or a file whose pages it is to read again, with an empty name.
pub struct Invalidation {
    /// A descriptor of the mount.
    pub device: OwnedFd,
    /// The node id of the directory, or of the file.
    pub node: u64,
    /// The name of the entry.
    pub name: Vec<u8>,
    /// The link to the agent, where it waits for this one, and the id that it knows it by.
    pub acknowledge: Option<(OwnedFd, u64)>,
}

impl Invalidation {
    /// Does it, which may take long, and acknowledges it.
    pub fn perform(self) {
        handover::invalidate_dentry(self.device, self.node, &self.name);
        if let Some((agent, id)) = self.acknowledge {
            // An error means that the agent has ended: the next one invalidates again what was not acknowledged.
            let _ = wire::send(agent.as_fd(), &Message::Invalidated { id }, &[]);
        }
    }
}

/// Starts the thread that invalidates: it may have to wait for an agent's answers.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk) where the kernel has no thread for it.
pub fn start() -> Result<Sender<Invalidation>> {
    let (invalidations, queue) = channel::bounded::<Invalidation>(INVALIDATION_QUEUE_LEN);
    let invalidate = move || queue.iter().for_each(Invalidation::perform);
    let thread = std::thread::Builder::new().name("invalidator".to_owned());
    thread.spawn(invalidate).context("cannot start a thread")?;
    Ok(invalidations)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn fdstore_acknowledges_an_invalidation_when_it_is_done() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("sockets");
        // The kernel is asked on a device, which a pipe stands in for.
        let (asked, device) = rustix::pipe::pipe().expect("a pipe");
        let acknowledge = Some((ours, 5));
        let invalidation = Invalidation { device, node: 7, name: Vec::new(), acknowledge };
        assert!(wire::try_receive(theirs.as_fd()).is_err(), "it is not done");
        invalidation.perform();
        assert!(rustix::io::read(&asked, &mut [0; 64]).expect("written") > 0);
        let (answer, _) = wire::receive(theirs.as_fd()).expect("received").expect("an answer");
        assert!(matches!(answer, Message::Invalidated { id: 5 }), "{answer:?}");
    }
}
