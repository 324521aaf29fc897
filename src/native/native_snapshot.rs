//! A staged snapshot with all that a native mount of it needs.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags};

use super::aligned_pack::AlignedPack;
use super::data_layout::{DataLayout, DevicePart, PAGE_BLOCK_BITS, SMALL_BLOCK_BITS};
use super::image::{self, ImageOptions};
use super::packed_sources;
use crate::blob::Key;
use crate::cache::layout::{BlobFile, Layout as CacheLayout};
use crate::cache::verification_time;
use crate::digest::Digest;
use crate::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::manifest::Node;
use crate::snapshot::Snapshot;
use crate::source::Patterns;
use crate::staging::audit;
use crate::task::blocking;

/// The size of the largest file, in bytes, of a snapshot that gains by a native mount: larger ones are read by the kernel
/// alone on a FUSE mount as well, and would lose O_DIRECT.
pub const MAX_WORTHWHILE_FILE_BYTES: u64 = 16 << 20;

/// The maximum age of the verification of small files' content when a pack is made of it: what has just come was when it came, and
/// what lies in the cache for long may have rotted.
const PACKED_VERIFICATION_AGE: Duration = Duration::from_secs(3600);

/// The number of times that small files that are lost or damaged are fetched before a pack is made of them: a scrub may run
/// meanwhile.
const PACKED_FETCH_LIMIT: usize = 8;

/// The number of attempts to make a pack that something replaces a blob of meanwhile.
const PACK_ATTEMPT_LIMIT: usize = 4;

/// A snapshot, all of which is local and leased, and its pack.
#[derive(Debug)]
pub struct NativeSnapshot {
    tenant: String,
    snapshot: Arc<Snapshot>,
    layout: Arc<DataLayout>,
    pack: Option<Arc<Snapshot>>,
}

/// Whether a native mount of `snapshot` would be better than a FUSE mount.
pub fn is_worthwhile(snapshot: &Snapshot) -> bool {
    snapshot.manifest().largest() <= MAX_WORTHWHILE_FILE_BYTES
}

impl NativeSnapshot {
    /// Makes the pack of `snapshot`, all of which is local and leased, and leases it. One that was made before is used, unless a
    /// blob that it is made of has come again since.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] where the cache has no room for the pack, and those of [`open`](Self::open).
    pub async fn prepare(engine: &Engine, snapshot: Arc<Snapshot>) -> Result<Self> {
        let native = Self::open(engine, snapshot).await?;
        if let Some(pack) = native.pack.clone() {
            blocking(move || pack.admit()).await?;
            native.withdraw_stale_pack(false).await?;
            if let Some(since) = native.snapshot.staged().and_then(|stage| stage.verified_since()) {
                // One from before is no better verified than what it was made of.
                audit::audit_since(native.snapshot.native_pack(), since).await?;
            }
            native.make_pack(PACKED_VERIFICATION_AGE).await?;
        }
        Ok(native)
    }

