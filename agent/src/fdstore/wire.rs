//! The messages between an agent and its fd store: one a packet, with the descriptors that belong to it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

/// The version of the protocol, which the agent sends first. Fd store and agent may be of different versions of this program: the
/// newer one speaks as the older does. What is not known is skipped, and never a reason to let mounts go.
pub const VERSION: u32 = 1;
/// The longest message, in bytes.
const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// The most descriptors that come with one: the queues of a mount, its ledger and its request are fewer.
const MAX_DESCRIPTORS: usize = 32;

/// A message.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// The agent's first: its version, how long to hold without an agent, in seconds, and whether it will send heartbeats: more of
    /// these.
    Hello {
        version: u32,
        hold: u64,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        beats: bool,
    },
    /// Store a mount under its id, or a stored one: its request as JSON, and its descriptors.
    Keep { id: u64, note: String },
    /// Remove a mount.
    Forget { id: u64 },
    /// Invalidate this name in the directory with this node id, on the one descriptor that comes along.
    Expire { parent: u64, name: Vec<u8> },
    /// Like [`Expire`](Self::Expire), or with an empty name the pages of the file with this node id; answered by
    /// [`Invalidated`](Self::Invalidated) when it is done.
    Invalidate { id: u64, node: u64, name: Vec<u8> },
    /// The kernel has done the invalidation `id`.
    Invalidated { id: u64 },
    /// Send all that is stored: a [`Keep`](Self::Keep) for each mount, and then [`Done`](Self::Done).
    Give,
    /// All was sent.
    Done,
    /// The answer to a message that is not known; nothing was done. It is also what such a message is received as.
    Unknown,
}

/// Sends a message.
pub fn send(socket: BorrowedFd<'_>, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::NOSIGNAL)
}

/// Sends a message without descriptors, if that needs no wait; else it fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
pub fn try_send(socket: BorrowedFd<'_>, message: &Message) -> io::Result<()> {
    send_with(socket, message, &[], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    message: &Message,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long for the fd store"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives the next message, with its descriptors; `None`: the other side has ended.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    receive_with(socket, RecvFlags::empty())
}

/// Receives the next message if there is one; else fails with [`WouldBlock`](io::ErrorKind::WouldBlock).
pub fn try_receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    receive_with(socket, RecvFlags::DONTWAIT)
}

fn receive_with(socket: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let received =
        match rustix::net::recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC | flags) {
            Ok(received) => received,
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was truncated"));
    }
    Ok(Some((decode(&bytes[..received.bytes]), descriptors)))
}

/// The message that was sent as these bytes.
pub fn decode(bytes: &[u8]) -> Message {
    serde_json::from_slice(bytes).unwrap_or(Message::Unknown)
}

/// Whether a process of this user, or of root, is at the other end.
pub fn is_trusted(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    peer(socket).is_ok_and(|peer| peer.uid == 0 || peer.uid == own)
}

/// The process at the other end. In another PID namespace, as in another container, its process id is 0,
/// which rustix's type can't hold.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is as long as `len` says, any bytes make a ucred, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if failed == 0 { Ok(peer) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("sockets")
    }

    #[test]
    fn message_with_descriptors_arrives_whole() {
        let (ours, theirs) = pair();
        assert!(is_trusted(ours.as_fd()));
        let note = "n".repeat(MAX_MESSAGE_BYTES / 2);
        let descriptors = [ours.as_fd(), theirs.as_fd(), ours.as_fd()];
        send(ours.as_fd(), &Message::Keep { id: 7, note: note.clone() }, &descriptors).expect("sent");
        send(ours.as_fd(), &Message::Done, &[]).expect("sent");
        let (message, descriptors) = receive(theirs.as_fd()).expect("received").expect("a message");
        assert!(matches!(message, Message::Keep { id: 7, note: arrived } if arrived == note));
        assert_eq!(descriptors.len(), 3);
        // One descriptor is our own end, which would never be closed.
        drop(descriptors);
        let (message, descriptors) = receive(theirs.as_fd()).expect("received").expect("a message");
        assert!(matches!(message, Message::Done) && descriptors.is_empty());
        drop(ours);
        assert!(receive(theirs.as_fd()).expect("an end").is_none());
    }

    #[test]
    fn message_too_long_is_refused() {
        let (ours, _theirs) = pair();
        send(ours.as_fd(), &Message::Keep { id: 7, note: "n".repeat(MAX_MESSAGE_BYTES) }, &[])
            .expect_err("too long");
        send(ours.as_fd(), &Message::Done, &[ours.as_fd(); MAX_DESCRIPTORS + 1]).expect_err("too many");
    }

    #[test]
    fn message_of_unknown_form_is_received_as_unknown() {
        let (ours, theirs) = pair();
        for bytes in [&b"{"[..], b"{\"Keep\":{}}", b"[1]", b"{\"Sing\":{\"id\":7}}"] {
            rustix::net::send(&ours, bytes, SendFlags::empty()).expect("sent");
            let (message, _) = receive(theirs.as_fd()).expect("received").expect("a message");
            assert!(matches!(message, Message::Unknown));
        }
    }
}
