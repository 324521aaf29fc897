//! The fixture of the tests of mounts: an origin in memory, and a mount over a real engine.

#![allow(dead_code, reason = "each suite uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bdnfs::blob::Blob;
use bdnfs::cache::Limits;
use bdnfs::engine::{Config, Engine};
use bdnfs::error::Result;
use bdnfs::manifest::{ListedFile, Listing};
use bdnfs::snapshot::Snapshot;
use bdnfs::source::Patterns;
use bdnfs::tier::{Body, Origin, Tier, TierKind, Urgency};
use bdnfs_fs::handover::MountDescriptors;
use bdnfs_fs::{Mount, Options};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::runtime::{Builder, Runtime};

/// Larger than any file of a tree that is mounted without opens.
pub const LARGE_FILE_BYTES: usize = (16 << 20) + 12_345;

/// An origin in memory.
#[derive(Debug)]
pub struct MemoryOrigin {
    /// Content by path.
    pub files: BTreeMap<Vec<u8>, Bytes>,
    /// The time that each fetch takes.
    pub delay: Duration,
}

impl MemoryOrigin {
    /// An origin with `files`, paths and contents, that answers at once.
    pub fn new(files: &[(&[u8], &[u8])]) -> Self {
        let content = |(path, content): &(&[u8], &[u8])| (path.to_vec(), Bytes::copy_from_slice(content));
        Self { files: files.iter().map(content).collect(), delay: Duration::ZERO }
    }
}

impl Tier for MemoryOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let content = &self.files[&blob.path[..]];
        let bytes = content.slice(range.start as usize..range.end as usize);
        let delay = self.delay;
        async move {
            tokio::time::sleep(delay).await;
            Ok(Some(stream::iter([Ok(bytes)]).boxed()))
        }
        .boxed()
    }
}

impl Origin for MemoryOrigin {
    fn name(&self) -> &str {
        "memory:///test, 1"
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        for (path, content) in &self.files {
            listing.file(ListedFile {
                path,
                size: content.len() as u64,
                mtime: (1_700_000_000, 5),
                executable: path.ends_with(b".sh"),
                version: b"1",
                sha256: None,
            });
        }
        listing.directory(b"hollow", (0, 0));
        listing.symlink(b"sub/link", b"../a", (0, 0));
        async { Ok(()) }.boxed()
    }
}

/// A mount and all that it stands on. The mount comes first, so that it also goes first.
pub struct Mounted {
    pub mount: Mount,
    pub options: Options,
    pub snapshot: Arc<Snapshot>,
    pub engine: Engine,
    pub runtime: Runtime,
    pub dir: tempfile::TempDir,
}

impl Mounted {
    /// Mounts what `origin` has, below a new directory.
    pub fn new(origin: Arc<dyn Origin>, options: Options) -> Self {
        let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("mnt")).expect("a mountpoint");
        let config = Config {
            cache: dir.path().join("cache"),
            tenant: "test".into(),
            limits: Limits { capacity: None, reserve: 0 },
            quotas: Default::default(),
            memory: 64 << 20,
            now: SystemTime::now,
        };
        let engine = Engine::open(&config, runtime.handle().clone()).expect("an engine");
        let snapshot = runtime.block_on(engine.snapshot(origin, Patterns::default())).expect("a snapshot");
        let mount = Mount::new(snapshot.clone(), runtime.handle().clone(), &dir.path().join("mnt"), &options);
        Self { mount: mount.expect("mounted"), options, snapshot, engine, runtime, dir }
    }

    /// The bytes that came from the cache through the agent, when the kernel asks for no more of its own accord.
    pub fn settled_traffic(&self) -> u64 {
        loop {
            let before = self.snapshot.traffic().cache;
            std::thread::sleep(Duration::from_millis(100));
            if self.snapshot.traffic().cache == before {
                return before;
            }
        }
    }

    /// Resumes the mount in another session, as another process would.
    pub fn take_over(&mut self) {
        let held = self.mount.descriptors().expect("descriptors").expect("needs Linux 6.9");
        self.mount.hand_over();
        // Its threads read one more request each, which they don't answer.
        let mut asking = Vec::new();
        while self.runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(100), self.mount.await_end()).await.is_err()
        }) {
            let path = self.path(format!("none-{}", asking.len()).as_bytes());
            asking.push(std::thread::spawn(move || fs::metadata(path).expect_err("missing").kind()));
        }
        let held =
            MountDescriptors::new(held.iter().map(|fd| fd.try_clone_to_owned().expect("a descriptor")));
        let (runtime, at) = (self.runtime.handle().clone(), self.dir.path().join("mnt"));
        let snapshot = self.snapshot.clone();
        let next = Mount::resume(snapshot, runtime, &at, &self.options, held.expect("all of them"));
        self.mount = next.expect("resumed");
        for asking in asking {
            assert_eq!(asking.join().expect("answered"), ErrorKind::NotFound);
        }
    }

    /// The file `name` of the mount.
    pub fn path(&self, name: &[u8]) -> PathBuf {
        self.dir.path().join("mnt").join(OsStr::from_bytes(name))
    }
}

/// Bytes of which no two blocks are alike.
pub fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
