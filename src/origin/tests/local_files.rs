use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::fs::FileType;

use super::listed;
use crate::blob::Blob;
use crate::error::Kind;
use crate::manifest::Listing;
use crate::origin::local::LocalOrigin;
use crate::source::Patterns;
use crate::tier::conformance::{self, Subject, pinned};
use crate::tier::{Origin, Tier, Urgency};

struct Directory {
    root: tempfile::TempDir,
    origin: LocalOrigin,
}

impl Directory {
    async fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let origin = LocalOrigin::open(root.path(), &[]).await.expect("open");
        Self { root, origin }
    }
}

impl Subject for Directory {
    fn tier(&self) -> &dyn Tier {
        &self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        let file = self.root.path().join(path);
        fs::create_dir_all(file.parent().expect("below the root")).expect("mkdir");
        fs::write(file, content).expect("write");
        async move { pinned(&self.origin, path).await.expect("listed") }.boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        fs::remove_file(self.root.path().join(path)).expect("unlink");
        async {}.boxed()
    }
}

#[tokio::test]
async fn local_origin_conforms_to_the_tier_suite() {
    conformance::suite(&Directory::new().await).await;
}

#[tokio::test]
async fn local_listing_keeps_names_byte_for_byte() {
    let Directory { root, origin } = Directory::new().await;
    let at = |path: &[u8]| root.path().join(std::ffi::OsStr::from_bytes(path));
    fs::create_dir_all(at(b"a/empty")).expect("mkdir");
    fs::write(at(b"a/\xff\n"), "xyz").expect("write");
    fs::write(at(b"run"), "#!").expect("write");
    fs::set_permissions(at(b"run"), fs::Permissions::from_mode(0o755)).expect("chmod");
    symlink("/etc", at(b"a/out")).expect("symlink");
    symlink("nowhere \u{e9}", at(b"dangling")).expect("symlink");
    let paths = listed(&origin, Patterns::default()).await.expect("listed");
    let expected = [
        ("a", "directory"),
        ("a/\\xff\\n", "3"),
        ("a/empty", "directory"),
        ("a/out", "-> /etc"),
        ("dangling", "-> nowhere \\xc3\\xa9"),
        ("run", "2"),
    ];
    assert_eq!(paths, expected.map(|(path, what)| (path.to_owned(), what.to_owned())));
    let run = pinned(&origin, "run").await.expect("run");
    let stat = fs::metadata(at(b"run")).expect("stat");
    assert!(String::from_utf8_lossy(&run.version).starts_with(&format!("{}-{}-2-", stat.dev(), stat.ino())));
    assert_eq!(origin.name(), format!("file://{}", root.path().canonicalize().expect("real").display()));
}

#[tokio::test]
async fn local_listing_skips_special_files_with_a_note() {
    let Directory { root, origin } = Directory::new().await;
    fs::write(root.path().join("x"), "1").expect("write");
    let _socket = UnixListener::bind(root.path().join("s.sock")).expect("bind");
    for number in 0..12 {
        let fifo = root.path().join(format!("f{number:02}"));
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("mkfifo");
    }
    let mut listing = Listing::new("here", Patterns::default(), root.path());
    origin.list(&mut listing).await.expect("listed");
    let notes = listing.notes();
    assert_eq!((notes.skipped, notes.first_skipped.len()), (13, 10));
    assert!(notes.first_skipped.iter().any(|note| note.ends_with("\": it is a fifo")), "{notes:?}");
    let without = Patterns::new(&[], &["*.sock".into(), "f*".into()]).expect("patterns");
    let mut listing = Listing::new("here", without, root.path());
    origin.list(&mut listing).await.expect("listed");
    assert_eq!(listing.notes().skipped, 0, "what is not wanted is not told of");
    assert_eq!(
        listed(&origin, Patterns::default()).await.expect("listed"),
        [("x".to_owned(), "1".to_owned())]
    );
}

#[tokio::test]
async fn local_origin_of_a_single_file_is_a_tree_of_one() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("model.bin");
    fs::write(&path, "weights").expect("write");
    fs::write(root.path().join("other"), "").expect("write");
    symlink("model.bin", root.path().join("link")).expect("symlink");
    for named in [path, root.path().join("link")] {
        let origin = LocalOrigin::open(&named, &[]).await.expect("open");
        assert_eq!(
            listed(&origin, Patterns::default()).await.expect("listed"),
            [("model.bin".to_owned(), "7".to_owned())]
        );
        let blob = pinned(&origin, "model.bin").await.expect("pinned");
        assert!(origin.fetch(&blob, 0..7, Urgency::Read).await.expect("fetch").is_some());
        assert!(origin.name().ends_with("/model.bin"), "{}", origin.name());
    }
}

#[tokio::test]
async fn local_path_through_a_link_never_leaves_the_tree() {
    let Directory { root, origin } = Directory::new().await;
    fs::create_dir(root.path().join("d")).expect("mkdir");
    fs::write(root.path().join("d/passwd"), "mine").expect("write");
    let blob = pinned(&origin, "d/passwd").await.expect("pinned");
    fs::rename(root.path().join("d"), root.path().join("old")).expect("rename");
    symlink("/etc", root.path().join("d")).expect("symlink");
    let hostile = Blob { path: Bytes::from_static(b"../../../../etc/passwd"), ..blob.clone() };
    for blob in [blob, hostile] {
        let error = origin.fetch(&blob, 0..1, Urgency::Read).await.err().expect("out of the tree");
        assert_eq!(error.kind(), Kind::Changed, "{error}");
    }
}

#[tokio::test]
async fn local_error_names_the_path() {
    let error = LocalOrigin::open(Path::new("/nowhere/at all"), &[]).await.expect_err("missing");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().starts_with("/nowhere/at all does not exist"), "{error}");
    let error = LocalOrigin::open(Path::new("/dev/null"), &[]).await.expect_err("a device");
    assert_eq!(error.to_string(), "/dev/null is neither a directory nor a regular file");

    let Directory { root, origin } = Directory::new().await;
    fs::write(root.path().join("w"), "12").expect("write");
    let blob = pinned(&origin, "w").await.expect("pinned");
    fs::write(root.path().join("w"), "21").expect("write");
    let error = origin.fetch(&blob, 0..1, Urgency::Read).await.err().expect("changed");
    let text = error.to_string();
    assert!(
        text.contains("/w changed since the snapshot was taken") && text.contains("take a new one"),
        "{text}"
    );
}

#[tokio::test]
async fn open_through_a_link_out_of_the_directories_that_are_allowed_is_refused() {
    let root = tempfile::tempdir().expect("a directory");
    let at = |name: &str| root.path().join(name);
    for directory in ["public/models", "private"] {
        fs::create_dir_all(at(directory)).expect("a directory");
    }
    fs::write(at("private/key"), "hush").expect("a file");
    symlink("../private", at("public/link")).expect("a link");
    symlink("models", at("public/inside")).expect("a link");
    let open = async |name: &str| LocalOrigin::open(&at(name), &[at("none"), at("public")]).await;
    for inside in ["public", "public/models", "public/inside"] {
        open(inside).await.expect(inside);
    }
    for outside in ["public/link", "public/link/key", "private"] {
        assert_eq!(open(outside).await.expect_err(outside).kind(), Kind::Refused);
    }
}
