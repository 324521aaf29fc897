//! Adoption: a file of the same disk becomes a blob without being copied.
//!
//! ```text
//!   file ── renamed ──> <key>.part, and a map of doubted blocks ── each is verified before it is used ──> whole
//! ```
//!
//! Nothing of it is believed: it is a part like one from before an unclean stop ([`presence`]), of which wrong blocks are fetched.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::blob::Blob;
use crate::block;
use crate::error::Result;

use super::layout::{BlobFile, Layout};
use super::presence::{self, Presence};
use super::{Cache, io as positioned};

impl Cache {
    /// Adopts a file that should hold `blob`: `rename` gives it a path below a directory, where nothing is, and returns whether
    /// nobody can write to it any more. False where the cache has something of the blob, or the file stays where it is, or is lost.
    ///
    /// The blob should be leased: else it may be evicted at once.
    ///
    /// # Errors
    /// [`Kind::NoSpace`](crate::error::Kind::NoSpace), when the file is lost; [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn adopt(
        &self,
        blob: &Blob,
        rename: impl FnOnce(&OwnedFd, &str) -> rustix::io::Result<bool>,
    ) -> Result<bool> {
        let (layout, key, blocks) = (self.layout(), &blob.key, block::count(blob.size));
        // One of a single block has no map, and is there or not.
        let Some(checks) = blob.checks.as_ref().filter(|_| blocks > 1) else { return Ok(false) };
        if self.has(key, blob.size) || layout.stat(key, BlobFile::Part).is_some() {
            return Ok(false);
        }
        layout.create_shard(key)?;
        match rename(layout.blobs(), &Layout::name(key, BlobFile::Part)) {
            Ok(true) => {}
            Ok(false) => {
                layout.remove(key, BlobFile::Part)?;
                return Ok(false);
            }
            // On another disk, or one that can't do that; or there is a part by now; or it may not be moved.
            Err(
                Errno::XDEV
                | Errno::EXIST
                | Errno::NOENT
                | Errno::PERM
                | Errno::ACCESS
                | Errno::INVAL
                | Errno::NOSYS,
            ) => return Ok(false),
            Err(error) => return Err(layout.fault("take in", key, error)),
        }
        if let Err(error) = self.space.add(blob.size) {
            layout.remove(key, BlobFile::Part)?;
            return Err(error);
        }
        // A user of the part may have come already, and have made the map: what is doubted does not harm them.
        let presence = Presence::none(blocks);
        (0..blocks).for_each(|index| presence.doubt(index));
        let map = layout.create_blob(key, BlobFile::Map)?;
        let write = || -> io::Result<()> {
            map.set_len(presence::check_at(blocks, blocks))?;
            positioned::write(&map, presence::check_at(blocks, 0), checks.as_bytes())?;
            positioned::write(&map, presence::MAP_HEADER_BYTES, &presence.pairs())?;
            positioned::write(&map, 0, &presence::header(blob.size, layout.stamp()))
        };
        write().map_err(|e| layout.fault("write the map of", key, e))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::SystemTime;

    use rustix::fs::CWD;

    use super::super::Limits;
    use super::super::presence::BlockState;
    use super::*;
    use crate::blob::Key;
    use crate::block::{BLOCK, Check};

    /// A blob of three blocks, and a file with another second one.
    fn damaged_file(path: &Path) -> Blob {
        let size = 3 * BLOCK;
        let mut content: Vec<u8> = (0..size).map(|i| (i ^ (i >> 9)) as u8).collect();
        let check = |(index, block): (usize, &[u8])| Check::of(size, index as u64, block);
        let checks: Vec<_> = content.chunks(BLOCK as usize).enumerate().map(check).collect();
        content[BLOCK as usize + 7] ^= 1;
        fs::write(path, &content).expect("a file");
        let key = Key::Content(Check::combine(size, &checks).expect("three blocks"));
        let (path, version, stored) = Default::default();
        Blob { key, size, checks: Some(checks.into()), path, version, sha256: None, stored }
    }

    /// A cache in `home` that knows what it holds.
    fn open(home: &Path, capacity: u64) -> Cache {
        let limits = Limits { capacity: Some(capacity), reserve: 0 };
        let cache = Cache::open(&home.join("cache"), "default", limits, SystemTime::now).expect("a cache");
        while cache.space().used().is_none() {
            std::thread::yield_now();
        }
        cache
    }

    #[test]
    fn adopted_file_has_only_the_blocks_that_are_right() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file");
        let blob = damaged_file(&path);
        let cache = open(home.path(), 4 * BLOCK);
        let _lease = cache.leases().lease(blob.key);
        let rename = |is_good| {
            let path = &path;
            move |blobs: &OwnedFd, name: &str| rustix::fs::renameat(CWD, path, blobs, name).map(|()| is_good)
        };
        assert!(!cache.adopt(&blob, rename(false)).expect("no fault"));
        assert!(cache.resume(&blob.key, blob.size).expect("no fault").is_none() && !path.exists());
        assert!(!cache.adopt(&blob, rename(true)).expect("it is no longer there"));
        damaged_file(&path);
        assert!(cache.adopt(&blob, rename(true)).expect("no fault"));
        assert!(!cache.adopt(&blob, rename(true)).expect("there is a part of it"));
        assert_eq!(cache.space().used(), Some(3 * BLOCK));
        let part = cache.resume(&blob.key, blob.size).expect("no fault").expect("a part");
        let states = || [0, 1, 2].map(|index| part.presence().state(index));
        assert_eq!(states(), [BlockState::Doubted; 3]);
        (0..3).for_each(|index| part.verify_doubted(index, None));
        assert_eq!(states(), [BlockState::Present, BlockState::Absent, BlockState::Present]);
    }

    #[test]
    fn adopted_file_beyond_the_limit_is_refused() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("file");
        let blob = damaged_file(&path);
        let cache = open(home.path(), 2 * BLOCK);
        let _lease = cache.leases().lease(blob.key);
        let adopted =
            cache.adopt(&blob, |blobs, name| rustix::fs::renameat(CWD, &path, blobs, name).map(|()| true));
        assert_eq!(adopted.expect_err("it is too large").kind(), crate::error::Kind::NoSpace);
        assert!(cache.space().used().is_some_and(|used| used < BLOCK));
        assert!(cache.resume(&blob.key, blob.size).expect("no fault").is_none());
    }
}
