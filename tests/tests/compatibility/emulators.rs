//! Origins on the clouds' emulators, third-party servers: moto for S3, Azurite, an emulator of Google's
//! storage.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::blob::Blob;
use bdnfs::error::Kind;
use bdnfs::manifest::{Listing, Manifest, Node};
use bdnfs::origin;
use bdnfs::source::{Access, AzureAccess, GcsAccess, Patterns, S3Access, Secret, Uri};
use bdnfs::tier::conformance::{self, Subject, pinned};
use bdnfs::tier::{Origin, Tier, Urgency};
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::tools::{run, target};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tempfile::TempDir;

/// The key that everybody knows of the account that everybody has.
/// <https://learn.microsoft.com/azure/storage/common/storage-use-azurite>
const AZURITE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// An emulator with a bucket in it.
struct Emulator {
    origin: Arc<dyn Origin>,
    writer: Writer,
    child: Child,
    _port: ReservedPort,
    _directory: TempDir,
}

/// Another client, to write with.
enum Writer {
    Store(Box<dyn ObjectStore>),
    /// Google's JSON API at a URL: not all of its emulators answer what `object_store` wants to know.
    Json(reqwest::Client, String),
}

impl Writer {
    async fn put(&self, key: &str, content: Bytes) {
        match self {
            Self::Store(store) => {
                store.put(&Path::parse(key).expect("a path"), content.into()).await.expect("put");
            }
            Self::Json(client, url) => {
                let name = utf8_percent_encode(key, NON_ALPHANUMERIC);
                let url = format!("{url}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}");
                let put = || client.post(&url).body(content.clone()).send();
                // This emulator lets a connection be, now and then.
                let answer = match put().await {
                    Ok(answer) => answer,
                    Err(_) => put().await.expect("an answer"),
                };
                answer.error_for_status().expect("put");
            }
        }
    }

    async fn delete(&self, key: &str) {
        match self {
            Self::Store(store) => store.delete(&Path::parse(key).expect("a path")).await.expect("deleted"),
            Self::Json(client, url) => {
                let name = utf8_percent_encode(key, NON_ALPHANUMERIC);
                let url = format!("{url}/storage/v1/b/bucket/o/{name}");
                let answer = client.delete(url).send().await.expect("an answer");
                answer.error_for_status().expect("deleted");
            }
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Subject for Emulator {
    fn tier(&self) -> &dyn Tier {
        &*self.origin
    }

    fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
        async move {
            self.write(path, content).await;
            pinned(&*self.origin, path).await.expect("listed")
        }
        .boxed()
    }

    fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
        async move { self.writer.delete(&format!("model/{path}")).await }.boxed()
    }
}

impl Emulator {
    async fn write(&self, path: &str, content: Bytes) {
        self.writer.put(&format!("model/{path}"), content).await;
    }

    /// Runs `command` in a directory of its own until it listens on `port`.
    async fn start(
        mut command: Command,
        port: ReservedPort,
        bucket: impl FnOnce(),
        uri: &str,
        access: &Access,
        writer: Writer,
    ) -> Self {
        let directory = TempDir::new().expect("a directory");
        command
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}; see scripts/emulators"));
        for _ in 0..600 {
            if tokio::net::TcpStream::connect(port.address).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::task::block_in_place(bucket);
        let origin = origin::open(&uri.parse::<Uri>().expect("a URI"), access).await.expect("open");
        Self { origin, writer, child, _port: port, _directory: directory }
    }

