//! Repair: the kernel goes on reading a blob of a superblock that the cache has found damaged. So its file stays, and what is
//! fetched again is written into it: the one exception to the rule that a blob is never rewritten. Then what was wrong is dropped
//! from the page cache.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bdnfs::backoff::jittered;
use bdnfs::blob::Key;
use bdnfs::block::{self, BLOCK};
use bdnfs::cache::io;
use bdnfs::cache::removal::RemovalListener;
use bdnfs::cache::removal_marks::Removal;
use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Slice;
use bdnfs::native::DevicePart;
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use rustix::fs::{Advice, fadvise};

use crate::mounts::{self, MountEntry};

use super::superblock::{BlockDigests, NativeSuperblock};

/// The time after a failed repair at which it is tried again.
const REPAIR_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The number of times that wrong pages are dropped from the page cache, and the pause between them: pages that are just being read
/// stay there.
const DROP_ATTEMPT_LIMIT: usize = 50;
const DROP_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// The number of files of a repaired blob that are logged by name.
const MAX_NAMED_FILES: usize = 20;

/// The reason why a device can't be repaired.
const REPLACED_MESSAGE: &str = "its file in the cache was removed or replaced, and the kernel reads the old one: unmount it and mount it again";

/// The pages that were dropped from the page cache.
#[derive(Debug)]
pub(super) struct DroppedPages {
    /// The files that it belonged to.
    pub(super) files: String,
    /// The programs that have them mapped.
    programs: String,
    /// Whether nothing that is wrong is left there.
    pub(super) is_all: bool,
}

impl NativeSuperblock {
    /// Repairs those of its devices that were found damaged before it was taken up.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is.
    pub(super) fn repair_all(&self) -> Result<()> {
        for (key, is_whole) in self.native.devices_whole()? {
            let marked = fs::read_to_string(self.mark(&key)).ok();
            if !is_whole || marked.is_some() {
                let inode = marked.and_then(|inode| inode.parse().ok());
                self.repair(key, inode.or_else(|| self.native.device_inode(&key)));
            }
        }
        Ok(())
    }

    /// Starts the repair of the device `key`, and the drop of what the kernel has read of it. `inode` is that of the file which the
    /// kernel reads; `None` where the cache has lost it, and nothing can be written into it any more: the kernel keeps it.
    fn repair(&self, key: Key, inode: Option<u64>) {
        if inode.is_none() {
            let source = self.native.snapshot().manifest().source().escape_debug();
            tracing::warn!(%key, "a native mount of {source} cannot be repaired: {REPLACED_MESSAGE}");
            // Other mounts may need it.
            self.native.snapshot().stage_again();
            return;
        }
        if !self.repairing.lock().insert(key) {
            return;
        }
        let superblock = self.own.clone();
        self.native.snapshot().runtime().spawn(async move {
            let mut is_told = false;
            while let Some(superblock) = superblock.upgrade() {
                match superblock.try_repair(key, inode).await {
                    Ok(None) => return,
                    Ok(Some(DroppedPages { files, programs, is_all })) => {
                        if !is_told {
                            tracing::warn!(%key, files, programs,
                                "a native mount was repaired; programs that have these files mapped may still see wrong bytes");
                        }
                        if is_all {
                            return;
                        }
                        is_told = true;
                    }
                    Err(error) => tracing::error!(%key, %error, "a native mount reads damaged data"),
                }
                drop(superblock);
                tokio::time::sleep(jittered(REPAIR_RETRY_INTERVAL)).await;
            }
        });
    }

    /// Has the pack repaired where something that it is made of was removed or fetched again since it was made, such as by the
    /// `removal`.
    pub(super) fn renew_pack(&self, removal: Option<Removal>) {
        let superblock = self.own.clone();
        self.native.snapshot().runtime().spawn(async move {
            // The removal is not dropped before the pack itself is marked.
            while let Some(superblock) = superblock.upgrade() {
                match superblock.native.withdraw_stale_pack(removal.is_some()).await {
                    Ok(()) => return,
                    Err(error) => tracing::error!(%error, "a native mount may read damaged data"),
                }
                drop(superblock);
                tokio::time::sleep(jittered(REPAIR_RETRY_INTERVAL)).await;
            }
        });
    }

    /// Repairs the device `key`; `None` where it is none. `inode` is that of the file which the kernel reads; `None` where the
    /// cache has lost it.
    pub(super) async fn try_repair(
        self: &Arc<Self>,
        key: Key,
        inode: Option<u64>,
    ) -> Result<Option<DroppedPages>> {
        let Some((owner, blob)) = self.fetch(&key).await? else { return Ok(None) };
        let looking = Arc::clone(self);
        let now = blocking(move || Ok(looking.native.device_inode(&key))).await?;
        if inode.is_none() || now != inode {
            return Err(Error::new(Kind::Corrupt, REPLACED_MESSAGE));
        }
        // What is found from now on is to be repaired again.
        self.repairing.lock().remove(&key);
        let before = self.damaged.lock().remove(&key);
        let file = whole(&owner, blob).await?;
        let superblock = Arc::clone(self);
        let drop_pages = move || {
            let dropped = superblock.drop_pages(&key, before.as_ref(), &file)?;
            if dropped.is_all {
                superblock.unmark(&key);
            }
            Ok(Some(dropped))
        };
        blocking(drop_pages).await
    }

    /// Notes that the device `key`, which is damaged, may have been read, with the inode number of `file`: an agent that ends
    /// before what was read is dropped leaves that to the next one.
    fn mark_damaged(&self, key: &Key, file: &File) {
        let noted =
            file.metadata().and_then(|metadata| fs::write(self.mark(key), metadata.ino().to_string()));
        if let Err(error) = noted {
            tracing::warn!(%key, %error, "cannot note that a native mount is to be repaired: a crash would forget it");
        }
    }

