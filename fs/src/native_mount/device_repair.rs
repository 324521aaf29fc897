//! Repair: the kernel goes on reading a blob of a superblock that the cache has found damaged. So its file stays, and what is fetched again
//! is written into it: the one exception to the rule that a blob is never rewritten. Then what was wrong is dropped from the page cache.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::blob::Key;
use bdnfs::block::{self, BLOCK};
use bdnfs::cache::removal::RemovalListener;
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Slice;
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use rustix::fs::{Advice, fadvise};

use crate::mounts::{self, MountEntry};

use super::superblock::NativeSuperblock;

/// How long after a repair that failed it is tried again.
const REPAIR_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How many files of a repaired blob are logged by name.
const MAX_NAMED_FILES: usize = 20;

/// The digest of each block of a file; `None` for one that the disk can't read.
pub(super) type BlockDigests = Vec<Option<Digest>>;

impl NativeSuperblock {
    /// Repairs those of its devices that were found damaged before it was taken up.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is.
    pub(super) fn repair_all(&self) -> Result<()> {
        self.native.missing_devices()?.into_iter().for_each(|key| self.repair(key));
        Ok(())
    }

    /// Starts the repair of the device `key`.
    fn repair(&self, key: Key) {
        if !self.repairing.lock().insert(key) {
            return;
        }
        let (superblock, inode) = (self.own.clone(), self.native.device_inode(&key));
        self.native.snapshot().runtime().spawn(async move {
            while let Some(superblock) = superblock.upgrade() {
                match superblock.try_repair(key, inode).await {
                    Ok(()) => return,
                    Err(error) => tracing::error!(%key, %error, "a native mount reads damaged data"),
                }
                drop(superblock);
                tokio::time::sleep(REPAIR_RETRY_INTERVAL).await;
            }
        });
    }

    /// Repairs the device `key`. `inode` is that of the file which the kernel reads; `None` where the cache has lost it.
    pub(super) async fn try_repair(self: &Arc<Self>, key: Key, inode: Option<u64>) -> Result<()> {
        let Some((owner, blob)) = self.fetch(&key).await? else { return Ok(()) };
        let looking = Arc::clone(self);
        let now = blocking(move || Ok(looking.native.device_inode(&key))).await?;
        if inode.is_none() || now != inode {
            let text = "its file in the cache was removed or replaced, and the kernel reads the old one: unmount it and mount it again";
            return Err(Error::new(Kind::Corrupt, text));
        }
        // What is found from now on is to be repaired again.
        self.repairing.lock().remove(&key);
        let before = self.damaged.lock().remove(&key);
        let file = whole(&owner, blob).await?;
        let superblock = Arc::clone(self);
        let dropped = blocking(move || superblock.drop_pages(&key, before.as_ref(), &file));
        let (files, programs) = dropped.await?;
        tracing::warn!(%key, files, programs,
            "a native mount was repaired; programs that have these files mapped may still see wrong bytes");
        Ok(())
    }

