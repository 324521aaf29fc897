//! Reading a local file, piece by piece, and never a byte of another version.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use rustix::buffer::spare_capacity;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::task::blocking;

use super::{LocalRoot, failure, version};
use crate::block::BLOCK;
use crate::error::Result;
use crate::origin::changed;
use crate::tier::Body;

/// The number of pieces of a body that are read at once: one while the consumer is busy with the other. It bounds what a body
/// holds, however slow its consumer is.
const PIECES_AHEAD: usize = 2;

/// A file in the version that a snapshot pinned.
pub(super) struct PinnedFile {
    pub root: Arc<LocalRoot>,
    pub path: Bytes,
    pub version: Bytes,
    /// The name in messages.
    pub name: String,
}

/// The bytes of `range`, in pieces that end where blocks end, so that a piece can become a block as it is.
pub(super) async fn stream(file: PinnedFile, range: Range<u64>) -> Result<Body> {
    let open = blocking(move || {
        let fd = file.open()?;
        Ok(Arc::new((file, fd)))
    })
    .await?;
    let pieces = stream::iter(pieces(range)).map(move |piece| {
        let open = open.clone();
        blocking(move || open.0.read(&open.1, piece))
    });
    Ok(pieces.buffered(PIECES_AHEAD).boxed())
}

/// `range`, cut where blocks end.
fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let cut = move |start: u64| start..range.end.min((start / BLOCK + 1) * BLOCK);
    std::iter::successors(Some(cut(range.start)), move |last| Some(cut(last.end)))
        .take_while(|piece| !piece.is_empty())
}

impl PinnedFile {
    /// Opens it, if it is still the pinned version. `NONBLOCK`: a fifo in its place must not block the open.
    fn open(&self) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.root.at(&self.path, flags).map_err(|error| match error {
            Errno::NOENT | Errno::NOTDIR => changed(&self.name, "it is gone"),
            Errno::LOOP | Errno::XDEV | Errno::NXIO => changed(&self.name, "it is no regular file now"),
            _ => failure(&self.name, error),
        })?;
        self.check(&fd)?;
        Ok(fd)
    }

    /// Reads one piece. The version is checked before and after, so what was read in between is of it.
    fn read(&self, fd: &OwnedFd, piece: Range<u64>) -> Result<Bytes> {
        self.check(fd)?;
        let len = (piece.end - piece.start) as usize;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = piece.start + bytes.len() as u64;
            match rustix::io::pread(fd, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(changed(&self.name, "it is shorter now")),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failure(&self.name, error)),
            }
        }
        self.check(fd)?;
        // The allocator may have given more room than was asked for.
        bytes.truncate(len);
        Ok(bytes.into())
    }

    fn check(&self, fd: &OwnedFd) -> Result<()> {
        let stat = rustix::fs::fstat(fd).map_err(|e| failure(&self.name, e))?;
        if version(&stat).as_bytes() == self.version {
            return Ok(());
        }
        Err(changed(&self.name, "it was written to or replaced"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_range_end_at_block_boundaries() {
        let cut = |range| pieces(range).collect::<Vec<_>>();
        assert_eq!(cut(5..BLOCK + 1), [5..BLOCK, BLOCK..BLOCK + 1]);
        let ends = [BLOCK - 1..BLOCK, BLOCK..2 * BLOCK, 2 * BLOCK..2 * BLOCK + 3];
        assert_eq!(cut(BLOCK - 1..2 * BLOCK + 3), ends);
        assert_eq!(cut(7..7), []);
    }
}
