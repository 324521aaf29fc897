//! The layout of a cache directory, its format file and its lock.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::blob::Key;
use crate::boot;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::source::tenant;

use super::directory::CacheDirectory;
use super::root_lock::RootLock;

/// The first line of the `format` file. Another number: another layout, refused.
const FORMAT: &str = "bdnfs cache 1\n";

/// The file with that line.
const FORMAT_FILE: &str = "format";

/// The directory that holds those of all tenants.
const TENANTS_DIRECTORY: &str = "tenants";

/// Up to how many shards are made durable one by one: each costs a barrier, the whole file system a few.
const MAX_SHARD_FSYNCS: usize = 8;

/// The forms that a blob's files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobFile {
    /// All of it, durable.
    Whole,
    /// Some blocks of it.
    Part,
    /// The map of the blocks that are present.
    Map,
}

impl BlobFile {
    fn suffix(self) -> &'static str {
        match self {
            Self::Whole => "",
            Self::Part => ".part",
            Self::Map => ".map",
        }
    }
}

/// A cache directory that this process owns, as long as this lives.
#[derive(Debug)]
pub struct CacheRoot {
    directory: CacheDirectory,
    lock: RootLock,
}

impl CacheRoot {
    /// Makes or opens the directory and locks it.
    ///
    /// # Errors
    /// As [`NodeCache::open`](super::NodeCache::open).
    pub fn open(path: &Path) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| unusable(path, e))?;
        let directory = CacheDirectory::open(path)?;
        let lock = RootLock::take(&directory)?;
        check_format(&directory)?;
        directory.subdirectory(TENANTS_DIRECTORY).map_err(|e| unusable(path, e))?;
        Ok(Self { directory, lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes to its disk, next to nothing.
    pub(super) fn touch(&self) {
        super::io::touch(self.lock.file());
    }

    /// The directory `name` of `tenant`; made if it is missing.
    pub(super) fn tenant_directory(&self, tenant: &str, name: &str) -> io::Result<CacheDirectory> {
        self.directory.subdirectory(Path::new(TENANTS_DIRECTORY).join(tenant).join(name))
    }

    /// The tenants that have something in it.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn tenants(&self) -> Result<Vec<String>> {
        let list = || std::fs::read_dir(self.path().join(TENANTS_DIRECTORY))?.collect::<io::Result<Vec<_>>>();
        let names = list().map_err(|e| unusable(self.path(), e))?.into_iter();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| tenant::check(name).is_ok()).collect())
    }
}

/// The directories of one tenant's blobs and manifests.
#[derive(Debug)]
pub struct Layout {
    root: Arc<CacheRoot>,
    tenant: String,
    manifests: CacheDirectory,
    pins: CacheDirectory,
    /// Blob names are resolved from here: shorter walks, and the cache may be renamed under a running node.
    blobs: CacheDirectory,
    stamp: Digest,
    /// One bit a shard: names in it changed since they were last made durable.
    renamed: [AtomicU64; 4],
    /// Held while the names are made durable.
    syncing: Mutex<()>,
}

impl Layout {
    /// Makes or opens the directories of `tenant` below `root`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for what can't be a tenant, [`Kind::Disk`].
    pub fn open(root: Arc<CacheRoot>, tenant: &str) -> Result<Self> {
        tenant::check(tenant)?;
        let fault = |e: io::Error| unusable(root.path(), e);
        let [manifests, pins, blobs] =
            ["manifests", "pins", "blobs"].map(|name| root.tenant_directory(tenant, name).map_err(fault));
        let (manifests, pins, blobs) = (manifests?, pins?, blobs?);
        let stamp = stamp(blobs.descriptor()).map_err(fault)?;
        let (tenant, renamed, syncing) = (tenant.to_owned(), Default::default(), Mutex::default());
        Ok(Self { root, tenant, manifests, pins, blobs, stamp, renamed, syncing })
    }

    /// The cache directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The tenant whose blobs these are.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The directory of pins: an empty file for each manifest whose blobs are to stay.
    pub fn pins(&self) -> &CacheDirectory {
        &self.pins
    }

    /// The directory of manifests, each under its digest.
    pub fn manifests(&self) -> &Path {
        self.manifests.path()
    }

    /// The directory of manifests, held open.
    pub(super) fn manifest_directory(&self) -> &CacheDirectory {
        &self.manifests
    }

    /// Opens the manifest `id` for reading.
    ///
    /// # Errors
    /// The disk's own, also where it is not there.
    pub fn open_manifest(&self, id: &Digest) -> io::Result<File> {
        self.manifests.file(id.to_string(), OFlags::RDONLY)
    }

