//! The Hub as an origin of the engine, against a server that counts, limits, renames and forgets.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use axum::http::Method;
use bdnfs::blob::Blob;
use bdnfs::error::{Error, Kind};
use bdnfs::manifest::{Listing, Manifest, Node};
use bdnfs::origin;
use bdnfs::source::{Access, HubAccess, Patterns, Secret};
use bdnfs::tier::conformance::{self, Subject, pinned};
use bdnfs::tier::{Origin, Tier, Urgency};
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::hub::{HubServer, LFS_THRESHOLD_BYTES, RepositoryAccess};
use bdnfs_tests::tree::content;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryStreamExt};
use serde_json::Value;

const TOKEN: &str = "hf_planted";

fn access(hub: &HubServer, token: Option<&str>) -> Access {
    let hub = HubAccess { endpoint: Some(hub.url()), token: token.map(Secret::new) };
    Access { hub: Some(hub), ..Access::default() }
}

pub(super) async fn open(hub: &HubServer, uri: &str, token: Option<&str>) -> Result<Arc<dyn Origin>, Error> {
    origin::open(&uri.parse().unwrap(), &access(hub, token)).await
}

/// The files of an origin with their sizes.
async fn listed(origin: &dyn Origin) -> Result<Vec<(String, u64)>, Error> {
    let mut listing = Listing::new(&origin.identity(), Patterns::default(), &std::env::temp_dir());
    origin.list(&mut listing).await?;
    let mut bytes = Vec::new();
    listing.finish(&mut bytes)?;
    let manifest = Manifest::from_bytes(bytes)?;
    let mut files = Vec::new();
    for index in 0..manifest.entries() {
        let entry = manifest.entry(index)?;
        // 2026-01-02T03:04:05Z, the date of every commit.
        assert_eq!(entry.mtime, (1_767_323_045, 0));
        if let Node::File(slice) = entry.node {
            files.push((String::from_utf8(manifest.path(index)?).unwrap(), slice.len));
        }
    }
    files.sort();
    Ok(files)
}

pub(super) async fn fetch(origin: &dyn Origin, blob: &Blob, range: Range<u64>) -> Result<Bytes, Error> {
    let body = origin.fetch(blob, range, Urgency::Read).await?.expect("an origin has no misses");
    Ok(body.try_collect::<Vec<Bytes>>().await?.concat().into())
}

struct OpenRepository {
    hub: HubServer,
    origin: Arc<dyn Origin>,
}

