//! Repositories of the Hub, as its library keeps them.

use super::*;
use crate::manifest::hub_cache::ViewLimits;
use crate::source::Uri;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const CONFIG: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
const EMPTY: &str = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

/// The manifest of files with these paths, sizes and versions.
fn base(files: &[(&str, u64, &str)]) -> Arc<Manifest> {
    let mut listing = Listing::new(&source(), Patterns::default(), Path::new("/nowhere"));
    for (path, size, version) in files {
        let (path, version) = (path.as_bytes(), version.as_bytes());
        listing.file(ListedFile {
            path,
            size: *size,
            mtime: (7, 0),
            executable: false,
            version,
            sha256: None,
        });
    }
    let mut bytes = Vec::new();
    listing.finish(&mut bytes).expect("good");
    Arc::new(Manifest::from_bytes(bytes).expect("good"))
}

fn source() -> String {
    format!("hf://models/owner/name@{COMMIT}")
}

fn view(requested: &str, base: &Arc<Manifest>) -> Result<Manifest> {
    let uri = |text: &str| text.parse::<Uri>().expect("a URI");
    HubCache::new(&uri(requested), &uri(&source()))?.view(base)
}

/// All paths, each with what is there: a size, or where a link leads.
fn tree(manifest: &Manifest) -> BTreeMap<String, String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let shown = |index| match manifest.entry(index).expect("good").node {
        Node::Directory(_) => None,
        Node::File(slice) => Some(slice.len.to_string()),
        Node::Symlink(target) => Some(text(target)),
    };
    let all = 1..manifest.entries();
    all.filter_map(|index| Some((text(&manifest.path(index).expect("good")), shown(index)?))).collect()
}

#[test]
fn hub_cache_view_has_references_contents_and_links() {
    let lfs = "ab".repeat(32);
    let base = base(&[
        ("config.json", 2, CONFIG),
        ("a/b/weights.bin", 9, &lfs),
        ("a/same", 9, &lfs),
        ("none", 0, CONFIG),
    ]);
    let view = view("hf://owner/name@v1", &base).expect("shown");
    view.check().expect("whole");
    let root = "models--owner--name";
    let at = |path: &str| format!("{root}/{path}");
    let link = |path: &str| at(&format!("snapshots/{COMMIT}/{path}"));
    let expected = BTreeMap::from([
        (at("refs/main"), "40".to_owned()),
        (at("refs/v1"), "40".to_owned()),
        (at(&format!("blobs/{CONFIG}")), "2".to_owned()),
        (at(&format!("blobs/{lfs}")), "9".to_owned()),
        (at(&format!("blobs/{EMPTY}")), "0".to_owned()),
        (link("config.json"), format!("../../blobs/{CONFIG}")),
        (link("a/b/weights.bin"), format!("../../../../blobs/{lfs}")),
        (link("a/same"), format!("../../../blobs/{lfs}")),
        (link("none"), format!("../../blobs/{EMPTY}")),
    ]);
    assert_eq!(tree(&view), expected);
}

#[test]
fn hub_cache_view_keeps_the_blobs_of_its_base_and_adds_the_commit() {
    let base = base(&[("config.json", 2, CONFIG), ("x/weights", 9, &"cd".repeat(32))]);
    let view = view("hf://owner/name", &base).expect("shown");
    assert_eq!((view.blobs(), view.source()), (base.blobs() + 1, base.source()));
    for blob in 0..base.blobs() {
        let (shown, own) = (view.blob(blob).expect("good"), base.blob(blob).expect("good"));
        assert_eq!((shown.key, shown.path, shown.version), (own.key, own.path, own.version));
    }
    let commit = view.blob(base.blobs()).expect("its own");
    assert_eq!(
        (commit.key, &commit.version[..]),
        (Key::Content(Digest::of(COMMIT.as_bytes())), COMMIT.as_bytes())
    );
    assert!(view.blob(view.blobs()).is_err());
}

#[test]
fn hub_cache_view_of_packed_files_has_each_by_its_id() {
    let base = base(&[("a", 2, CONFIG), ("b", 3, &"12".repeat(20))]);
    let content = b"aabbb";
    let pack = MirroredBlob {
        files: vec![0, 1],
        digest: Digest::of(content),
        size: 5,
        checks: [Check::of(5, 0, content)].into(),
        stored: MirrorLocation::default(),
    };
    let mut bytes = Vec::new();
    MirroredListing::new(&base, vec![pack]).expect("good").write(&mut bytes).expect("memory");
    let packed = Arc::new(Manifest::from_bytes(bytes).expect("good"));
    let view = view("hf://owner/name", &packed).expect("shown");
    let blobs = ["models--owner--name", "blobs", &"12".repeat(20)];
    let entry =
        blobs.iter().fold(0, |at, name| view.lookup(at, name.as_bytes()).expect("good").expect("there"));
    assert_eq!(view.entry(entry).expect("good").node, Node::File(Slice { blob: 0, offset: 2, len: 3 }));
    assert_eq!(view.parts(0).expect("a pack").len(), 2);
}

#[test]
fn hub_cache_view_has_the_requested_and_the_default_reference() {
    let base = base(&[("x", 2, CONFIG)]);
    let references = |requested: &str| {
        let view = view(requested, &base).expect("shown");
        let paths = tree(&view).into_keys();
        let of = |path: String| path.split_once("/refs/").map(|(root, name)| format!("{root} {name}"));
        paths.filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(references(&format!("hf://owner/name@{COMMIT}")), ["models--owner--name main"]);
    assert_eq!(
        references("hf://datasets/owner/name@refs%2Fpr%2F1"),
        ["datasets--owner--name main", "datasets--owner--name refs/pr/1"]
    );
    assert_eq!(references("hf://owner/name@main%2Fx"), ["models--owner--name main/x"]);
}

#[test]
fn hub_cache_view_of_a_file_without_an_id_is_refused() {
    let error = view("hf://owner/name", &base(&[("x", 2, "not-an-id")])).expect_err("no id");
    assert!(error.to_string().contains("no id of the Hub"), "{error}");
}

#[test]
fn hub_cache_view_above_its_limits_is_refused() {
    let base = base(&[("a/b/c", 2, CONFIG), ("d", 9, &"cd".repeat(32))]);
    let uri = |text: &str| text.parse::<Uri>().expect("a URI");
    let cache = HubCache::new(&uri("hf://owner/name"), &uri(&source())).expect("named");
    let whole = cache.view(&base).expect("shown").entries() as usize;
    let within = |entries, path_bytes| cache.view_within(&base, ViewLimits { entries, path_bytes });
    assert_eq!(within(whole, 9999).expect("as many as there are").entries() as usize, whole);
    for (entries, path_bytes) in [(whole - 1, 9999), (whole, 99)] {
        let error = within(entries, path_bytes).expect_err("too many");
        assert_eq!(error.kind(), Kind::Unsupported);
        let named = format!("at most {entries} entries with {path_bytes} bytes");
        assert!(error.to_string().contains(&named), "{error}");
    }
}