    /// Fetches the device `key` with the credentials of one mount after another; returns the snapshot of the first that
    /// succeeds, and the blob's number there.
    async fn fetch(&self, key: &Key) -> Result<Option<(Arc<Snapshot>, u32)>> {
        let mut failed = None;
        for native in self.snapshots() {
            let Some((owner, blob)) = native.device_of(key)? else { return Ok(None) };
            owner.stage_again();
            match owner.stage().done().await {
                Ok(()) => return Ok(Some((owner, blob))),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Drops from the page cache the blocks of `file` that differ from `before`, or all of it; returns the files that they
    /// belong to, and the programs that have them mapped. Fails where no mount shows one of these files.
    pub(super) fn drop_pages(
        &self,
        key: &Key,
        before: Option<&BlockDigests>,
        file: &File,
    ) -> Result<(String, String)> {
        let size = file.metadata().map_err(|e| fault(key, e))?.len();
        let ranges = match before {
            None => vec![(0, size)],
            Some(before) => {
                let now = digests(file, size);
                let changed = |index: &u64| before.get(*index as usize) != now.get(*index as usize);
                let range = |index| (index * BLOCK, block::len(size, index));
                (0..block::count(size)).filter(changed).map(range).collect()
            }
        };
        let entries = self.native.files_at(key, &ranges)?;
        let roots = self.roots()?;
        let (mut names, mut inodes, mut hidden) = (Vec::new(), BTreeSet::new(), None);
        for entry in &entries {
            let path = self.native.snapshot().manifest().path(*entry)?;
            // Not that of another mount, which covers it.
            let seen = |root: &MountEntry| {
                let file = File::open(root.mountpoint.join(OsStr::from_bytes(&path))).ok()?;
                mounts::lies_on(&file, "", root.device).then_some(file)
            };
            // The kernel's own copy of it, which is another than that of the blob.
            if let Some(seen) = roots.iter().find_map(seen) {
                let _ = fadvise(&seen, 0, None, Advice::DontNeed);
                inodes.extend(mounts::inode(&seen));
            } else {
                hidden.get_or_insert(path.clone());
            }
            if names.len() < MAX_NAMED_FILES {
                names.push(String::from_utf8_lossy(&path).escape_debug().to_string());
            }
        }
        if let Some(hidden) = hidden {
            let hidden = String::from_utf8_lossy(&hidden).escape_debug().to_string();
            let text = format!(
                "blob {key} is right again, but {hidden} can't be reached to drop its pages: unmount what covers it"
            );
            return Err(Error::new(Kind::Disk, text));
        }
        if entries.len() > names.len() {
            names.push(format!("and {} more", entries.len() - names.len()));
        }
        let programs = mounts::mapping(&inodes);
        let programs: Vec<_> =
            programs.iter().map(|user| format!("{} ({})", user.command, user.pid)).collect();
        Ok((names.join(", "), programs.join(", ")))
    }
}

impl RemovalListener for NativeSuperblock {
    fn needs_file(&self, key: &Key, file: &File) -> bool {
        let is_device = self.native.device_of(key).is_ok_and(|found| found.is_some());
        if is_device {
            let size = file.metadata().map_or(0, |metadata| metadata.len());
            // The kernel may have read blocks of a repair under way, too: then nothing is known of any block.
            let is_known = !self.repairing.lock().contains(key);
            let before = if is_known { digests(file, size) } else { Vec::new() };
            self.damaged.lock().insert(*key, before);
        }
        is_device
    }

    fn blob_removed(&self, key: &Key, _: Option<&File>) {
        match self.native.device_of(key) {
            Ok(Some(_)) => self.repair(*key),
            // It is staged, so what was removed of it comes again.
            Ok(None) if self.native.snapshot().files_of(key).is_ok_and(|files| files.is_empty()) => {}
            Ok(None) => self.native.snapshot().stage_again(),
            Err(error) => tracing::error!(%key, %error, "a native mount reads damaged data"),
        }
    }
}

/// The file that has all of a blob.
async fn whole(owner: &Arc<Snapshot>, blob: u32) -> Result<Arc<File>> {
    let slice = Slice { blob, offset: 0, len: owner.manifest().blob_size(blob)? };
    let opening = Arc::clone(owner);
    let reader = blocking(move || opening.open(slice)).await?;
    reader.whole().await;
    let gone = || Error::new(Kind::Disk, "the blob is not whole");
    reader.backing().ok_or_else(gone)
}

/// The digest of each block of `file` on the disk, whatever is in the page cache.
fn digests(file: &File, size: u64) -> BlockDigests {
    let digest = |index| {
        let (at, len) = (index * BLOCK, block::len(size, index));
        let _ = fadvise(file, at, NonZeroU64::new(len), Advice::DontNeed);
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, at).ok().map(|()| Digest::of(&bytes))
    };
    (0..block::count(size)).map(digest).collect()
}

fn fault(key: &Key, error: std::io::Error) -> Error {
    Error::disk(format!("cannot repair blob {key}"), error)
}