    /// The directory that holds the shards of blobs, up to 256: each is made for its first blob, since making all of them
    /// takes as long as fetching some MiB does.
    pub fn blobs(&self) -> &OwnedFd {
        self.blobs.descriptor()
    }

    /// Identifies this boot of the machine and this mount of the disk: what was written under the same stamp is still in
    /// the page cache, if not on the disk, whatever became of the process that wrote it.
    pub fn stamp(&self) -> &Digest {
        &self.stamp
    }

    /// The path of one of a blob's files, from [`blobs`](Self::blobs).
    pub fn name(key: &Key, form: BlobFile) -> String {
        format!("{}/{key}{}", shard(key), form.suffix())
    }

    /// Opens one of a blob's files for reading; `None` when it is not there.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open_blob(&self, key: &Key, form: BlobFile) -> Result<Option<File>> {
        match self.blobs.file(Self::name(key, form), OFlags::RDONLY) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.fault("open", key, e)),
        }
    }

    /// Opens one of a blob's files past the page cache for reading, a part for writing as well.
    ///
    /// # Errors
    /// The disk's own, also where it has no such way.
    pub fn open_direct(&self, key: &Key, form: BlobFile) -> io::Result<File> {
        let access = if form == BlobFile::Part { OFlags::RDWR } else { OFlags::RDONLY };
        self.blobs.file(Self::name(key, form), access | OFlags::DIRECT)
    }

    /// Opens one of a blob's files for reading and writing; made if it is missing.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`].
    pub fn create_blob(&self, key: &Key, form: BlobFile) -> Result<File> {
        let open = || self.blobs.file(Self::name(key, form), OFlags::RDWR | OFlags::CREATE);
        let opened = match open() {
            // The shard that it lies in is missing.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.blobs.subdirectory(shard(key)).and_then(|_| open())
            }
            opened => opened,
        };
        opened.map_err(|e| self.fault("make", key, e))
    }

    /// Makes the directory that the files of `key` lie in, where it is missing.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn create_shard(&self, key: &Key) -> Result<()> {
        self.blobs.subdirectory(shard(key)).map(drop).map_err(|e| self.fault("make", key, e))
    }

    /// The metadata of one of a blob's files; `None` when it is not there.
    pub fn stat(&self, key: &Key, form: BlobFile) -> Option<Stat> {
        rustix::fs::statat(self.blobs(), Self::name(key, form), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Whether the whole blob is here.
    pub fn has(&self, key: &Key, size: u64) -> bool {
        self.stat(key, BlobFile::Whole).is_some_and(|stat| stat.st_size as u64 == size)
    }

    /// Gives a blob's part its final name.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn promote(&self, key: &Key) -> Result<()> {
        let (from, to) = (Self::name(key, BlobFile::Part), Self::name(key, BlobFile::Whole));
        rustix::fs::renameat(self.blobs(), from, self.blobs(), to).map_err(|e| self.fault("name", key, e))?;
        let (Key::Content(digest) | Key::Origin(digest)) = key;
        self.renamed[usize::from(digest.0[0] / 64)].fetch_or(1 << (digest.0[0] % 64), Relaxed);
        Ok(())
    }

    /// Makes a whole blob a part again, in the same file, of which no block is said to be here.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn demote(&self, key: &Key) -> Result<()> {
        let (from, to) = (Self::name(key, BlobFile::Whole), Self::name(key, BlobFile::Part));
        // One that a crash left beside the whole blob must not be believed, if another crash comes before the end.
        self.remove(key, BlobFile::Map)?;
        // A part is written to.
        rustix::fs::chmodat(self.blobs(), &from, Mode::RUSR | Mode::WUSR, AtFlags::empty())
            .and_then(|()| rustix::fs::renameat(self.blobs(), from, self.blobs(), to))
            .map_err(|e| self.fault("name", key, e))?;
        // Nor that of a part that somebody began meanwhile: its file has just lost its name.
        self.remove(key, BlobFile::Map)
    }

    /// Removes one of a blob's files, if it is there.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn remove(&self, key: &Key, form: BlobFile) -> Result<()> {
        match rustix::fs::unlinkat(self.blobs(), Self::name(key, form), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.fault("remove", key, e)),
        }
    }

    /// Makes all names durable that blobs got since this was last done.
    ///
    /// # Errors
    /// The disk's own. What was to be made durable still is, then.
    pub fn sync_names(&self) -> io::Result<()> {
        // One at a time: a caller that finds nothing to do relies on it being durable.
        let _turn = self.syncing.lock();
        let renamed = self.renamed.each_ref().map(|bits| bits.swap(0, Relaxed));
        self.sync_shards(renamed).inspect_err(|_| {
            for (bits, left) in self.renamed.iter().zip(renamed) {
                bits.fetch_or(left, Relaxed);
            }
        })
    }

    /// Makes it durable that a file of `key` was removed or renamed.
    ///
    /// # Errors
    /// The disk's own.
    pub fn sync_removal(&self, key: &Key) -> io::Result<()> {
        self.blobs.subdirectory(shard(key))?.sync()
    }

    fn sync_shards(&self, renamed: [u64; 4]) -> io::Result<()> {
        let shards = (0..=255u8).filter(|shard| renamed[usize::from(shard / 64)] >> (shard % 64) & 1 == 1);
        match shards.clone().count() {
            0 => return Ok(()),
            1..=MAX_SHARD_FSYNCS => {}
            // The first may tell of content that could not be written before, which its own commit asks for.
            _ => return Ok(rustix::fs::syncfs(self.blobs()).or_else(|_| rustix::fs::syncfs(self.blobs()))?),
        }
        for shard in shards {
            self.blobs.subdirectory(format!("{shard:02x}"))?.sync()?;
        }
        // The shards' own names: they may be as new as what is in them.
        self.blobs.sync()
    }

    /// The error of a failed `action` on `key`.
    pub fn fault(&self, action: &str, key: &Key, error: impl Into<io::Error>) -> Error {
        let context = format!("cannot {action} blob {key} in the cache {}", self.root().display());
        Error::disk(context, error.into())
    }
}

