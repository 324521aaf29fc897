//! Mounts whose origin, or whose cache, has wrong bytes. Needs `/dev/fuse`, and root for passthrough.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod kit;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bdnfs::blob::Blob;
use bdnfs::cache::scrub;
use bdnfs::error::Result;
use bdnfs::manifest::{ListedFile, Listing};
use bdnfs::tier::{Body, Origin, Tier, TierKind, Urgency};
use bdnfs_fs::Options;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use kit::{LARGE_FILE_BYTES, Mounted, noise};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

/// The byte that the origin flips, where a file has it.
const FLIPPED_OFFSET: usize = 4321;
/// The time that a mount may take to heal: several of the longest backoffs that a test sees.
const HEAL_TIMEOUT: Duration = Duration::from_secs(60);

/// An origin that publishes the SHA-256 of what it has, and sends it with one flipped byte for as long as it is told to.
#[derive(Debug)]
struct FlippingOrigin {
    files: BTreeMap<Vec<u8>, Bytes>,
    flips: AtomicBool,
}

impl Tier for FlippingOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let range = range.start as usize..range.end as usize;
        let mut bytes = self.files[&blob.path[..]][range.clone()].to_vec();
        if self.flips.load(SeqCst) && range.contains(&FLIPPED_OFFSET) {
            bytes[FLIPPED_OFFSET - range.start] ^= 1;
        }
        async move { Ok(Some(stream::iter([Ok(bytes.into())]).boxed())) }.boxed()
    }
}

impl Origin for FlippingOrigin {
    fn name(&self) -> &str {
        "memory:///flipping, 1"
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        for (path, content) in &self.files {
            let (size, sha256) = (content.len() as u64, Some(Sha256::digest(content).into()));
            listing.file(ListedFile { path, size, mtime: (0, 0), executable: false, version: b"1", sha256 });
        }
        async { Ok(()) }.boxed()
    }
}

/// A mount whose origin or cache can be made to have wrong bytes.
struct FaultyMount {
    tree: Mounted,
    origin: Arc<FlippingOrigin>,
}

impl FaultyMount {
    fn new(files: &[(&str, &[u8])], flips: bool, options: Options) -> Self {
        let files =
            files.iter().map(|(path, bytes)| (path.as_bytes().to_vec(), Bytes::copy_from_slice(bytes)));
        let origin = Arc::new(FlippingOrigin { files: files.collect(), flips: AtomicBool::new(flips) });
        Self { tree: Mounted::new(origin.clone(), options), origin }
    }

    /// Makes everything local.
    fn stage(&self) {
        self.tree.runtime.block_on(self.tree.snapshot.stage().done()).unwrap();
    }

    /// Makes `byte` of one byte of the cache's only file whose name ends with `suffix`, and begins with no other.
    fn rot(&self, suffix: &str, byte: u8) {
        let shards = fs::read_dir(self.tree.dir.path().join("cache/tenants/test/blobs")).unwrap().flatten();
        let files = shards.flat_map(|shard| fs::read_dir(shard.path()).unwrap().flatten());
        let named = |path: &PathBuf| path.extension().map_or("", |e| e.to_str().unwrap()) == suffix;
        let file = files.map(|file| file.path()).find(named).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let file = File::options().write(true).open(&file).unwrap();
        file.write_all_at(&[byte], FLIPPED_OFFSET as u64).unwrap();
    }

    /// Returns what `bdnfs cache verify` finds damaged, or still open.
    fn verify(&self) -> Vec<String> {
        let cache = self.tree.engine.cache().tenant("test").unwrap();
        let found = scrub::scrub(&cache, &AtomicBool::new(false)).unwrap();
        [found.damaged, found.still_open].concat()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.tree.path(name.as_bytes())
    }
}

