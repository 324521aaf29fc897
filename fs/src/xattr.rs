//! Extended attributes of files.
//!
//! - `user.bdnfs.digest`: the digest of a file's content, where it is known; on the root, the snapshot's id.
//! - `user.bdnfs.source`: the source, and the path below it.
//! - `user.bdnfs.local`: how much of a file, or on the root of all files, is local: `local/all`, in bytes.
//! - `user.bdnfs.control`: on the root, the path of the agent's control socket.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Weak};

use bdnfs::manifest::Node;
use bdnfs::snapshot::Snapshot;
use rustix::io::Errno;

use crate::ops::{Filesystem, failed};
use crate::replies::Reply;
use crate::replies::RequestContext;
use crate::wire::abi::XattrSize;

const XATTR_DIGEST: &[u8] = b"user.bdnfs.digest";
const XATTR_SOURCE: &[u8] = b"user.bdnfs.source";
const XATTR_LOCAL: &[u8] = b"user.bdnfs.local";
const XATTR_CONTROL: &[u8] = b"user.bdnfs.control";
/// The entry of the root.
const ROOT: u32 = 0;
/// The length of the longest `user.bdnfs.local`: two numbers of 64 bits and a slash.
const MAX_LOCAL_LENGTH: usize = 41;

impl Filesystem {
    /// The attribute `name` of entry `index`, of at most `size` bytes.
    pub(crate) fn getxattr(
        &self,
        context: &RequestContext,
        index: u32,
        name: &[u8],
        size: u32,
    ) -> Result<Reply, Errno> {
        if name == XATTR_LOCAL && index == ROOT {
            return self.local(context, size);
        }
        let read = || sized(self.attribute(index, name)?.ok_or(Errno::NODATA)?, size);
        self.in_time(context, read, |_, _| Err(Errno::TIMEDOUT)).unwrap_or(Ok(Reply::Nothing))
    }

    /// The names of the attributes of entry `index`, each with a zero byte, of at most `size` bytes.
    pub(crate) fn listxattr(&self, context: &RequestContext, index: u32, size: u32) -> Result<Reply, Errno> {
        let list = || self.attribute_names(index, size);
        self.in_time(context, list, |_, _| Err(Errno::TIMEDOUT)).unwrap_or(Ok(Reply::Nothing))
    }

    fn attribute_names(&self, index: u32, size: u32) -> Result<Reply, Errno> {
        let mut names = Vec::new();
        for name in [XATTR_DIGEST, XATTR_SOURCE, XATTR_LOCAL, XATTR_CONTROL] {
            if (name == XATTR_LOCAL && index == ROOT) || self.attribute(index, name)?.is_some() {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        sized(names, size)
    }

    /// The attribute `name` of entry `index`, if the entry has it and it is known at once.
    fn attribute(&self, index: u32, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let failed = |error| failed(&self.snapshot, index, &error);
        Ok(match (self.entry(index)?.node, name) {
            // Linux has no user attributes on symbolic links.
            (Node::Symlink(_), _) => None,
            (_, XATTR_SOURCE) => Some(self.manifest().origin_path(index).map_err(failed)?),
            (_, XATTR_DIGEST) if index == ROOT => Some(self.snapshot.id().to_string().into()),
            (_, XATTR_CONTROL) if index == ROOT => {
                self.control.as_ref().map(|path| path.as_os_str().as_bytes().into())
            }
            (Node::File(slice), XATTR_DIGEST) => {
                self.snapshot.digest(slice).map_err(failed)?.map(|digest| digest.to_string().into())
            }
            (Node::File(slice), XATTR_LOCAL) => {
                Some(share(self.snapshot.local_bytes(slice).map_err(failed)?, slice.len))
            }
            _ => None,
        })
    }

    /// Replies with the part of all files that is local. That takes a look at each of them, so it is answered later; and the size
    /// is told without it, as that of the longest, since the value may grow before it is asked for.
    fn local(&self, context: &RequestContext, size: u32) -> Result<Reply, Errno> {
        if size == 0 {
            return sized(vec![0; MAX_LOCAL_LENGTH], 0);
        }
        let wanted = Arc::new(());
        let (snapshot, watched) = (self.snapshot.clone(), Arc::downgrade(&wanted));
        self.replies.spawn(context, async move {
            // Goes with this task when it is interrupted, and the count stops.
            let _wanted = wanted;
            let count = tokio::task::spawn_blocking(move || total(&snapshot, &watched));
            let local = count.await.map_err(|_| Errno::IO)??;
            sized(local, size)
        })
    }
}

/// Counts the local bytes of all files of `snapshot`; stops when `wanted` is dropped.
fn total(snapshot: &Snapshot, wanted: &Weak<()>) -> Result<Vec<u8>, Errno> {
    let mut local = 0;
    for index in 0..snapshot.manifest().entries() {
        if wanted.strong_count() == 0 {
            return Err(Errno::INTR);
        }
        let failed = |error| failed(snapshot, index, &error);
        if let Node::File(slice) = snapshot.manifest().entry(index).map_err(failed)?.node {
            local += snapshot.local_bytes(slice).map_err(failed)?;
        }
    }
    Ok(share(local, snapshot.manifest().bytes()))
}

/// `local/all`.
fn share(local: u64, all: u64) -> Vec<u8> {
    format!("{local}/{all}").into()
}

/// The reply with `value`, which may have `size` bytes; or with its size, if `size` is 0.
fn sized(value: Vec<u8>, size: u32) -> Result<Reply, Errno> {
    match size as usize {
        0 => Ok(Reply::of(&XattrSize { size: value.len() as u32, ..XattrSize::default() })),
        room if value.len() > room => Err(Errno::RANGE),
        _ => Ok(Reply::Body(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xattr_value_asked_with_size_0_is_its_size() {
        assert!(
            matches!(sized(b"abc".to_vec(), 0), Ok(Reply::Body(size)) if size == [3, 0, 0, 0, 0, 0, 0, 0])
        );
        assert!(matches!(sized(b"abc".to_vec(), 2), Err(Errno::RANGE)));
        assert!(matches!(sized(b"abc".to_vec(), 3), Ok(Reply::Body(value)) if value == b"abc"));
        assert_eq!(share(u64::MAX, u64::MAX).len(), MAX_LOCAL_LENGTH);
    }
}
