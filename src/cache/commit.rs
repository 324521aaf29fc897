//! Commit: a part of which every block is here becomes a whole blob.
//!
//! Its content is made durable, then it gets its final name. One thread does this for all blobs, so that many small
//! ones share the price: flushing the disk once for five hundred files costs little more than for one.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};
use rustix::fs::XattrFlags;

use crate::blob::Key;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

use super::file_notes;
use super::io;
use super::layout::BlobFile;
use super::partial::PartialBlob;
use super::verification_time;

/// The number of parts that may wait for their commit. A stage that is faster than the disk's flushes waits here, which bounds the
/// open files too.
const COMMIT_QUEUE_LEN: usize = 512;

/// Number of parts from which on the whole file system is flushed once, and not each file by itself: a flush a file costs a
/// journal commit and a barrier each, and other dirty data on a cache's disk is mostly the cache's own.
const SYNCFS_MIN_BATCH: usize = 8;

/// The extended attribute with a whole blob's digest, for which it is not hashed again. It has the 32 bytes as they are, which ext4
/// still keeps within the inode.
pub const DIGEST_XATTR: &str = "user.bdnfs.digest";

/// The digest that the whole `file` of `key` is to have; `None` where nobody knows.
pub(crate) fn known_digest(key: &Key, file: &File) -> Option<Digest> {
    match key {
        Key::Content(digest) => Some(*digest),
        Key::Origin(_) => file_notes::read(file, DIGEST_XATTR).ok().flatten().map(Digest),
    }
}

type CommitCallback = Box<dyn FnOnce(Result<File>) + Send>;

struct CommitRequest {
    partial: Arc<PartialBlob>,
    done: CommitCallback,
}

/// The thread that commits, and its queue.
#[derive(Debug)]
pub struct Committer {
    queue: Option<Sender<CommitRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for CommitRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "commit of {}", self.partial.key())
    }
}

impl Committer {
    /// Starts the thread. It ends when the `Committer` is dropped and its queue is empty.
    ///
    /// # Errors
    /// [`Kind::Disk`] when no thread can be made.
    pub fn start() -> Result<Self> {
        let (queue, requests) = bounded(COMMIT_QUEUE_LEN);
        let thread = std::thread::Builder::new()
            .name("bdnfs-commit".into())
            .spawn(move || serve(&requests))
            .map_err(|e| Error::with(Kind::Disk, "cannot start the thread that commits blobs", e))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Commits `partial`, all of whose blocks are present, and calls `done` with the whole file. Blocks while
    /// the queue is full.
    pub fn commit(&self, partial: Arc<PartialBlob>, done: impl FnOnce(Result<File>) + Send + 'static) {
        let request = CommitRequest { partial, done: Box::new(done) };
        let refused = match &self.queue {
            Some(queue) => queue.send(request).err().map(|refused| refused.0),
            None => Some(request),
        };
        if let Some(request) = refused {
            (request.done)(Err(Error::new(Kind::Disk, "the thread that commits blobs has ended")));
        }
    }
}

impl Drop for Committer {
    /// Waits until all that was handed in is committed.
    fn drop(&mut self) {
        self.queue = None;
        // The last handle may be dropped on the commit thread itself, in a `done`: it must not join itself.
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != std::thread::current().id()) {
            thread.join().ok();
        }
    }
}

fn serve(requests: &Receiver<CommitRequest>) {
    while let Ok(first) = requests.recv() {
        let mut batch = vec![first];
        batch.extend(requests.try_iter().take(COMMIT_QUEUE_LEN - 1));
        let flushed = flush(&batch);
        for (request, flushed) in batch.into_iter().zip(flushed) {
            if flushed.is_err() {
                // The kernel calls pages clean that it has failed to write, and the next flush would succeed without them.
                request.partial.doubt_all();
            }
            let whole = flushed.and_then(|()| promote(&request.partial));
            (request.done)(whole);
        }
    }
}

/// Makes the content of all parts durable, and returns the result of each.
fn flush(batch: &[CommitRequest]) -> Vec<Result<()>> {
    for CommitRequest { partial, .. } in batch {
        note_digest(partial);
        if let Some(since) = partial.verified_since() {
            verification_time::mark(partial.file(), since);
        }
    }
    let fault = |e: std::io::Error| Error::disk("cannot make a blob durable in the cache", e);
    if let Some(first) = batch.first().filter(|_| batch.len() >= SYNCFS_MIN_BATCH) {
        // All tenants lie on one file system.
        let flushed = rustix::fs::syncfs(first.partial.layout().blobs()).map_err(|e| fault(e.into()));
        // What failed to be written before, only the file itself tells.
        let of_file = |request: &CommitRequest| {
            flushed.as_ref().map_err(Error::share)?;
            io::await_writeback(request.partial.file()).map_err(fault)
        };
        return batch.iter().map(of_file).collect();
    }
    for CommitRequest { partial, .. } in batch {
        io::begin_writeback(partial.file(), 0, partial.size());
    }
    batch.iter().map(|request| request.partial.file().sync_all().map_err(fault)).collect()
}

/// Stores the digest on the file. Best effort: without an attribute it is not shown.
fn note_digest(partial: &PartialBlob) {
    let Some(digest) = partial.digest() else { return };
    let noted = rustix::fs::fsetxattr(partial.file(), DIGEST_XATTR, &digest.0, XattrFlags::empty());
    if let Err(error) = noted {
        tracing::debug!(key = %partial.key(), %error, "a blob is kept without its digest");
    }
}

fn promote(partial: &PartialBlob) -> Result<File> {
    let layout = partial.layout();
    // A verify may have found damage while the flush was awaited.
    partial.while_complete(|| {
        layout.promote(partial.key())?;
        layout.remove(partial.key(), BlobFile::Map)
    })?;
    // Only now: a read-only part could not be resumed after a crash.
    if let Err(error) = partial.file().set_permissions(std::fs::Permissions::from_mode(0o400)) {
        tracing::debug!(key = %partial.key(), %error, "a blob is kept writable");
    }
    layout
        .open_blob(partial.key(), BlobFile::Whole)?
        .ok_or_else(|| Error::new(Kind::Disk, format!("blob {} vanished from the cache", partial.key())))
}