/// Waits until `healed`.
fn eventually(what: &str, mut healed: impl FnMut() -> bool) {
    let began = Instant::now();
    while !healed() {
        assert!(began.elapsed() < HEAL_TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn mount_of_file_of_one_flight_with_flipped_byte_delivers_none_of_it() {
    for (name, size) in [("tiny", 30_000), ("small", 1 << 20), ("more", (3 << 20) + 5)] {
        let content = noise(size);
        let tree = FaultyMount::new(&[(name, &content)], true, Options::default());
        let file = File::open(tree.path(name)).unwrap();
        let mut first = [0; 4096];
        let error = file.read_exact_at(&mut first, 0).expect_err("it is not what was published");
        assert_eq!(error.raw_os_error(), Some(Errno::BADMSG.raw_os_error()), "{name}");
        tree.origin.flips.store(false, SeqCst);
        assert!(fs::read(tree.path(name)).unwrap() == content, "{name} heals with its origin");
        file.read_exact_at(&mut first, 0).unwrap();
        assert!(first == content[..4096], "{name} heals for who had it open");
    }
}

#[test]
fn mount_of_refuted_file_heals_with_its_origin() {
    let content = noise(LARGE_FILE_BYTES);
    let tree = FaultyMount::new(&[("model", &content)], true, Options::default());
    let model = tree.path("model");
    let open = File::open(&model).unwrap();
    let mut first = [0; 8192];
    open.read_exact_at(&mut first, 0).unwrap();
    assert!(first != content[..8192], "a large file is read while it arrives");
    // All of it, so that it can be proved.
    eventually("it is refuted", || fs::read(&model).is_err());
    let state = |name: &str| {
        let mut value = [0; 64];
        let len = rustix::fs::getxattr(&model, name, &mut value[..]).unwrap();
        String::from_utf8_lossy(&value[..len]).into_owned()
    };
    tree.origin.flips.store(false, SeqCst);
    assert_ne!(
        state("user.bdnfs.local"),
        format!("{LARGE_FILE_BYTES}/{LARGE_FILE_BYTES}"),
        "what was refuted is not local"
    );
    eventually("new opens read anew", || fs::read(&model).is_ok_and(|bytes| bytes == content));
    open.read_exact_at(&mut first, 0).unwrap();
    assert!(first == content[..8192], "who had it open reads anew");
    eventually("it is local again", || {
        state("user.bdnfs.local") == format!("{LARGE_FILE_BYTES}/{LARGE_FILE_BYTES}")
    });
}

#[test]
fn mount_with_damaged_blob_verified_reads_anew() {
    for size in [LARGE_FILE_BYTES, 2 << 20] {
        let content = noise(size);
        let tree = FaultyMount::new(&[("model", &content)], false, Options::default());
        let model = tree.path("model");
        tree.stage();
        tree.rot("", content[FLIPPED_OFFSET] ^ 1);
        let open = File::open(&model).unwrap();
        let mut first = [0; 8192];
        open.read_exact_at(&mut first, 0).unwrap();
        assert!(first != content[..8192], "nobody looks at what the kernel reads");
        assert_eq!(tree.verify().len(), 1);
        eventually("new opens read anew", || fs::read(&model).is_ok_and(|bytes| bytes == content));
        tree.stage();
        open.read_exact_at(&mut first, 0).unwrap();
        let stale = first != content[..8192];
        assert_eq!(stale, size == LARGE_FILE_BYTES, "only a backing file stays with who has it open");
        assert_eq!(tree.verify().len(), usize::from(stale), "and verify says so");
        let reopened = File::open(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let right = |file: File| file.read_exact_at(&mut first, 0).is_ok() && first == content[..8192];
        assert_eq!(reopened.is_ok_and(right), !stale, "no open leads there any more");
        drop(open);
        eventually("all is well", || tree.verify().is_empty());
        assert!(fs::read(&model).unwrap() == content);
    }
}

#[test]
fn mount_with_damaged_part_verified_reads_anew() {
    let content = noise(LARGE_FILE_BYTES);
    let tree = FaultyMount::new(&[("model", &content)], false, Options::default());
    let model = tree.path("model");
    let mut first = [0; 8192];
    let open = || File::open(&model).unwrap();
    open().read_exact_at(&mut first, 0).unwrap();
    // Its first block is in the cache only, once the file is closed.
    eventually("the kernel reads from the cache", || {
        rustix::fs::fadvise(open(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        tree.rot("part", content[FLIPPED_OFFSET] ^ 1);
        let file = open();
        file.read_exact_at(&mut first, 0).unwrap();
        let wrong = first != content[..8192];
        if !wrong {
            tree.rot("part", content[FLIPPED_OFFSET]);
        }
        wrong
    });
    let file = open();
    assert_eq!(tree.verify().len(), 1);
    eventually("who has it open reads anew", || {
        file.read_exact_at(&mut first, 0).unwrap();
        first == content[..8192]
    });
    assert!(fs::read(&model).unwrap() == content);
    assert!(tree.verify().is_empty());
}

#[test]
fn steady_mount_with_damaged_blob_refuses_opens_beside_its_open_backing_file() {
    let content = noise(LARGE_FILE_BYTES);
    let steady = Options { steady: true, ..Options::default() };
    let mut mount = FaultyMount::new(&[("model", &content)], false, steady);
    let (model, passthrough) = (mount.path("model"), mount.tree.mount.passthrough());
    mount.stage();
    mount.rot("", content[FLIPPED_OFFSET] ^ 1);
    let stale = File::open(&model).unwrap();
    let mut first = [0; 8192];
    stale.read_exact_at(&mut first, 0).unwrap();
    assert!(first != content[..8192], "nobody looks at what the kernel reads");
    assert_eq!(mount.verify().len(), 1);
    let opened = || match fs::read(&model) {
        Ok(bytes) => bytes == content,
        Err(error) => passthrough && error.raw_os_error() == Some(Errno::BADMSG.raw_os_error()),
    };
    eventually("no open is wrong", opened);
    for _ in 0..2 {
        mount.tree.take_over();
        assert!(opened(), "the next server knows it");
    }
    drop(stale);
    let right = || fs::read(&model).is_ok_and(|bytes| bytes == content);
    eventually("it is opened anew", right);
    mount.stage();
    mount.tree.take_over();
    assert!(right());
    let served = mount.tree.settled_traffic();
    assert!(right());
    if passthrough {
        assert_eq!(mount.tree.settled_traffic(), served, "the kernel reads it by itself again");
    }
}