    /// Forgets that the device `key` was damaged, unless it is again.
    fn unmark(&self, key: &Key) {
        let damaged = self.damaged.lock();
        if !damaged.contains_key(key) && !self.repairing.lock().contains(key) {
            let _ = fs::remove_file(self.mark(key));
        }
    }

    /// Fetches the device `key` with the credentials of one mount after another; returns the snapshot of the first that
    /// succeeds, and the blob's number there.
    async fn fetch(&self, key: &Key) -> Result<Option<(Arc<Snapshot>, u32)>> {
        let mut failed = None;
        for native in self.snapshots() {
            let Some((owner, blob)) = native.device_of(key)? else { return Ok(None) };
            match native.stage_again(&owner).await {
                Ok(()) => return Ok(Some((owner, blob))),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Drops from the page cache the blocks of `file` that differ from `before`, or all of it. Fails where no mount shows one of
    /// the files that they belong to.
    pub(super) fn drop_pages(
        &self,
        key: &Key,
        before: Option<&BlockDigests>,
        file: &File,
    ) -> Result<DroppedPages> {
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
        let (mut names, mut inodes, mut wrong, mut hidden) = (Vec::new(), BTreeSet::new(), Vec::new(), None);
        for (entry, part) in &entries {
            let path = self.native.snapshot().manifest().path(*entry)?;
            if names.len() < MAX_NAMED_FILES {
                names.push(String::from_utf8_lossy(&path).escape_debug().to_string());
            }
            let _dropping = self.dropping.lock();
            match open_in(&roots, &path) {
                None => _ = hidden.get_or_insert(path),
                Some(seen) => {
                    inodes.extend(mounts::inode(&seen));
                    if !drop_wrong(&seen, *part, file, &ranges) {
                        wrong.push((path, *part));
                    }
                }
            }
        }
        for _ in 1..DROP_ATTEMPT_LIMIT {
            if wrong.is_empty() {
                break;
            }
            thread::sleep(DROP_RETRY_INTERVAL);
            wrong.retain(|(path, part)| {
                let _dropping = self.dropping.lock();
                !open_in(&roots, path).is_some_and(|seen| drop_wrong(&seen, *part, file, &ranges))
            });
        }
        if let Some(hidden) = hidden {
            let hidden = String::from_utf8_lossy(&hidden).escape_debug().to_string();
            let text = format!(
                "blob {key} is right again, but {hidden} cannot be reached to drop its pages: unmount what covers it"
            );
            return Err(Error::new(Kind::Disk, text));
        }
        if entries.len() > names.len() {
            names.push(format!("and {} more", entries.len() - names.len()));
        }
        let programs = mounts::mapping(&inodes);
        let programs: Vec<_> =
            programs.iter().map(|user| format!("{} ({})", user.command, user.pid)).collect();
        let (files, programs) = (names.join(", "), programs.join(", "));
        Ok(DroppedPages { files, programs, is_all: wrong.is_empty() })
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
            let mut damaged = self.damaged.lock();
            damaged.insert(*key, before);
            self.mark_damaged(key, file);
        }
        is_device
    }

    fn blob_removed(&self, removal: &Removal, _: Option<&File>) {
        let key = removal.key();
        let is_shown = || self.native.snapshot().files_of(key).is_ok_and(|files| !files.is_empty());
        match self.native.device_of(key) {
            Ok(Some(_)) => self.repair(*key, self.native.device_inode(key)),
            Ok(None) if !is_shown() => return,
            // It is staged, so what was removed of it comes again.
            Ok(None) => self.native.snapshot().stage_again(),
            Err(error) => tracing::error!(%key, %error, "a native mount reads damaged data"),
        }
        // The pack may have a copy of it.
        self.renew_pack(Some(removal.clone()));
    }
}

/// Opens the file at `path` in one of `roots`, and not that of another mount, which covers it.
fn open_in(roots: &[MountEntry], path: &[u8]) -> Option<File> {
    roots.iter().find_map(|root| {
        let file = File::open(root.mountpoint.join(OsStr::from_bytes(path))).ok()?;
        mounts::lies_on(&file, "", root.device).then_some(file)
    })
}

/// Drops the pages of `seen`, the kernel's own copy of what its `part` has of `device`. False where what they have in `ranges` of
/// the device is still another: the kernel keeps pages that are read or mapped.
fn drop_wrong(seen: &File, part: DevicePart, device: &File, ranges: &[(u64, u64)]) -> bool {
    let _ = fadvise(seen, 0, None, Advice::DontNeed);
    let end = part.at + part.len;
    ranges.iter().filter(|(start, len)| *start < end && part.at < start + len).all(|(start, len)| {
        let range = (*start).max(part.at)..(start + len).min(end);
        range.clone().step_by(BLOCK as usize).all(|at| {
            let len = (range.end - at).min(BLOCK) as usize;
            let (mut shown, mut right) = (vec![0; len], vec![0; len]);
            let read = seen.read_exact_at(&mut shown, part.from + (at - part.at));
            read.and_then(|()| device.read_exact_at(&mut right, at)).is_ok() && shown == right
        })
    })
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
        let bytes = io::read_anew(file, index * BLOCK, block::len(size, index) as usize);
        bytes.ok().map(|bytes| Digest::of(&bytes))
    };
    (0..block::count(size)).map(digest).collect()
}

fn fault(key: &Key, error: std::io::Error) -> Error {
    Error::disk(format!("cannot repair blob {key}"), error)
}
