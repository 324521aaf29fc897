//! Native mounts beside FUSE mounts of the same snapshots. Needs root, and Linux 6.12 or newer.

mod packed_rot;
mod repair_failures;
mod trees;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bdnfs::cache::Limits;
use bdnfs::cache::directory::CacheDirectory;
use bdnfs::engine::{Config, Engine};
use bdnfs::mirror::Mirror;
use bdnfs::mirroring::{MirrorConfig, MirrorProgress, MirrorSource, PreviousState, mirror_source};
use bdnfs::origin;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns};
use bdnfs::tier::Origin;
use bdnfs::tier::lazy_origin::OriginOpener;
use futures_util::FutureExt;
use futures_util::future::ready;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::*;
use crate::Mount;

/// The superblocks of a process that starts, with the images in `home`.
fn superblocks(home: &Path) -> Superblocks {
    let home = CacheDirectory::open(home).expect("a directory");
    Superblocks::open(&home).expect("a directory")
}

/// A fixture of a cache and a source.
struct NativeFixture {
    home: TempDir,
    runtime: Runtime,
    engine: Engine,
    superblocks: Superblocks,
}

impl NativeFixture {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        for name in ["source", "fuse", "native", "others"] {
            fs::create_dir(home.path().join(name)).expect("made");
        }
        let runtime = Runtime::new().expect("a runtime");
        let config = Config {
            cache: home.path().join("cache"),
            tenant: "default".into(),
            limits: Limits { capacity: None, reserve: 0 },
            quotas: BTreeMap::new(),
            memory: 64 << 20,
            now: SystemTime::now,
        };
        let engine = Engine::open(&config, runtime.handle().clone()).expect("a cache");
        let superblocks = superblocks(home.path());
        Self { home, runtime, engine, superblocks }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn origin(&self) -> Arc<dyn Origin> {
        let uri = format!("file://{}", self.path("source").display()).parse().expect("a source");
        self.runtime.block_on(origin::open(&uri, &Access::default())).expect("a directory")
    }

    fn staged(&self) -> Arc<Snapshot> {
        self.staged_from(self.origin())
    }

    fn staged_from(&self, origin: Arc<dyn Origin>) -> Arc<Snapshot> {
        self.runtime.block_on(async {
            stage(self.engine.snapshot(origin, Patterns::default()).await.expect("listed")).await
        })
    }

    /// Mirrors `origin` to a directory, and stages it from there.
    fn staged_mirrored(&self, origin: Arc<dyn Origin>) -> Arc<Snapshot> {
        let uri = format!("file://{}", self.path("mirror").display()).parse().expect("a mirror");
        let mirror = Mirror::open(&uri, &Access::default(), "default", self.home.path().to_owned());
        let mirror = mirror.expect("a mirror");
        let source = MirrorSource {
            name: origin.name().to_owned(),
            identity: origin.identity(),
            executable: Vec::new(),
            patterns: Patterns::default(),
            origin: origin.clone(),
            hash_first: false,
            previous: PreviousState::default(),
        };
        let opener: OriginOpener = Box::new(move || ready(Ok(origin.clone())).boxed());
        self.runtime.block_on(async {
            let (config, progress) = (MirrorConfig { memory: 64 << 20 }, MirrorProgress::default());
            let mirrored = mirror_source(&mirror, &source, config, &progress).await.expect("mirrored");
            stage(self.engine.mirrored(&mirror, &mirrored.latest_ref, opener).await.expect("opened")).await
        })
    }

    fn native(&self, snapshot: &Arc<Snapshot>) -> Arc<NativeSnapshot> {
        let prepared = NativeSnapshot::prepare(&self.engine, snapshot.clone());
        Arc::new(self.runtime.block_on(prepared).expect("prepared"))
    }

    fn mount(&self, native: &Arc<NativeSnapshot>, options: &Options) -> NativeMount {
        NativeMount::new(&self.superblocks, native, &self.path("native"), options).expect("mounted")
    }

