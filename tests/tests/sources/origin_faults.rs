//! What each kind of source says of each thing that its server does wrong, word for word.

use std::sync::Arc;

use axum::http::StatusCode;
use bdnfs::blob::Blob;
use bdnfs::error::{Error, Kind};
use bdnfs::origin;
use bdnfs::source::{Access, HubAccess, S3Access};
use bdnfs::tier::conformance::pinned;
use bdnfs::tier::{Origin, Urgency};
use bdnfs_tests::MIB;
use bdnfs_tests::fault::{Faults, ServerFault};
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::{Keys, S3Server};
use bdnfs_tests::tree::{assert_same_file, content, write_file};
use bdnfs_tests::web::WebServer;
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use tempfile::TempDir;

/// A source of each kind with one file in it, and what goes wrong with it.
struct FaultySources {
    root: TempDir,
    s3: S3Server,
    web: WebServer,
    hub: HubServer,
}

/// One of them, opened.
struct OpenOrigin {
    origin: Arc<dyn Origin>,
    blob: Blob,
    faults: Faults,
    /// Where the server is.
    url: String,
    /// What messages call the file.
    what: String,
}

impl FaultySources {
    fn new() -> Self {
        let root = TempDir::with_prefix("bdnfs-sources-").unwrap();
        std::fs::create_dir(root.path().join("bucket")).unwrap();
        write_file(&root.path().join("bucket"), "file", 3 * MIB + 9);
        let s3 = S3Server::start(root.path(), None);
        let web = WebServer::start(&root.path().join("bucket"));
        let hub = HubServer::start();
        let bytes = content("file", 3 * MIB + 9);
        hub.publish("models/o/r", "main", &[("file", &bytes)]);
        Self { root, s3, web, hub }
    }

    fn access(&self) -> Access {
        let endpoint = Some(self.s3.server.url());
        let s3 = S3Access { anonymous: true, endpoint, ..S3Access::default() };
        let hub = HubAccess { endpoint: Some(self.hub.url()), token: None };
        Access { s3: Some(s3), hub: Some(hub), ..Access::default() }
    }

    async fn open(&self) -> [OpenOrigin; 3] {
        let one = async |uri: &str, path: &str, faults: &Faults, url: String| {
            let origin = origin::open(&uri.parse().unwrap(), &self.access()).await.unwrap();
            let blob = pinned(&*origin, path).await.unwrap();
            let name = origin.name().to_owned();
            let what = if uri.starts_with("http") { name } else { format!("{name}/{path}") };
            OpenOrigin { origin, blob, faults: faults.clone(), url, what }
        };
        [
            one("s3://bucket", "file", &self.s3.faults, self.s3.server.url()).await,
            one(&self.web.url("file"), "file", &self.web.faults, self.web.server.url()).await,
            one("hf://o/r", "file", &self.hub.storage.faults, self.hub.storage.server.url()).await,
        ]
    }
}

impl OpenOrigin {
    async fn read(&self) -> Result<Vec<u8>, Error> {
        let body = self.origin.fetch(&self.blob, 1000..2000, Urgency::Read).await?;
        let pieces: Vec<Bytes> = body.expect("an origin has no misses").try_collect().await?;
        Ok(pieces.concat())
    }

    /// What is said while `fault` lasts, without the name of the file. Afterwards all is well again.
    async fn error_during(&self, fault: &ServerFault) -> (Kind, String) {
        self.faults.set(fault.clone());
        let error = self.read().await.expect_err("a fault");
        self.faults.clear();
        let text = error.to_string();
        let rest = text.strip_prefix(&self.what).unwrap_or_else(|| panic!("{text} names no {}", self.what));
        (error.kind(), rest.trim_start_matches([':', ' ']).to_owned())
    }
}

