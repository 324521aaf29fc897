//! Homes of two nodes and one mirror.

mod begun_homes;
mod busy_files;
mod interrupted_syncs;
mod odd_trees;
mod unseen_changes;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bdnfs::source::{Access, Uri};
use tempfile::TempDir;

use super::*;
use crate::volumes::cache_home::CacheScope;

const CONFIG: MirrorConfig = MirrorConfig { memory: 16 << 20 };

/// The content of a directory: by path the kind, the mode and the content.
type HomeContent = BTreeMap<PathBuf, String>;

/// A node with a home.
struct HomeNode {
    home: CacheHome,
    mirror: Mirror,
    _directory: TempDir,
}

impl HomeNode {
    fn new(mirror: &Path) -> Self {
        Self::with_volumes(mirror, Path::new(""))
    }

    /// A node whose volumes lie at the path `volumes` below a directory of its own.
    fn with_volumes(mirror: &Path, volumes: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = CacheHome::new(&directory.path().join(volumes), "t", CacheScope::Project, "p");
        let mirror =
            Mirror::open(&Uri::File(mirror.to_owned()), &Access::default(), "t", directory.path().to_owned());
        Self { home, mirror: mirror.unwrap(), _directory: directory }
    }

    fn tree(&self) -> PathBuf {
        self.home.tree()
    }

    /// Takes its sync lock, as soon as work that was given up has ended.
    async fn sync(&self) -> CacheSync {
        loop {
            if let Some(lock) = self.home.try_sync_lock().unwrap() {
                return CacheSync::new(self.home.clone(), self.mirror.clone(), Arc::new(lock));
            }
            tokio::task::yield_now().await;
        }
    }

    async fn pull(&self) -> PulledCache {
        self.sync().await.pull(&DownloadProgress::default()).await.unwrap()
    }

    async fn save(&self) -> SavedCache {
        self.mirror.init().await.unwrap();
        self.sync().await.save(CONFIG, &MirrorProgress::default()).await.unwrap()
    }

    async fn save_in_use(&self) -> Option<SavedCache> {
        self.mirror.init().await.unwrap();
        self.sync().await.save_in_use(None, CONFIG, &MirrorProgress::default()).await.unwrap()
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.tree().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.tree().join(path)).ok()
    }

    fn found(&self) -> HomeContent {
        let (root, mut found, mut todo) = (self.tree(), HomeContent::new(), vec![self.tree()]);
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                let stat = path.symlink_metadata().unwrap();
                let what = if stat.is_dir() {
                    todo.push(path.clone());
                    "directory".to_owned()
                } else if stat.is_symlink() {
                    format!("link {}", fs::read_link(&path).unwrap().display())
                } else {
                    let executable = stat.permissions().mode() & 0o111 != 0;
                    format!(
                        "{executable} {:?} {}",
                        stat.modified().unwrap(),
                        bdnfs::digest::Digest::of(&fs::read(&path).unwrap())
                    )
                };
                found.insert(path.strip_prefix(&root).unwrap().to_owned(), what);
            }
        }
        found
    }
}