impl Subject for OpenRepository {
    fn tier(&self) -> &dyn Tier {
        &*self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        self.hub.tamper("models/org/m", "main", path, Some(&content));
        async move { pinned(&*self.origin, path).await.unwrap() }.boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        self.hub.tamper("models/org/m", "main", path, None);
        async {}.boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_origin_passes_the_tier_conformance() {
    for direct in [false, true] {
        let hub = HubServer::start();
        hub.publish("models/org/m", "main", &[("x", b"x")]);
        if direct {
            hub.serve_small_files_directly();
        }
        let origin = open(&hub, "hf://org/m", None).await.unwrap();
        conformance::suite(&OpenRepository { hub, origin }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_git_file_is_verified_by_its_git_id_whatever_its_etag() {
    for direct in [false, true] {
        let hub = HubServer::start();
        hub.publish("models/org/m", "main", &[("config.json", b"{\"a\": 1}")]);
        if direct {
            hub.serve_small_files_directly();
        }
        let origin = open(&hub, "hf://org/m", None).await.unwrap();
        let blob = pinned(&*origin, "config.json").await.unwrap();
        hub.faults.set(ServerFault::Garble);
        let error = fetch(&*origin, &blob, 2..5).await.unwrap_err();
        assert!(error.to_string().contains("the Hub sends content that does not have the git id"), "{error}");
        assert_eq!(error.kind(), Kind::Corrupt);
        hub.faults.clear();
        assert_eq!(fetch(&*origin, &blob, 2..5).await.unwrap(), b"a\":"[..]);

        hub.set_small_file_etag("0123-of-another-kind");
        assert_eq!(fetch(&*origin, &blob, 0..blob.size).await.unwrap(), b"{\"a\": 1}"[..]);
        hub.faults.set(ServerFault::Garble);
        assert_eq!(fetch(&*origin, &blob, 2..5).await.unwrap_err().kind(), Kind::Changed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_tree_from_any_path_is_listed_whole() {
    let hub = HubServer::start();
    let large = content("large", LFS_THRESHOLD_BYTES);
    let files: [(&str, &[u8]); 6] = [
        ("README.md", b"read me"),
        ("a b/c#d?.bin", b"odd"),
        ("a b/100%41", b"odder"),
        ("data/one.safetensors", &large),
        ("data/deep/er/x", b"x"),
        ("empty", b""),
    ];
    let commit = hub.publish("datasets/org/d", "main", &files);
    let sizes = |below: &str| {
        let mut sizes: Vec<_> = files
            .iter()
            .filter_map(|(path, bytes)| Some((path.strip_prefix(below)?.to_owned(), bytes.len() as u64)))
            .collect();
        sizes.sort();
        sizes
    };
    for (uri, name, below) in [
        ("hf://datasets/org/d", String::new(), ""),
        ("hf://datasets/org/d@main/data", "/data".into(), "data/"),
        ("hf://datasets/org/d@main/a b", "/a b".into(), "a b/"),
    ] {
        let origin = open(&hub, uri, None).await.unwrap();
        assert_eq!(origin.name(), format!("hf://datasets/org/d@{commit}{name}"));
        assert_eq!(listed(&*origin).await.unwrap(), sizes(below));
        for (path, bytes) in files.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let Some(path) = path.strip_prefix(below) else { continue };
            let blob = pinned(&*origin, path).await.unwrap();
            assert_eq!(blob.sha256.is_some(), bytes.len() >= LFS_THRESHOLD_BYTES, "{path}");
            assert_eq!(fetch(&*origin, &blob, 0..blob.size).await.unwrap(), *bytes, "{path}");
        }
    }
    for path in ["a b/100%41", "data/one.safetensors"] {
        let origin = open(&hub, &format!("hf://datasets/org/d@main/{path}"), None).await.unwrap();
        let name = path.rsplit('/').next().unwrap();
        assert_eq!(listed(&*origin).await.unwrap().len(), 1);
        let blob = pinned(&*origin, name).await.unwrap();
        // Another process, which has only the manifest, finds it too.
        let again = open(&hub, &format!("hf://datasets/org/d@{commit}/{path}"), None).await.unwrap();
        assert_eq!(again.identity(), origin.identity());
        assert_eq!(
            fetch(&*again, &blob, 1..3).await.unwrap(),
            files.iter().find(|f| f.0 == path).unwrap().1[1..3]
        );
    }
    let missing = open(&hub, "hf://datasets/org/d@main/data/non", None).await.unwrap();
    let error = listed(&*missing).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("has no such file or directory"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_revision_resolved_once_never_moves() {
    let hub = HubServer::start();
    let (old, new) = (content("old", LFS_THRESHOLD_BYTES), content("new", LFS_THRESHOLD_BYTES));
    let first = hub.publish("models/org/m", "main", &[("w", &old)]);
    hub.publish("models/org/m", "v1.0", &[("w", &old)]);
    let second = hub.publish("models/org/m", "refs/pr/7", &[("w", &new)]);
    hub.publish("models/org/m", "feature/foo", &[("w", &new), ("more", b"more")]);
    for (revision, commit) in [
        ("", &first),
        ("@main", &first),
        ("@v1.0", &first),
        (&format!("@{second}"), &second),
        ("@refs/pr/7", &second),
        ("@refs%2Fpr%2F7", &second),
    ] {
        let origin = open(&hub, &format!("hf://org/m{revision}"), None).await.unwrap();
        assert_eq!(origin.name(), format!("hf://models/org/m@{commit}"), "{revision}");
    }
    let branch = open(&hub, "hf://org/m@feature%2Ffoo", None).await.unwrap();
    assert_eq!(listed(&*branch).await.unwrap().len(), 2);

    let origin = open(&hub, "hf://org/m", None).await.unwrap();
    hub.publish("models/org/m", "main", &[("w", &new), ("z", b"z")]);
    assert_eq!(listed(&*origin).await.unwrap(), [("w".to_owned(), LFS_THRESHOLD_BYTES as u64)]);
    let blob = pinned(&*origin, "w").await.unwrap();
    assert_eq!(fetch(&*origin, &blob, 0..blob.size).await.unwrap(), old);
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_refusal_of_each_kind_says_what_to_do() {
    let hub = HubServer::start();
    let url = hub.url();
    for (name, guard) in [
        ("models/org/m", RepositoryAccess::Public),
        ("models/org/private", RepositoryAccess::Private),
        ("models/org/gated", RepositoryAccess::Gated),
        ("models/org/look", RepositoryAccess::GatedContent),
        ("models/org/gone", RepositoryAccess::Disabled),
    ] {
        hub.publish(name, "main", &[("x", b"x")]);
        hub.set_access(name, guard);
    }
    hub.token(TOKEN, &[]);
    for (uri, token, kind, said) in [
        ("hf://org/none", None, Kind::NotFound, "the Hub has no model org/none; check the name (a dataset is hf://datasets/org/none); if it is private, set HF_TOKEN to a token that may read it".into()),
        ("hf://org/private", Some(TOKEN), Kind::NotFound, "the Hub has no model org/private; check the name (a dataset is hf://datasets/org/private); if it is private, check that the token (HF_TOKEN) may read it".into()),
        ("hf://org/gated", None, Kind::Refused, format!("the model org/gated is gated: accept its terms at {url}/org/gated, then set HF_TOKEN to a token of that account")),
        ("hf://org/look", None, Kind::Refused, format!("the model org/look is gated: accept its terms at {url}/org/look, then set HF_TOKEN to a token of that account")),
        ("hf://org/look", Some(TOKEN), Kind::Refused, format!("the model org/look is gated: accept its terms at {url}/org/look with the account of the token (HF_TOKEN), which must be allowed to read gated repositories (it says: Access to it is restricted.)")),
        ("hf://org/m@nope", None, Kind::NotFound, format!("the model org/m has no such revision; see its branches, tags and commits at {url}/org/m")),
        ("hf://org/m", Some("hf_bad"), Kind::Refused, format!("the Hub does not accept the token: it is wrong, expired or revoked; create one at {url}/settings/tokens and set HF_TOKEN to it")),
        ("hf://org/gone", None, Kind::Refused, format!("the Hub has disabled org/gone: it can no longer be read there; see {url}/org/gone")),
    ] {
        let refused = async { listed(&*open(&hub, uri, token).await?).await };
        let error = refused.await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let (source, text) = error.to_string().split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        assert!(source.starts_with(&uri.replace("hf://", "hf://models/")), "{source}");
        assert_eq!(text, said);
    }

    // With the right token all of it can be read, until the token is revoked.
    hub.token(TOKEN, &["models/org/private", "models/org/gated", "models/org/look"]);
    for uri in ["hf://org/private", "hf://org/gated", "hf://org/look"] {
        let origin = open(&hub, uri, Some(TOKEN)).await.unwrap();
        let blob = pinned(&*origin, "x").await.unwrap();
        assert_eq!(fetch(&*origin, &blob, 0..1).await.unwrap(), "x");
    }
    let origin = open(&hub, "hf://org/private", Some(TOKEN)).await.unwrap();
    let blob = pinned(&*origin, "x").await.unwrap();
    hub.revoke(TOKEN);
    let error = fetch(&*origin, &blob, 0..1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(!format!("{error:?} {origin:?}").contains(TOKEN), "{error:?} {origin:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_origin_on_rate_limit_waits_or_names_it() {
    let hub = HubServer::start();
    hub.publish("models/org/m", "main", &[("x", b"x")]);
    let origin = open(&hub, "hf://org/m", None).await.unwrap();
    let blob = pinned(&*origin, "x").await.unwrap();
    hub.limit_rate("resolvers", 1, 1);
    assert_eq!(fetch(&*origin, &blob, 0..1).await.unwrap(), "x");

    hub.limit_rate("resolvers", 57, 9);
    let error = fetch(&*origin, &blob, 0..1).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains("rate limit is used up; try again later, or set HF_TOKEN"), "{error}");
    hub.requests.clear();
    let error = fetch(&*origin, &blob, 0..1).await.unwrap_err();
    assert!(error.to_string().contains("asked not to be sent requests for another"), "{error}");
    assert_eq!(hub.requests.gets("").requests, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_repository_renamed_is_followed_with_token() {
    let hub = HubServer::start();
    hub.publish("models/new/gpt2", "main", &[("x", b"small"), ("w", &content("w", LFS_THRESHOLD_BYTES))]);
    hub.set_access("models/new/gpt2", RepositoryAccess::Private);
    hub.token(TOKEN, &["models/new/gpt2"]);
    for old in ["org/m", "gpt2"] {
        hub.rename(&format!("models/{old}"), "models/new/gpt2");
        let origin = open(&hub, &format!("hf://{old}"), Some(TOKEN)).await.unwrap();
        for path in ["x", "w"] {
            let blob = pinned(&*origin, path).await.unwrap();
            assert_eq!(fetch(&*origin, &blob, 0..blob.size).await.unwrap().len() as u64, blob.size);
        }
    }
    hub.rename("models/a/b", "models/a/b");
    let error = open(&hub, "hf://a/b", Some(TOKEN)).await.unwrap_err();
    assert!(error.to_string().contains("more than 5 redirects"), "{error}");

    // The token stays with the Hub, wherever that leads.
    let other = HubServer::start();
    hub.faults.set(ServerFault::Redirect(other.url()));
    let error = open(&hub, "hf://org/m", Some(TOKEN)).await.unwrap_err();
    assert!(error.to_string().contains("name that as the Hub (HF_ENDPOINT)"), "{error}");
    assert_eq!(other.requests.gets("").requests, 0);
}

/// The paths in the recording of `huggingface_hub` 2.4 (`snapshot_download` and `HfFileSystem`).
#[tokio::test(flavor = "multi_thread")]
async fn hub_requests_equal_the_recorded_client() {
    let vectors: Value = serde_json::from_str(include_str!("data/hub_requests.json")).unwrap();
    let mut known = BTreeSet::new();
    for scenario in vectors["plain"].as_array().unwrap() {
        for request in scenario["requests"].as_array().unwrap() {
            known.insert(request["url"].as_str().unwrap().split('?').next().unwrap().to_owned());
        }
    }
    let hub = HubServer::start();
    hub.serve_small_files_directly();
    let large = content("model", LFS_THRESHOLD_BYTES);
    let files: [(&str, &[u8]); 4] =
        [("README.md", b"r"), ("config.json", b"c"), ("sub/blob.bin", b"b"), ("model.safetensors", &large)];
    let commits = [
        hub.publish("models/org/tiny", "main", &files),
        hub.publish("datasets/org/ds", "main", &[("data/train.csv", b"1,2\n")]),
    ];
    for (uri, files) in
        [("hf://org/tiny@main", &files[..]), ("hf://datasets/org/ds", &[("data/train.csv", b"")])]
    {
        let origin = open(&hub, uri, None).await.unwrap();
        for (path, _) in files {
            let blob = pinned(&*origin, path).await.unwrap();
            fetch(&*origin, &blob, 0..blob.size).await.unwrap();
        }
    }
    let recorded = "0123456789abcdef0123456789abcdef01234567";
    let as_recorded =
        |path: &str| commits.iter().fold(path.to_owned(), |path, commit| path.replace(commit, recorded));
    let asked = hub.requests.of(Method::GET, |_| true).requests;
    let like_it = hub.requests.of(Method::GET, |path| known.contains(&as_recorded(path))).requests;
    assert!(asked > 10);
    assert_eq!(like_it, asked);
}
