//! Native mounts beside FUSE mounts of the same snapshots. Needs root, and Linux 6.12 or newer.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::SystemTime;

use bdnfs::cache::Limits;
use bdnfs::engine::{Config, Engine};
use bdnfs::origin;
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{Access, Patterns};
use proptest::prelude::*;
use proptest::sample::select;
use rustix::fs::{lgetxattr, llistxattr};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;
use crate::Mount;

/// A machine with a cache and a source.
struct NativeBench {
    home: TempDir,
    runtime: Runtime,
    engine: Engine,
}

impl NativeBench {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        for name in ["source", "images", "fuse", "native"] {
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
        Self { home, runtime, engine }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn staged(&self) -> Arc<Snapshot> {
        let uri = format!("file://{}", self.path("source").display()).parse().expect("a source");
        self.runtime.block_on(async {
            let origin = origin::open(&uri, &Access::default()).await.expect("a directory");
            let snapshot = self.engine.snapshot(origin, Patterns::default()).await.expect("listed");
            snapshot.hold().expect("leased");
            snapshot.stage().done().await.expect("staged");
            snapshot
        })
    }

    fn native(&self, snapshot: &Arc<Snapshot>) -> Arc<NativeSnapshot> {
        let prepared = NativeSnapshot::prepare(&self.engine, snapshot.clone());
        Arc::new(self.runtime.block_on(prepared).expect("prepared"))
    }

    fn mount(&self, native: &Arc<NativeSnapshot>, options: &Options) -> NativeMount {
        NativeMount::new(native, &self.path("native"), &self.path("images"), options).expect("mounted")
    }
}

/// What a program can see of a tree, but for what depends on the kind of file system.
fn seen(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut seen, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let stat = fs::symlink_metadata(&path).expect("there");
        let mut text = format!(
            "{:o} {}:{} {}.{:09} {}.{:09} {}.{:09}",
            stat.mode(),
            stat.uid(),
            stat.gid(),
            stat.mtime(),
            stat.mtime_nsec(),
            stat.atime(),
            stat.atime_nsec(),
            stat.ctime(),
            stat.ctime_nsec()
        );
        if stat.is_dir() {
            left.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("an entry").path()));
        } else if stat.is_symlink() {
            text += &format!(" -> {:?}", fs::read_link(&path).expect("a link"));
        } else {
            let bytes = fs::read(&path).expect("read");
            assert_eq!(bytes.len() as u64, stat.len());
            text += &format!(" {} {} {}", stat.len(), stat.nlink(), blake3_of(&bytes));
        }
        let mut names = vec![0; 4096];
        let len = llistxattr(&path, &mut names[..]).expect("listed");
        for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 65536];
            let len = lgetxattr(&path, name, &mut value[..]).expect("there");
            text += &format!(" {}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(&value[..len]));
        }
        seen.insert(path.strip_prefix(root).expect("below").to_owned(), text);
    }
    seen
}

fn blake3_of(bytes: &[u8]) -> String {
    bdnfs::digest::Digest::of(bytes).to_string()
}

#[derive(Debug, Clone)]
enum What {
    File { size: usize, executable: bool },
    Link(String),
    Directory,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[!-.0-~]{1,12}".prop_filter("a name", |name| name != "." && name != ".."),
        select(vec!["x".repeat(255), "-".into(), "...".into(), "é ".into()]),
    ]
}

fn entry() -> impl Strategy<Value = (Vec<String>, What)> {
    let sizes = prop_oneof![
        4 => 0usize..3000,
        1 => select(vec![0usize, 1, 511, 512, 513, 4095, 4096, 4097]),
        1 => select(vec![1usize << 20, (1 << 20) + 1, (2 << 20) + 777]),
    ];
    let what = prop_oneof![
        6 => (sizes, any::<bool>()).prop_map(|(size, executable)| What::File { size, executable }),
        1 => "[a-z/.]{1,40}".prop_map(What::Link),
        1 => Just(What::Link("y".repeat(900))),
        1 => Just(What::Directory),
    ];
    (prop::collection::vec(name(), 1..4), what)
}