    /// Waits until a repair has made something right.
    fn await_repair(&self, is_right: impl Fn() -> bool) {
        let repaired = async {
            while !is_right() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let repaired = async { tokio::time::timeout(Duration::from_secs(60), repaired).await };
        self.runtime.block_on(repaired).expect("repaired");
    }
}

/// Leases and stages `snapshot`.
async fn stage(snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
    snapshot.hold().expect("leased");
    snapshot.stage().done().await.expect("staged");
    snapshot
}

#[test]
fn native_mount_whose_root_does_not_fit_into_the_first_block_is_mounted() {
    for len in (1..=241).step_by(20) {
        let fixture = NativeFixture::new();
        let names = ["a", "b"].map(|name| name.repeat(len));
        names
            .iter()
            .for_each(|name| fs::write(fixture.path("source").join(name), "content").expect("written"));
        let mounted = fixture.mount(&fixture.native(&fixture.staged()), &Options::default());
        for name in &names {
            assert_eq!(fs::read(fixture.path("native").join(name)).expect("read"), b"content");
        }
        drop(mounted);
    }
}

#[test]
fn native_mount_that_is_kept_stays_and_is_resumed() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let snapshot = fixture.staged();
    let native = fixture.native(&snapshot);
    let mounted = fixture.mount(&native, &Options::default());
    mounted.keep();
    drop(mounted);
    assert_eq!(fs::read(fixture.path("native/file")).expect("read"), b"content");
    assert_eq!(fs::read_dir(fixture.path("images")).expect("read").count(), 0);
    let again =
        NativeMount::resume(&fixture.superblocks, &native, &fixture.path("native"), &Options::default())
            .expect("a table")
            .expect("it is there");
    assert!(
        NativeMount::resume(&fixture.superblocks, &native, &fixture.path("fuse"), &Options::default())
            .expect("a table")
            .is_none()
    );
    again.unmount().expect("unmounted");
    fixture.runtime.block_on(again.await_end());
    assert!(!fixture.path("native/file").exists());
}

#[test]
fn native_mount_that_another_mount_covers_is_resumed_and_stays_covered() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let native = fixture.native(&fixture.staged());
    let mounted = fixture.mount(&native, &Options::default());
    mounted.keep();
    drop(mounted);
    let (at, cover) = (fixture.path("native"), fixture.path("others"));
    fs::write(cover.join("cover"), "").expect("written");
    rustix::mount::mount_bind(&cover, &at).expect("bound");
    let resumed = NativeMount::resume(&fixture.superblocks, &native, &at, &Options::default());
    let again = resumed.expect("a table").expect("it is there");
    assert!(at.join("cover").exists() && !again.is_on_top());
    assert_eq!(again.unmount().expect_err("covered").kind(), Kind::Busy);
    let soon = async { timeout(Duration::from_secs(1), again.await_end()).await };
    assert!(fixture.runtime.block_on(soon).is_err(), "it is mounted");
    rustix::mount::unmount(&at, UnmountFlags::empty()).expect("uncovered");
    assert_eq!(fs::read(at.join("file")).expect("read"), b"content");
    again.unmount().expect("unmounted");
    fixture.runtime.block_on(again.await_end());
}

#[test]
fn native_mount_replaces_a_fuse_mount_that_nobody_uses() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let snapshot = fixture.staged();
    let native = fixture.native(&snapshot);
    let at = fixture.path("fuse");
    let fuse =
        Mount::new(snapshot, fixture.runtime.handle().clone(), &at, &Options::default()).expect("mounted");
    let replace = || NativeMount::replace(&fixture.superblocks, &fuse, &native, &Options::default());
    let open_file = || fs::File::open(at.join("file")).expect("open");
    let open = open_file();
    assert!(replace().expect("no error").is_none());
    assert!(!mounts::at(&at).expect("a table").expect("mounted").is_native());
    drop(open);
    // Whoever is about to be gone is waited for; on a busy machine it may be about to for longer.
    let attempts = std::iter::repeat_with(|| {
        let open = open_file();
        std::thread::scope(|scope| {
            scope.spawn(move || (std::thread::sleep(Duration::from_millis(100)), drop(open)));
            replace().expect("no error")
        })
    });
    let replaced = attempts.flatten().next().expect("nobody uses it");
    fixture.runtime.block_on(fuse.await_end());
    assert!(mounts::at(&at).expect("a table").expect("mounted").is_native());
    assert_eq!(fs::read(at.join("file")).expect("read"), b"content");
    replaced.unmount().expect("unmounted");
    assert_eq!(mounts::at(&at).expect("a table"), None);
}