/// The name of the directory that the files of a blob lie in.
fn shard(key: &Key) -> String {
    let (Key::Content(digest) | Key::Origin(digest)) = key;
    format!("{:02x}", digest.0[0])
}

/// The bytes that `bytes` of content occupy: whole blocks of a file system, of 4 KiB as nearly all have.
pub(super) fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

fn unusable(root: &Path, error: io::Error) -> Error {
    Error::disk(format!("cannot use {} as the cache", root.display()), error)
}

/// Holds the `format` file against [`FORMAT`]. A new cache gets one, and so does one whose file a power cut left empty.
fn check_format(root: &CacheDirectory) -> Result<()> {
    let name = root.path().display();
    let read = root.file(FORMAT_FILE, OFlags::RDONLY).and_then(std::io::read_to_string);
    let text = match read {
        Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(|e| Error::disk(format!("cannot read the format of the cache {name}"), e))?,
    };
    match text.as_str() {
        FORMAT => Ok(()),
        "" => write_format(root).map_err(|e| Error::disk(format!("cannot make the cache {name}"), e)),
        other => Err(Error::new(
            Kind::Unsupported,
            format!(
                "the cache {name} has format {:?}, this version reads {:?}: name another directory",
                other.lines().next().unwrap_or_default(),
                FORMAT.trim()
            ),
        )),
    }
}

/// Whether the directory at `path` holds a cache, or what can't be told from here.
pub fn is_cache(path: &Path) -> bool {
    let format = std::fs::symlink_metadata(path.join(FORMAT_FILE));
    !format.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Durable first: staged blobs are of no use in a directory that is not recognized as a cache.
fn write_format(root: &CacheDirectory) -> io::Result<()> {
    let mut file = root.file(FORMAT_FILE, OFlags::WRONLY | OFlags::CREATE)?;
    file.write_all(FORMAT.as_bytes())?;
    file.sync_all()?;
    root.sync()
}

/// STATX_MNT_ID_UNIQUE (linux/stat.h, since 6.8): a mount id that is never given twice while the machine is up.
const MNT_ID_UNIQUE: u32 = 0x4000;

fn stamp(blobs: &OwnedFd) -> io::Result<Digest> {
    let mask = StatxFlags::from_bits_retain(MNT_ID_UNIQUE);
    let stat = rustix::fs::statx(blobs, "", AtFlags::EMPTY_PATH, mask | StatxFlags::BASIC_STATS)?;
    let mut name = boot::id_line().map_err(io::Error::other)?.into_bytes();
    name.extend_from_slice(&stat.stx_mnt_id.to_le_bytes());
    if stat.stx_mask & MNT_ID_UNIQUE == 0 {
        // An older kernel reuses mount ids, so the stamp must be one that never comes again: the process's own. A
        // restart then verifies what it finds, which costs time and nothing else.
        name.extend_from_slice(&std::process::id().to_le_bytes());
        name.extend_from_slice(&std::fs::read("/proc/self/stat")?);
    }
    Ok(Digest::of(&name))
}