/// Makes `entries` below `root`; what has no place there is left out.
fn make(root: &Path, entries: &[(Vec<String>, What)]) {
    for (number, (path, what)) in entries.iter().enumerate() {
        let path = path.iter().fold(root.to_owned(), |at, name| at.join(name));
        let Some(parent) = path.parent() else { continue };
        if fs::create_dir_all(parent).is_err() || path.symlink_metadata().is_ok() {
            continue;
        }
        match what {
            What::Directory => fs::create_dir(&path).expect("made"),
            What::Link(target) => symlink(target, &path).expect("linked"),
            What::File { size, executable } => {
                let bytes: Vec<u8> = (0..*size).map(|at| (at * 31 + number * 7 + at / 251) as u8).collect();
                fs::write(&path, bytes).expect("written");
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn native_mount_of_any_tree_is_like_a_fuse_mount(
        entries in prop::collection::vec(entry(), 1..60),
        allow_other: bool,
    ) {
        let bench = NativeBench::new();
        make(&bench.path("source"), &entries);
        fs::write(bench.path("source/one"), "file").expect("written");
        let snapshot = bench.staged();
        let control = Some(PathBuf::from("/run/bdnfs.sock"));
        let options = Options { uid: Some(70_000), gid: Some(7), allow_other: true, control, ..Options::default() };
        let fuse = Mount::new(snapshot.clone(), bench.runtime.handle().clone(), &bench.path("fuse"), &options)
            .expect("mounted");
        let native = bench.native(&snapshot);
        let mounted = bench.mount(&native, &Options { allow_other, ..options });
        let (mut expected, got) = (seen(&bench.path("fuse")), seen(&bench.path("native")));
        if !allow_other {
            for text in expected.values_mut().filter(|text| !text.starts_with("12")) {
                let mode = u32::from_str_radix(text.split(' ').next().expect("a mode"), 8).expect("octal");
                *text = text.replacen(&format!("{mode:o}"), &format!("{:o}", mode & !0o077), 1);
            }
        }
        prop_assert_eq!(expected, got);
        drop((fuse, mounted));
    }
}

#[test]
fn native_mount_that_is_kept_stays_and_is_taken_up_again() {
    let bench = NativeBench::new();
    fs::write(bench.path("source/file"), "content").expect("written");
    let snapshot = bench.staged();
    let native = bench.native(&snapshot);
    let mounted = bench.mount(&native, &Options::default());
    mounted.keep();
    drop(mounted);
    assert_eq!(fs::read(bench.path("native/file")).expect("read"), b"content");
    assert_eq!(fs::read_dir(bench.path("images")).expect("read").count(), 0);
    let again = NativeMount::resume(&native, &bench.path("native")).expect("a table").expect("it is there");
    assert!(NativeMount::resume(&native, &bench.path("fuse")).expect("a table").is_none());
    again.unmount().expect("unmounted");
    bench.runtime.block_on(again.ended());
    assert!(!bench.path("native/file").exists());
}

#[test]
fn native_mount_replaces_a_fuse_mount_that_nobody_uses() {
    let bench = NativeBench::new();
    fs::write(bench.path("source/file"), "content").expect("written");
    let snapshot = bench.staged();
    let native = bench.native(&snapshot);
    let at = bench.path("fuse");
    let fuse =
        Mount::new(snapshot, bench.runtime.handle().clone(), &at, &Options::default()).expect("mounted");
    let replace = || NativeMount::replace(&fuse, &native, &bench.path("images"), &Options::default());
    let open = fs::File::open(at.join("file")).expect("open");
    assert!(replace().expect("no error").is_none());
    assert!(!mounts::at(&at).expect("a table").expect("mounted").is_native());
    drop(open);
    let replaced = replace().expect("no error").expect("nobody uses it");
    bench.runtime.block_on(fuse.ended());
    assert!(mounts::at(&at).expect("a table").expect("mounted").is_native());
    assert_eq!(fs::read(at.join("file")).expect("read"), b"content");
    replaced.unmount().expect("unmounted");
    assert_eq!(mounts::at(&at).expect("a table"), None);
}

#[test]
fn native_mount_ends_with_its_last_bind() {
    let bench = NativeBench::new();
    fs::write(bench.path("source/file"), "content").expect("written");
    let snapshot = bench.staged();
    let native = bench.native(&snapshot);
    let mounted = bench.mount(&native, &Options::default());
    let copy = crate::detached::DetachedMount::copy_of(&bench.path("native")).expect("copied");
    copy.attach(fs::File::open(bench.path("fuse")).expect("open")).expect("bound");
    mounted.unmount().expect("unmounted");
    let soon = |mounted: &NativeMount| {
        bench.runtime.block_on(async {
            tokio::time::timeout(Duration::from_millis(500), mounted.ended()).await.is_ok()
        })
    };
    assert!(!soon(&mounted));
    mounts::detach(&bench.path("fuse")).expect("detached");
    bench.runtime.block_on(mounted.ended());
}

#[test]
fn native_mount_of_a_blob_that_was_truncated_is_refused() {
    let bench = NativeBench::new();
    fs::write(bench.path("source/file"), vec![7; 3 << 20]).expect("written");
    let snapshot = bench.staged();
    let native = bench.native(&snapshot);
    let blobs = bench.path("cache/tenants/default/blobs");
    let blob = fs::read_dir(blobs)
        .expect("read")
        .flat_map(|shard| fs::read_dir(shard.expect("a shard").path()).expect("read"));
    for blob in blob {
        let path = blob.expect("a blob").path();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        fs::OpenOptions::new().write(true).open(path).expect("open").set_len(4096).expect("cut");
    }
    let refused =
        NativeMount::new(&native, &bench.path("native"), &bench.path("images"), &Options::default());
    assert_eq!(refused.expect_err("refused").kind(), Kind::Corrupt);
}