    /// The native snapshot of an already mounted `snapshot`. It keeps the local part of its pack.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub async fn reopen(engine: &Engine, snapshot: Arc<Snapshot>) -> Result<Self> {
        let native = Self::open(engine, snapshot).await?;
        if let Some(pack) = native.pack.clone() {
            blocking(move || pack.hold()).await?;
        }
        Ok(native)
    }

    /// Lays out `snapshot`.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for what an image can't hold, [`Kind::Corrupt`] when the manifest is, [`Kind::Disk`].
    async fn open(engine: &Engine, snapshot: Arc<Snapshot>) -> Result<Self> {
        let (measured, cache) = (snapshot.clone(), engine.resources().cache.clone());
        let layout =
            blocking(move || DataLayout::new(measured.manifest(), block_bits(cache.layout())?)).await?;
        let layout = Arc::new(layout);
        let mut pack = None;
        if layout.has_pack() {
            let origin = Arc::new(AlignedPack::new(snapshot.clone(), layout.clone()));
            let made = engine.snapshot(origin, Patterns::default()).await?;
            snapshot.set_native_pack(&made);
            pack = Some(made);
        }
        Ok(Self { tenant: engine.tenant().to_owned(), snapshot, layout, pack })
    }

    /// The tenant that the snapshot belongs to.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The snapshot.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The paths of the devices of its image, in order, which hold as long as this lives. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] where one has another length than its content: the kernel would read zeros behind its end.
    pub fn devices(&self) -> Result<Vec<PathBuf>> {
        self.device_blobs().map(|(snapshot, blob)| device(snapshot, blob)).collect()
    }

    /// The blobs of its devices, and whether the cache has them whole. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is.
    pub fn devices_whole(&self) -> Result<Vec<(Key, bool)>> {
        let look = |(snapshot, blob): (&Arc<Snapshot>, u32)| {
            let (key, size) = (snapshot.manifest().key(blob)?, snapshot.manifest().blob_size(blob)?);
            Ok((key, snapshot.resources().cache.has(&key, size)))
        };
        self.device_blobs().map(look).collect()
    }

    fn device_blobs(&self) -> impl Iterator<Item = (&Arc<Snapshot>, u32)> {
        let pack = self.pack.iter().map(|pack| (pack, 0));
        pack.chain(self.layout.device_blobs().iter().map(|blob| (&self.snapshot, *blob)))
    }

    /// Writes its image to `out`. Blocks on the local disk.
    ///
    /// # Errors
    /// Those of [`image::write`].
    pub fn write_image(&self, options: &ImageOptions, out: impl Write) -> Result<()> {
        image::write(&self.snapshot, &self.layout, options, out)
    }

    /// The snapshot that has the device `key` of the image, and the blob's number there; `None` where it is no device.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is.
    pub fn device_of(&self, key: &Key) -> Result<Option<(Arc<Snapshot>, u32)>> {
        if let Some(pack) = &self.pack
            && pack.manifest().key(0)? == *key
        {
            return Ok(Some((pack.clone(), 0)));
        }
        for blob in self.layout.device_blobs() {
            if self.snapshot.manifest().key(*blob)? == *key {
                return Ok(Some((self.snapshot.clone(), *blob)));
            }
        }
        Ok(None)
    }

    /// Fetches again what the cache has lost of the devices that are blobs of `owner`, as [`device_of`](Self::device_of) tells it.
    ///
    /// # Errors
    /// Those of the tiers, [`Kind::Corrupt`] when the manifest is, [`Kind::Disk`].
    pub async fn stage_again(&self, owner: &Arc<Snapshot>) -> Result<()> {
        if self.pack.as_ref().is_some_and(|pack| Arc::ptr_eq(pack, owner)) {
            // What has damaged the pack may have damaged what it is made of.
            return self.make_pack(Duration::ZERO).await;
        }
        owner.stage_again();
        owner.stage().done().await
    }

    /// Makes the pack, unless it is whole, of blobs that were verified within `age`.
    async fn make_pack(&self, age: Duration) -> Result<()> {
        let Some(pack) = &self.pack else { return Ok(()) };
        for _ in 0..PACK_ATTEMPT_LIMIT {
            let made = pack.clone();
            if blocking(move || made.is_whole()).await? {
                return Ok(());
            }
            self.verify_packed(age).await?;
            let sources = self.packed_sources().await?;
            pack.stage_again();
            pack.stage().done().await?;
            // What was replaced meanwhile may be in the pack as it was before.
            if let Some(sources) = sources
                && self.packed_sources().await? == Some(sources)
            {
                let pack = pack.clone();
                if blocking(move || packed_sources::note(&pack, &sources)).await? {
                    return Ok(());
                }
                continue;
            }
            self.withdraw_stale_pack(true).await?;
        }
        Err(Error::new(Kind::Disk, "small files are replaced as soon as a pack is made of them"))
    }

    /// Withdraws the pack, as what is damaged, where a blob that it is made of was removed or fetched again since: its own digest
    /// would prove wrong bytes right that were copied from there. `have_changed`: it is known that some did.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is, [`Kind::Disk`].
    pub async fn withdraw_stale_pack(&self, have_changed: bool) -> Result<()> {
        let Some(pack) = self.pack.clone() else { return Ok(()) };
        let (snapshot, layout) = (self.snapshot.clone(), self.layout.clone());
        blocking(move || packed_sources::withdraw_stale(&pack, &snapshot, &layout, have_changed)).await
    }

    async fn packed_sources(&self) -> Result<Option<Digest>> {
        let (snapshot, layout) = (self.snapshot.clone(), self.layout.clone());
        blocking(move || packed_sources::current(&snapshot, &layout)).await
    }

    /// Verifies what the pack is made of, but for what was verified within `age`, and fetches again what is damaged, or can't be
    /// verified: the pack's digest would prove wrong bytes right.
    async fn verify_packed(&self, age: Duration) -> Result<()> {
        let cache = self.snapshot.resources().cache.clone();
        let since = verification_time::seconds(cache.now() - age) + 1;
        for attempt in 0..PACKED_FETCH_LIMIT {
            let (snapshot, layout) = (self.snapshot.clone(), self.layout.clone());
            // What was verified in the future was not: the clock was wrong.
            let period = since..=verification_time::seconds(cache.now());
            let verify = move || {
                if attempt == 0 {
                    packed_sources::withdraw_unverifiable(&snapshot, &layout, &period)?;
                }
                packed_sources::are_right(&snapshot, &layout, &period)
            };
            if blocking(verify).await? {
                return Ok(());
            }
            self.snapshot.stage_again();
            self.snapshot.stage().done().await?;
        }
        Err(Error::new(Kind::Disk, "small files are damaged or removed as soon as they are fetched"))
    }

    /// The inode number of what the cache has of the device `key`, whole or not; `None` where it has nothing. Touches the local
    /// disk.
    pub fn device_inode(&self, key: &Key) -> Option<u64> {
        let layout = self.snapshot.resources().cache.layout();
        let found = [BlobFile::Part, BlobFile::Whole].into_iter().find_map(|form| layout.stat(key, form));
        found.map(|stat| stat.st_ino)
    }

    /// The files of which bytes lie in one of `ranges` of the device `key`, each its first byte and its length; and what of them
    /// lies on that device.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is.
    pub fn files_at(&self, key: &Key, ranges: &[(u64, u64)]) -> Result<Vec<(u32, DevicePart)>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let in_pack = self.pack.as_ref().is_some_and(|pack| pack.manifest().key(0).ok() == Some(*key));
        let files = if in_pack { self.layout.packed_files(ranges) } else { self.snapshot.files_of(key)? };
        let part = |entry| {
            let Node::File(slice) = self.snapshot.manifest().entry(entry)?.node else { return Ok(None) };
            Ok(Some((entry, self.layout.device_part(entry, slice.len, in_pack))))
        };
        files.into_iter().filter_map(|entry| part(entry).transpose()).collect()
    }

    /// Releases the snapshot and its pack, which are no longer used.
    pub async fn release(&self) {
        if let Some(pack) = &self.pack {
            pack.release().await;
        }
    }
}