#[test]
fn native_mount_ends_with_its_last_bind() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let snapshot = fixture.staged();
    let native = fixture.native(&snapshot);
    let mounted = fixture.mount(&native, &Options::default());
    let copy = crate::mount_copy::DetachedMount::copy_of(&fixture.path("native")).expect("copied");
    copy.attach(fs::File::open(fixture.path("fuse")).expect("open")).expect("bound");
    mounted.unmount().expect("unmounted");
    let soon = |mounted: &NativeMount| {
        fixture.runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(500), mounted.await_end()).await.is_ok()
        })
    };
    assert!(!soon(&mounted));
    mounts::detach(&fixture.path("fuse")).expect("detached");
    fixture.runtime.block_on(mounted.await_end());
}

#[test]
fn native_mount_that_another_mount_covers_is_neither_unmounted_nor_forgotten() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let native = fixture.native(&fixture.staged());
    let mounted = fixture.mount(&native, &Options::default());
    let at = fixture.path("native");
    rustix::mount::mount("none", &at, "tmpfs", rustix::mount::MountFlags::empty(), c"").expect("covered");
    for refused in [mounted.unmount(), mounted.detach()] {
        let error = refused.expect_err("it is covered");
        assert_eq!((error.kind(), error.to_string().contains("another mount covers")), (Kind::Busy, true));
    }
    assert_eq!(mounts::at(&at).expect("a table").expect("the cover").kind, "tmpfs");
    mounts::unmount(&at).expect("uncovered");
    assert_eq!(fs::read(at.join("file")).expect("read"), b"content");
    mounted.unmount().expect("unmounted");
    mounted.unmount().expect("gone already");
    assert_eq!(mounts::at(&at).expect("a table"), None);
}

#[test]
fn native_mount_that_another_mount_covers_fails_to_drop_pages() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), vec![7; 3 << 20]).expect("written");
    let native = fixture.native(&fixture.staged());
    let mounted = fixture.mount(&native, &Options::default());
    let device = fs::File::open(native.devices().expect("whole").pop().expect("a device")).expect("open");
    let manifest = native.snapshot().manifest();
    let key = (0..manifest.blobs()).map(|blob| manifest.key(blob).expect("a key")).next().expect("a blob");
    let drop_pages = || mounted.superblock.drop_pages(&key, None, &device);
    assert_eq!(drop_pages().expect("dropped").files, "file");
    let at = fixture.path("native");
    rustix::mount::mount("none", &at, "tmpfs", rustix::mount::MountFlags::empty(), c"").expect("covered");
    fs::write(at.join("file"), "another").expect("written");
    let error = drop_pages().expect_err("it is covered").to_string();
    assert!(error.contains("file cannot be reached"), "{error}");
    mounts::unmount(&at).expect("uncovered");
    assert_eq!(drop_pages().expect("dropped").files, "file");
}

#[test]
fn wrong_pages_that_are_mapped_are_dropped_when_they_no_longer_are() {
    let fixture = NativeFixture::new();
    let bytes = vec![7; 3 << 20];
    fs::write(fixture.path("source/file"), &bytes).expect("written");
    let native = fixture.native(&fixture.staged());
    let mounted = fixture.mount(&native, &Options::default());
    let device = native.devices().expect("whole").pop().expect("a device");
    let device = fs::File::options().read(true).write(true).open(device).expect("open");
    let (key, _) = native.devices_whole().expect("a manifest").pop().expect("a device");
    device.write_all_at(&[8], 1 << 20).expect("written");
    let file = fs::File::open(fixture.path("native/file")).expect("open");
    // SAFETY: the file is mapped for reading, and read by nobody else through this map.
    let mapped = unsafe { memmap2::Mmap::map(&file) }.expect("mapped");
    assert_eq!(mapped[1 << 20], 8);
    device.write_all_at(&[7], 1 << 20).expect("written");
    let drop_pages = || mounted.superblock.drop_pages(&key, None, &device).expect("it can be reached").is_all;
    let is_right = || fs::read(fixture.path("native/file")).expect("read") == bytes;
    assert!(!drop_pages() && !is_right());
    drop(mapped);
    assert!(drop_pages() && is_right());
}