/// Two nodes with one mirror.
fn nodes() -> (TempDir, HomeNode, HomeNode) {
    let mirror = tempfile::tempdir().unwrap();
    let (one, other) = (HomeNode::new(mirror.path()), HomeNode::new(mirror.path()));
    (mirror, one, other)
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_that_two_nodes_claim_at_once_is_claimed_by_one() {
    for _ in 0..20 {
        let (_mirror, one, other) = nodes();
        let (sync, other_sync) = (one.sync().await, other.sync().await);
        let claims = tokio::join!(
            tokio::spawn(async move { sync.claim().await }),
            tokio::spawn(async move { other_sync.claim().await })
        );
        let (first, second) = (claims.0.unwrap().unwrap(), claims.1.unwrap().unwrap());
        assert!(first.is_none() != second.is_none(), "{first:?} {second:?}");
        let (winner, loser) = if first.is_none() { (&one, &other) } else { (&other, &one) };
        let awaited = loser.sync().await.claim().await.unwrap().expect("it is in use");
        assert!(awaited.is_awaited && awaited.message.contains("was about to use it"), "{awaited:?}");
        winner.home.report_use(&winner.mirror, false).await.unwrap();
        assert!(loser.sync().await.claim().await.unwrap().is_none(), "nobody wrote to it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_on_another_node_starts_as_saved_and_unchanged_files_are_not_read() {
    let (_mirror, one, other) = nodes();
    assert!(one.pull().await.latest.is_none());
    for number in 0..300 {
        one.write(&format!("packages/{}/{number}", number % 7), &"x".repeat(number));
    }
    one.write("large", &"y".repeat(3 << 20));
    // The same content once more, which the mirror keeps once.
    one.write("copy", &"y".repeat(3 << 20));
    one.write("bin/tool", "#!/bin/sh");
    fs::set_permissions(one.tree().join("bin/tool"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/usr/bin/python3", one.tree().join("bin/python")).unwrap();
    fs::create_dir(one.tree().join("empty")).unwrap();
    let saved = one.save().await.published.expect("published");
    assert_eq!((saved.latest_ref.files, saved.latest_ref.source.as_str()), (303, "cache://project/p"));
    assert!(one.save().await.published.is_none(), "nothing was changed");

    let pulled = other.pull().await;
    assert_eq!((pulled.removed, pulled.conflicts.len()), (0, 0));
    assert_eq!(other.found(), one.found());
    assert!(other.save().await.published.is_none(), "nothing was changed");
    other.write("new", "new");
    let saved = other.save().await.published.expect("published");
    // The copy has no version of its own in the mirror.
    assert!(saved.read <= 4 << 20, "{}", saved.read);
    assert!(saved.written < 1 << 20, "{}", saved.written);
    fs::remove_file(other.tree().join("large")).unwrap();
    fs::remove_dir_all(other.tree().join("packages/3")).unwrap();
    other.save().await;
    let pulled = one.pull().await;
    assert_eq!((pulled.taken, pulled.removed), (1, 1 + 1 + 43), "{pulled:?}");
    assert_eq!(other.found(), one.found());
    assert!(one.save().await.published.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_homes_changed_on_both_nodes_are_merged_and_conflicts_reported() {
    let (_mirror, one, other) = nodes();
    for path in ["same", "mine", "theirs", "both", "gone"] {
        one.write(path, "first");
    }
    one.save().await;
    other.pull().await;
    one.write("mine", "one");
    one.write("both", "one");
    one.write("d/one", "one");
    fs::remove_file(one.tree().join("gone")).unwrap();
    one.save().await;
    other.write("theirs", "other");
    other.write("both", "other, later");
    other.write("d/other", "other");
    let saved = other.save().await;
    assert_eq!(saved.pulled.conflicts, [b"both"]);
    one.pull().await;
    assert_eq!(one.found(), other.found());
    let expected = [
        ("same", Some("first")),
        ("mine", Some("one")),
        ("theirs", Some("other")),
        ("both", Some("other, later")),
        ("gone", None),
        ("d/one", Some("one")),
        ("d/other", Some("other")),
    ];
    for (path, content) in expected {
        assert_eq!(one.read(path).as_deref(), content, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_in_use_is_saved_with_what_nobody_writes_unless_another_node_saved() {
    let (_mirror, one, other) = nodes();
    one.write("closed", "first");
    one.write("log", "first");
    let mut log = fs::File::options().append(true).open(one.tree().join("log")).unwrap();
    let saved = loop {
        // What was closed within the last two seconds may be opened again at once.
        let saved = one.save_in_use().await.expect("nobody else saves");
        if saved.published.is_some() {
            break saved;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    assert_eq!((saved.published.unwrap().latest_ref.files, saved.left_out.busy), (1, vec![b"log".to_vec()]));
    other.pull().await;
    assert_eq!((other.read("closed").as_deref(), other.read("log")), (Some("first"), None));

    other.write("theirs", "other");
    other.save().await;
    std::io::Write::write_all(&mut log, b", second").unwrap();
    drop(log);
    assert!(one.save_in_use().await.is_none(), "what the other node saved can't be pulled under a job");
    assert_eq!(one.read("theirs"), None);
    let saved = one.save().await;
    assert_eq!((saved.pulled.taken, saved.pulled.conflicts.len(), saved.left_out.busy.len()), (1, 0, 0));
    other.pull().await;
    assert_eq!(other.read("log").as_deref(), Some("first, second"));
    assert_eq!(one.found(), other.found());
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_removed_on_another_node_is_emptied() {
    let (_mirror, one, other) = nodes();
    one.write("file", "first");
    one.save().await;
    other.pull().await;
    one.mirror.remove(&one.home.key()).await.unwrap();
    assert!(other.pull().await.is_emptied);
    assert_eq!(other.found(), HomeContent::new());
    // It begins anew.
    other.write("file", "second");
    assert!(other.save().await.published.is_some());
    assert!(one.pull().await.conflicts.is_empty());
    assert_eq!(one.read("file").as_deref(), Some("second"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_update_after_any_interruption_is_whole() {
    let (_mirror, one, other) = nodes();
    for number in 0..40 {
        one.write(&format!("d{}/{number}", number % 5), &number.to_string().repeat(3000));
    }
    one.save().await;
    let mut micros = 100;
    loop {
        let (sync, progress) = (other.sync().await, DownloadProgress::default());
        let pulling = tokio::time::timeout(std::time::Duration::from_micros(micros), sync.pull(&progress));
        match pulling.await {
            Ok(pulled) => break drop(pulled.unwrap()),
            Err(_) => micros = micros * 3 / 2,
        }
    }
    assert_eq!(other.found(), one.found());
    assert!(other.save().await.published.is_none());
    let left: Vec<_> =
        fs::read_dir(other.home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("incoming")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_home_is_not_emptied_for_a_removal_in_a_mirror_that_it_was_not_in() {
    let (_mirror, mut one, other) = nodes();
    one.write("file", "first");
    one.save().await;
    let (_second, elsewhere, new) = nodes();
    elsewhere.write("file", "other");
    elsewhere.save().await;
    elsewhere.mirror.remove(&elsewhere.home.key()).await.unwrap();
    one.mirror = elsewhere.mirror.clone();
    one.write("unsaved", "first");
    assert!(one.save_in_use().await.is_some(), "nothing is to be pulled");
    assert!(!one.pull().await.is_emptied);
    assert!(one.save().await.published.is_some());
    new.pull().await;
    assert_eq!((new.read("file").as_deref(), new.read("unsaved").as_deref()), (Some("first"), Some("first")));
    other.pull().await;
    assert_eq!(other.read("file").as_deref(), Some("first"));
}

/// The next number of a sequence that depends on nothing else (splitmix64).
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Changes a home as jobs do: files written, replaced, renamed and removed.
fn change(node: &HomeNode, seed: &mut u64) {
    for _ in 0..next(seed) % 8 {
        let path = format!("{}/{}", next(seed) % 4, next(seed) % 6);
        let full = node.tree().join(&path);
        match next(seed) % 6 {
            0 => drop(fs::remove_file(&full)),
            1 => drop(fs::remove_dir_all(full.parent().unwrap())),
            2 => drop(fs::rename(&full, full.with_extension("renamed"))),
            3 => {
                let _ = fs::remove_file(&full);
                let _ = fs::create_dir_all(full.parent().unwrap());
                let _ = symlink(format!("to-{}", next(seed) % 9), full);
            }
            size => {
                let _ = fs::create_dir_all(full.parent().unwrap());
                // A link is not written through.
                let _ = fs::remove_file(&full);
                let content = char::from(b'a' + (next(seed) % 26) as u8).to_string();
                let _ = fs::write(full, content.repeat(if size == 4 { 700_000 } else { 20 }));
            }
        }
    }
}

async fn random_turns(rounds: u64) {
    let (_mirror, one, other) = nodes();
    let mut seed = 7;
    one.write("kept", "");
    one.save().await;
    for round in 0..rounds {
        let (first, second) = if next(&mut seed).is_multiple_of(2) { (&one, &other) } else { (&other, &one) };
        first.pull().await;
        second.pull().await;
        assert_eq!(first.found(), second.found(), "round {round}");
        change(first, &mut seed);
        let changed = first.found();
        let is_both = next(&mut seed).is_multiple_of(3);
        if is_both {
            change(second, &mut seed);
        }
        first.save().await;
        assert_eq!(first.found(), changed, "round {round}");
        second.save().await;
        if !is_both {
            assert_eq!(second.found(), changed, "round {round}");
        }
        first.pull().await;
        assert_eq!(first.found(), second.found(), "round {round}, both: {is_both}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_homes_under_random_changes_converge() {
    random_turns(12).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn cache_homes_under_many_random_changes_converge() {
    random_turns(150).await;
}
