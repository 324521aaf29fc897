//! Files: how the files of a mount are opened, read and closed.

use std::sync::Arc;
use std::time::Instant;

use bdnfs::error::Result;
use bdnfs::manifest::Slice;
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;

use crate::tree;
use crate::wire::abi::OpenOut;

mod handles;
mod registered_file;
mod small_file_prefetch;
mod stateless;

pub(crate) use handles::FileHandles;
pub(crate) use stateless::StatelessFiles;

/// The size of the largest file, in bytes, with which a mount is still stateless. Files of this size gain more from an open
/// that costs nothing than from passthrough, which pays off in long reads; and the tree of a model whose weights lie beside
/// small files is not taken for one of small files.
const MAX_STATELESS_FILE_BYTES: u64 = 16 << 20;

/// The files of a mount, in one of two ways that it keeps to.
#[derive(Debug)]
pub(crate) enum FileTable {
    /// The kernel sends OPEN for every open, which may be answered with a backing file.
    Handles(Arc<FileHandles>),
    /// The kernel learns once that opens need no request, and sends neither OPEN nor RELEASE from then on: twelve times as fast
    /// for a tree of many small files.
    Stateless(Arc<StatelessFiles>),
}

/// The answer to an OPEN.
#[derive(Debug)]
pub(crate) enum OpenOutcome {
    /// The file is open.
    Opened(OpenOut),
    /// The file moved to another node: its name is to be looked up again.
    Moved,
    /// The mount is stateless.
    Stateless,
}

impl FileTable {
    /// Whether the files of `snapshot` are all so small that its mount is best stateless.
    pub(crate) fn stateless(snapshot: &Snapshot) -> bool {
        snapshot.manifest().largest() <= MAX_STATELESS_FILE_BYTES
    }

    /// Opens the file `index`, which is `slice`, at its node `node`, for the request `unique`.
    pub(crate) fn open(&self, unique: u64, node: u64, index: u32, slice: Slice) -> Result<OpenOutcome> {
        match self {
            Self::Handles(handles) => {
                // Here and not when it is read: the kernel reads by itself what was fetched ahead.
                handles.prefetch_after(index, slice);
                handles.open(unique, node, index, slice)
            }
            Self::Stateless(_) => Ok(OpenOutcome::Stateless),
        }
    }

    /// As [`open`](Self::open), without looking for the file in the cache, whose disk does not answer.
    pub(crate) fn open_past_cache(
        &self,
        unique: u64,
        node: u64,
        index: u32,
        slice: Slice,
    ) -> Result<OpenOutcome> {
        match self {
            Self::Handles(handles) => handles.open_past_cache(unique, node, index, slice),
            Self::Stateless(_) => Ok(OpenOutcome::Stateless),
        }
    }

    /// The reader of the file `index`, which is `slice`, for the handle `fh`. `None`: there is no such handle.
    pub(crate) fn reader(&self, fh: u64, index: u32, slice: Slice) -> Result<Option<Arc<Reader>>> {
        match self {
            Self::Handles(handles) => Ok(handles.reader(fh)),
            Self::Stateless(files) => {
                files.prefetch_after(index);
                files.reader(index, slice).map(Some)
            }
        }
    }

    /// As [`reader`](Self::reader), without looking for the file in the cache, whose disk does not answer.
    pub(crate) fn reader_past_cache(&self, fh: u64, index: u32, slice: Slice) -> Result<Option<Arc<Reader>>> {
        match self {
            Self::Handles(handles) => Ok(handles.reader(fh)),
            Self::Stateless(files) => files.reader_past_cache(index, slice).map(Some),
        }
    }

    /// Closes the handle `fh` of `node`.
    pub(crate) fn close(&self, node: u64, fh: u64) {
        if let Self::Handles(handles) = self {
            handles.close(node, fh);
        }
    }

    /// The node that a lookup of file `index` returns.
    pub(crate) fn lookup_node(&self, index: u32) -> u64 {
        match self {
            Self::Handles(handles) => handles.lookup_node(index),
            Self::Stateless(_) => tree::base(index),
        }
    }

    /// Whether the kernel reads whole files by itself.
    pub(crate) fn passthrough(&self) -> bool {
        matches!(self, Self::Handles(handles) if handles.passthrough())
    }

    /// Whether the mount would use passthrough, if the kernel and the privileges allowed it.
    pub(crate) fn lacks_passthrough(&self) -> bool {
        matches!(self, Self::Handles(handles) if !handles.passthrough())
    }

    /// Makes the kernel read the file `index` anew: the pages that it has are wrong.
    pub(crate) async fn renew(&self, index: u32) {
        match self {
            Self::Handles(handles) => handles.renew(index).await,
            Self::Stateless(files) => files.renew(index).await,
        }
    }

    /// Closes what was idle for too long at `now`. Touches the local disk.
    pub(crate) fn expire(&self, now: Instant) {
        match self {
            Self::Handles(handles) => handles.expire(now),
            Self::Stateless(files) => files.expire(now),
        }
    }
}