#[test]
fn native_mount_of_a_blob_that_was_truncated_is_refused() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), vec![7; 3 << 20]).expect("written");
    let snapshot = fixture.staged();
    let native = fixture.native(&snapshot);
    let blobs = fixture.path("cache/tenants/default/blobs");
    let blob = fs::read_dir(blobs)
        .expect("read")
        .flat_map(|shard| fs::read_dir(shard.expect("a shard").path()).expect("read"));
    for blob in blob {
        let path = blob.expect("a blob").path();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        fs::OpenOptions::new().write(true).open(path).expect("open").set_len(4096).expect("cut");
    }
    let refused =
        NativeMount::new(&fixture.superblocks, &native, &fixture.path("native"), &Options::default());
    assert_eq!(refused.expect_err("refused").kind(), Kind::Corrupt);
}

#[test]
fn native_mounts_of_one_snapshot_share_a_superblock_until_the_last_has_ended() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let snapshot = fixture.staged();
    let at = |name: &str, options: &Options| {
        let native = fixture.native(&snapshot);
        NativeMount::new(&fixture.superblocks, &native, &fixture.path(name), options).expect("mounted")
    };
    let device = |name: &str| fs::metadata(fixture.path(name)).expect("mounted").dev();
    let (first, second) = (at("native", &Options::default()), at("fuse", &Options::default()));
    let others = at("others", &Options { uid: Some(7), ..Options::default() });
    assert_eq!(device("native"), device("fuse"));
    assert_ne!(device("native"), device("others"));
    first.unmount().expect("unmounted");
    fixture.runtime.block_on(first.await_end());
    assert_eq!(fs::read(fixture.path("fuse/file")).expect("read"), b"content");
    // Another process takes up what this one leaves, and knows that it is the same.
    let third = at("native", &Options::default());
    assert_eq!(device("native"), device("fuse"));
    [&second, &third].iter().for_each(|mounted| mounted.keep());
    drop((first, second, third));
    let superblocks = superblocks(fixture.home.path());
    let native = fixture.native(&snapshot);
    let [second, third] = ["fuse", "native"].map(|name| {
        let taken = NativeMount::resume(&superblocks, &native, &fixture.path(name), &Options::default());
        taken.expect("a table").expect("it is there")
    });
    drop(second);
    assert!(!fixture.path("fuse/file").exists());
    assert_eq!(fs::read(fixture.path("native/file")).expect("read"), b"content");
    drop((third, others));
    let left = mounts::all()
        .expect("a table")
        .into_iter()
        .filter(|mounted| mounted.mountpoint.starts_with(fixture.home.path()));
    assert_eq!(left.count(), 0);
}

#[test]
fn native_mount_that_another_namespace_shows_has_not_ended() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), "content").expect("written");
    let snapshot = fixture.staged();
    let mounted = fixture.mount(&fixture.native(&snapshot), &Options::default());
    let mut container = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "cat"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("util-linux");
    let command = format!("/proc/{}/comm", container.id());
    while fs::read_to_string(&command).expect("it runs") != "cat\n" {
        std::thread::yield_now();
    }
    mounted.unmount().expect("unmounted");
    let soon = || {
        fixture.runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(500), mounted.await_end()).await.is_ok()
        })
    };
    assert!(!fixture.path("native/file").exists() && !soon());
    drop(container.stdin.take());
    container.wait().expect("it ends");
    fixture.runtime.block_on(mounted.await_end());
}
