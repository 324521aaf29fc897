//! Repair: the kernel goes on reading a blob of a native mount that the cache has found damaged and removed. As soon as the right bytes
//! are there, they are written into that file, too: the one exception to the rule that a blob is never rewritten.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use bdnfs::blob::Key;
use bdnfs::block::{self, BLOCK};
use bdnfs::cache::removal::RemovalListener;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Slice;
use bdnfs::native::NativeSnapshot;
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use rustix::fs::{Advice, fadvise};

/// Repairs what a native mount reads.
#[derive(Debug)]
pub(super) struct NativeRewriter {
    native: Arc<NativeSnapshot>,
    mountpoint: PathBuf,
}

impl NativeRewriter {
    /// Repairs what the mount of `native` at `mountpoint` reads, for as long as this lives.
    pub(super) fn start(native: &Arc<NativeSnapshot>, mountpoint: &Path) -> Arc<Self> {
        let repair = Arc::new(Self { native: Arc::clone(native), mountpoint: mountpoint.to_owned() });
        let listener: Weak<Self> = Arc::downgrade(&repair);
        native.snapshot().on_removal(listener);
        repair
    }

    fn begin(&self, key: &Key, file: Option<&File>) -> Result<()> {
        let found = self.native.device_of(key)?;
        if found.is_none() && self.native.snapshot().files_of(key)?.is_empty() {
            return Ok(());
        }
        // It is staged, so what was removed of it comes again.
        let Some(((owner, blob), file)) = found.zip(file) else {
            self.native.snapshot().stage_again();
            return Ok(());
        };
        owner.stage_again();
        let damaged = file.try_clone().map_err(|e| fault(key, e))?;
        let (native, mountpoint, key) = (Arc::clone(&self.native), self.mountpoint.clone(), *key);
        let runtime = owner.runtime().clone();
        runtime.spawn(async move {
            let repaired = async {
                owner.stage().done().await?;
                let right = whole(&owner, blob).await?;
                let native = Arc::clone(&native);
                blocking(move || repair(&native, &mountpoint, &key, &damaged, &right)).await
            };
            match repaired.await {
                Ok(files) => {
                    tracing::warn!(%key, files = files.join(", "),
                        "a native mount was repaired; who has these files mapped may still see wrong bytes");
                }
                Err(error) => tracing::error!(%key, %error, "a native mount reads damaged data; unmount it"),
            }
        });
        Ok(())
    }
}

impl RemovalListener for NativeRewriter {
    fn blob_removed(&self, key: &Key, file: Option<&File>) {
        if let Err(error) = self.begin(key, file) {
            tracing::error!(%key, %error, "a native mount reads damaged data; unmount it");
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

/// Writes what `damaged` has wrong as `right` has it, and drops it from the page cache; answers with the files that it belongs to.
fn repair(
    native: &NativeSnapshot,
    mountpoint: &Path,
    key: &Key,
    damaged: &File,
    right: &File,
) -> Result<Vec<String>> {
    // It was opened for reading, and has no name.
    let by_descriptor = format!("/proc/self/fd/{}", damaged.as_raw_fd());
    let writable = File::options().write(true).open(by_descriptor).map_err(|e| fault(key, e))?;
    let size = right.metadata().map_err(|e| fault(key, e))?.len();
    let mut files = Vec::new();
    for index in 0..block::count(size) {
        let (at, len) = (index * BLOCK, block::len(size, index));
        let expected = read(right, at, len).map_err(|e| fault(key, e))?;
        // What the disk can't read is no better than what is wrong.
        if read(damaged, at, len).is_ok_and(|found| found == expected) {
            continue;
        }
        writable.write_all_at(&expected, at).map_err(|e| fault(key, e))?;
        files.extend(native.files_at(key, at, len)?);
    }
    writable.sync_data().map_err(|e| fault(key, e))?;
    let _ = fadvise(damaged, 0, None, Advice::DontNeed);
    files.sort_unstable();
    files.dedup();
    let mut names = Vec::with_capacity(files.len());
    for file in files {
        let path = native.snapshot().manifest().path(file)?;
        // The kernel's own copy of it, which is another.
        if let Ok(seen) = fs::File::open(mountpoint.join(std::ffi::OsStr::from_bytes(&path))) {
            let _ = fadvise(&seen, 0, None, Advice::DontNeed);
        }
        names.push(String::from_utf8_lossy(&path).escape_debug().to_string());
    }
    Ok(names)
}

/// Reads past what the page cache has of `file`: what lies on the disk is to be right.
fn read(file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let _ = fadvise(file, at, std::num::NonZeroU64::new(len), Advice::DontNeed);
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn fault(key: &Key, error: io::Error) -> Error {
    Error::disk(format!("cannot repair blob {key}"), error)
}