/// The path of the file that has all of a blob. It begins with a descriptor: the kernel takes no more than 255 bytes.
fn device(snapshot: &Snapshot, blob: u32) -> Result<PathBuf> {
    use std::os::fd::AsRawFd;
    let (key, size) = (snapshot.manifest().key(blob)?, snapshot.manifest().blob_size(blob)?);
    let layout = snapshot.resources().cache.layout();
    if !layout.has(&key, size) {
        let text = format!("blob {key} is no longer whole in the cache");
        return Err(Error::new(Kind::Corrupt, text));
    }
    let blobs = layout.blobs().as_fd().as_raw_fd();
    Ok(PathBuf::from(format!("/proc/self/fd/{blobs}/{}", CacheLayout::name(&key, BlobFile::Whole))))
}

/// The size of blocks that the cache's disk can be read in past the page cache.
fn block_bits(layout: &CacheLayout) -> Result<u8> {
    // A file of the disk tells what its directories don't.
    let probe = Key::origin("native", b"probe", b"");
    let file = layout.create_blob(&probe, BlobFile::Part)?;
    let told = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    layout.remove(&probe, BlobFile::Part)?;
    let align = told.map_or(0, |stat| stat.stx_dio_offset_align);
    Ok(if (1..=1 << SMALL_BLOCK_BITS).contains(&align) { SMALL_BLOCK_BITS } else { PAGE_BLOCK_BITS })
}