    /// What no two services agree on: names, pages, a single object.
    async fn lists(&self, single: Arc<dyn Origin>) {
        let mut expected = Vec::new();
        for name in ["+%2F é", "~*'()&=?#", "a b", "a%20b", "b/c/d", "<tag>", "日本"] {
            self.write(&format!("names/{name}"), Bytes::copy_from_slice(name.as_bytes())).await;
            expected.push(format!("names/{name}"));
        }
        // More than a page, with other names before and behind.
        let many = (0..1005).map(|number| format!("many/{number:04}"));
        let puts = many.clone().map(|path| async move { self.write(&path, "x".into()).await });
        stream::iter(puts).buffer_unordered(16).count().await;
        expected.extend(many);
        self.writer.put("model2/other", "x".into()).await;
        let mut paths = files(&*self.origin).await;
        paths.retain(|path| !path.starts_with("conformance/"));
        paths.sort();
        expected.sort();
        assert_eq!(paths, expected);
        for path in expected.iter().filter(|path| path.starts_with("names/")) {
            let blob = pinned(&*self.origin, path).await.expect(path);
            let name = path.strip_prefix("names/").expect("a name");
            assert_eq!(read(&*self.origin, &blob).await, name, "{path}");
        }
        let error = list(&*single).await.expect_err("not there");
        assert_eq!(error.kind(), Kind::NotFound, "{error}");
        self.writer.put("one/file.bin", "whole".into()).await;
        assert_eq!(files(&*single).await, ["file.bin"]);
        let blob = pinned(&*single, "file.bin").await.expect("pinned");
        assert_eq!(read(&*single, &blob).await, "whole");
    }
}

async fn list(origin: &dyn Origin) -> bdnfs::error::Result<Manifest> {
    let mut listing = Listing::new(&origin.identity(), Patterns::default(), &std::env::temp_dir());
    origin.list(&mut listing).await?;
    let mut bytes = Vec::new();
    listing.finish(&mut bytes)?;
    Manifest::from_bytes(bytes)
}

async fn files(origin: &dyn Origin) -> Vec<String> {
    let manifest = list(origin).await.expect("listed");
    let file = |index: &u32| matches!(manifest.entry(*index).expect("an entry").node, Node::File(_));
    let path = |index| String::from_utf8(manifest.path(index).expect("a path")).expect("UTF-8");
    (1..manifest.entries()).filter(file).map(path).collect()
}

async fn read(origin: &dyn Origin, blob: &Blob) -> String {
    let body = origin.fetch(blob, 0..blob.size, Urgency::Read).await.expect("fetched").expect("no miss");
    let pieces: Vec<Bytes> = body.try_collect().await.expect("read");
    String::from_utf8(pieces.concat()).expect("UTF-8")
}

/// A program that `scripts/emulators` installed.
fn emulator(program: &str) -> Command {
    Command::new(target().parent().expect("a directory above the profile's").join("emulators").join(program))
}

fn curl(arguments: &[&str]) {
    run(Command::new("curl").args(["-fsS", "-o", "/dev/null"]).args(arguments));
}

#[tokio::test(flavor = "multi_thread")]
async fn moto_s3_as_tier_conforms() {
    let reserved = ReservedPort::take(0);
    let port = reserved.address.port();
    let url = format!("http://127.0.0.1:{port}");
    let mut command = emulator("bin/moto_server");
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let store = AmazonS3Builder::new()
        .with_endpoint(&url)
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_access_key_id("id")
        .with_secret_access_key("secret")
        .build()
        .expect("a store");
    let s3 = S3Access {
        access_key_id: Some("id".into()),
        secret_access_key: Some(Secret::new("secret")),
        endpoint: Some(url.clone()),
        ..S3Access::default()
    };
    let access = Access { s3: Some(s3), ..Access::default() };
    let bucket = || curl(&["-X", "PUT", &format!("{url}/bucket")]);
    let emulator = Emulator::start(
        command,
        reserved,
        bucket,
        "s3://bucket/model",
        &access,
        Writer::Store(Box::new(store)),
    )
    .await;
    conformance::suite(&emulator).await;
    let single = "s3://bucket/one/file.bin".parse().expect("a URI");
    emulator.lists(origin::open(&single, &access).await.expect("open")).await;
}

/// Tells no generation of what it sends, so it is asked for that.
#[tokio::test(flavor = "multi_thread")]
async fn gcs_emulator_as_tier_conforms() {
    let reserved = ReservedPort::take(0);
    let port = reserved.address.port();
    let mut command = emulator("bin/gcp-storage-emulator");
    command.args(["start", "--in-memory", "--host", "127.0.0.1", "--port", &port.to_string()]);
    gcs(command, reserved).await;
}

async fn gcs(command: Command, reserved: ReservedPort) {
    let port = reserved.address.port();
    let url = format!("http://127.0.0.1:{port}");
    let gcs = GcsAccess { endpoint: Some(url.clone()), anonymous: true, ..GcsAccess::default() };
    let access = Access { gcs: Some(gcs), ..Access::default() };
    let bucket = || {
        let (json, body) = ("Content-Type: application/json", "{\"name\": \"bucket\"}");
        curl(&["-H", json, "-d", body, &format!("{url}/storage/v1/b?project=test")]);
    };
    let writer = Writer::Json(reqwest::Client::new(), url.clone());
    let emulator = Emulator::start(command, reserved, bucket, "gs://bucket/model", &access, writer).await;
    conformance::suite(&emulator).await;
    let single = "gs://bucket/one/file.bin".parse().expect("a URI");
    emulator.lists(origin::open(&single, &access).await.expect("open")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn azurite_as_tier_conforms() {
    azurite("container").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn azurite_container_of_a_static_site_as_tier_conforms() {
    azurite("$web").await;
}

async fn azurite(container: &str) {
    let reserved = ReservedPort::take(0);
    let port = reserved.address.port();
    let url = format!("http://127.0.0.1:{port}/devstoreaccount1");
    let mut command = emulator("node_modules/.bin/azurite-blob");
    command.args(["--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]);
    command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
    let store = MicrosoftAzureBuilder::new()
        .with_endpoint(url.clone())
        .with_allow_http(true)
        .with_account("devstoreaccount1")
        .with_access_key(AZURITE_KEY)
        .with_container_name(container)
        .build()
        .expect("a store");
    let azure = AzureAccess {
        account_key: Some(Secret::new(AZURITE_KEY)),
        endpoint: Some(url.clone()),
        ..AzureAccess::default()
    };
    let access = Access { azure: Some(azure), ..Access::default() };
    let bucket = || {
        // object_store makes no containers, so the command line of openssl signs.
        let date = run(Command::new("date").args(["-u", "+%a, %d %b %Y %H:%M:%S GMT"]).env("LC_ALL", "C"));
        let date = date.trim();
        let text = format!(
            "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:2023-11-03\n\
             /devstoreaccount1/devstoreaccount1/{container}\nrestype:container"
        );
        let script = "import base64,hashlib,hmac,sys; k,t=sys.argv[1:]; \
                      print(base64.b64encode(hmac.new(base64.b64decode(k),t.encode(),hashlib.sha256).digest()).decode())";
        let signature = run(Command::new("python3").args(["-c", script, AZURITE_KEY, &text]));
        curl(&[
            "-X",
            "PUT",
            "-H",
            &format!("x-ms-date: {date}"),
            "-H",
            "x-ms-version: 2023-11-03",
            "-H",
            &format!("Authorization: SharedKey devstoreaccount1:{}", signature.trim()),
            "-H",
            "Content-Length: 0",
            &format!("{url}/{container}?restype=container"),
        ]);
    };
    let uri = format!("azure://devstoreaccount1/{container}/model");
    let emulator =
        Emulator::start(command, reserved, bucket, &uri, &access, Writer::Store(Box::new(store))).await;
    conformance::suite(&emulator).await;
    let single = format!("azure://devstoreaccount1/{container}/one/file.bin").parse().expect("a URI");
    emulator.lists(origin::open(&single, &access).await.expect("open")).await;
}