/// A fault, its kind, and what is said of it of `s3://`, of `https://` and of the storage behind the Hub.
type FaultCase = (ServerFault, [(Kind, &'static str); 3]);

/// What all three say alike.
fn same_for_all(fault: ServerFault, kind: Kind, said: &'static str) -> FaultCase {
    (fault, [(kind, said); 3])
}

/// What the storage behind the Hub says of a bad address, which isn't the user's.
const REFUSED_ADDRESS: (Kind, &str) =
    (Kind::Unavailable, "the storage behind the Hub refuses the URL that the Hub gave for it");

fn table() -> Vec<FaultCase> {
    let refused = |status, said| {
        let fault = ServerFault::Status(StatusCode::from_u16(status).unwrap(), None);
        (fault, [(Kind::Refused, said), (Kind::Refused, said), REFUSED_ADDRESS])
    };
    let gone = "is gone, though the snapshot has it (the server returned 404 Not Found; check the name); restore it, or take a new snapshot";
    let changed =
        "changed since the snapshot was taken (the server returned 412 Precondition Failed); take a new one";
    let broke = "the connection to the server was lost: end of file before message length reached";
    let encoded = "the server sends it encoded, though asked not to";
    let unfollowed = "the server returned 307 Temporary Redirect; the redirect is not followed";
    let plain = "the server's redirect is not followed: it leads to plain http";
    vec![
        same_for_all(
            ServerFault::Status(StatusCode::INTERNAL_SERVER_ERROR, None),
            Kind::Unavailable,
            "the server returned 500 Internal Server Error",
        ),
        same_for_all(
            ServerFault::Status(StatusCode::SERVICE_UNAVAILABLE, None),
            Kind::Unavailable,
            "the server returned 503 Service Unavailable",
        ),
        refused(401, "the server returned 401 Unauthorized; no credentials were sent"),
        refused(403, "the server returned 403 Forbidden; no credentials were sent"),
        (
            ServerFault::Status(StatusCode::NOT_FOUND, None),
            [(Kind::Changed, gone), (Kind::Changed, gone), REFUSED_ADDRESS],
        ),
        (
            ServerFault::Status(StatusCode::PRECONDITION_FAILED, None),
            [
                (Kind::Changed, changed),
                (Kind::Changed, changed),
                (Kind::Changed, "the server returned 412 Precondition Failed"),
            ],
        ),
        same_for_all(ServerFault::Truncate(100), Kind::Unavailable, broke),
        same_for_all(
            ServerFault::WrongRange,
            Kind::Corrupt,
            "the server sends another part of the file than was asked for",
        ),
        same_for_all(
            ServerFault::IgnoreRange,
            Kind::Unsupported,
            "the server ignores Range and sends whole files only",
        ),
        (
            ServerFault::Gzip,
            [
                (
                    Kind::Corrupt,
                    "the service sends it encoded (Content-Encoding), so perhaps not as it is stored",
                ),
                (Kind::Unsupported, encoded),
                (Kind::Unsupported, encoded),
            ],
        ),
        (
            ServerFault::Redirect("http://192.0.2.1".into()),
            [(Kind::Unsupported, unfollowed), (Kind::Unsupported, plain), (Kind::Unsupported, plain)],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn origin_with_each_fault_names_it() {
    let sources = FaultySources::new();
    let all = sources.open().await;
    let attempts = all.iter().enumerate().map(|(source, opened)| async move {
        for (fault, said) in table() {
            let (kind, text) = said[source];
            assert_eq!(
                opened.error_during(&fault).await,
                (kind, text.to_owned()),
                "{} {fault:?}",
                opened.what
            );
        }
        let again = "the server's redirect is not followed: there are more than 10 redirects";
        if source > 0 {
            assert_eq!(opened.error_during(&ServerFault::Redirect(opened.url.clone())).await.1, again);
        }
    });
    join_all(attempts).await;
    // The object is replaced; the web server has the same files.
    write_file(&sources.root.path().join("bucket"), "other", 3 * MIB + 9);
    std::fs::rename(sources.root.path().join("bucket/other"), sources.root.path().join("bucket/file"))
        .unwrap();
    for (opened, code) in all.iter().zip([", PreconditionFailed", ""]) {
        let error = opened.read().await.unwrap_err();
        let said = format!(
            "{} changed since the snapshot was taken (the server returned 412 Precondition Failed{code}); take a new one",
            opened.what
        );
        assert_eq!((error.kind(), error.to_string()), (Kind::Changed, said));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_rate_limit_is_waited_for_or_named() {
    let sources = FaultySources::new();
    for opened in sources.open().await {
        opened.faults.times(ServerFault::Limited(1, 1), 1);
        opened.read().await.expect("after a second");
        // The longer of the two counts, and nothing is asked before.
        opened.faults.times(ServerFault::Limited(1, 57), 1);
        let first = opened.read().await.expect_err("limited");
        let second = opened.read().await.expect_err("not asked at all");
        for error in [first, second] {
            let text = error.to_string();
            let rest = text.strip_prefix(&format!("{}: ", opened.what)).expect("the file's name");
            assert!(
                rest == "the server returned 429 Too Many Requests"
                    || rest.starts_with("the server asked not to be sent requests for another "),
                "{text}"
            );
            assert_eq!(error.kind(), Kind::Unavailable);
        }
        opened.faults.clear();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dns_seed_unknown_is_logged() {
    // No name has a part so long, so this sends no request.
    let endpoint = format!("http://{}.invalid", "a".repeat(64));
    let s3 = S3Access { anonymous: true, endpoint: Some(endpoint.clone()), ..S3Access::default() };
    let hub = HubAccess { endpoint: Some(endpoint.clone()), token: None };
    let access = Access { s3: Some(s3), hub: Some(hub), allow_http: true, ..Access::default() };
    for uri in ["s3://bucket", "hf://o/r", &format!("{endpoint}/x")] {
        let listed = async {
            let origin = origin::open(&uri.parse().unwrap(), &access).await?;
            pinned(&*origin, "x").await
        };
        let error = listed.await.expect_err("no such name");
        assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        let said = ": cannot resolve the server's name: failed to lookup address information: ";
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn origins_with_every_other_answer_503_deliver() {
    let sources = FaultySources::new();
    let machine =
        Machine::new().s3(&sources.s3.server.url(), &Keys::sample()).env("HF_ENDPOINT", sources.hub.url());
    let original = sources.root.path().join("bucket/file");
    let flaky = ServerFault::Half(StatusCode::SERVICE_UNAVAILABLE);
    for faults in [&sources.s3.faults, &sources.web.faults, &sources.hub.faults, &sources.hub.storage.faults]
    {
        faults.set(flaky.clone());
    }
    for (name, uri) in [("s3", "s3://bucket"), ("web", &sources.web.url("file")), ("hub", "hf://o/r")] {
        let point = machine.mount(uri, name);
        assert_same_file(&original, &point.join("file"));
    }
}
