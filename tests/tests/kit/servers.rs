//! The kit's own servers, tested with third-party clients.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::proxy::{NetworkFault, TcpProxy};
use bdnfs_tests::s3::{Keys, S3Server};
use bdnfs_tests::tools::{program, run, target};
use bdnfs_tests::tree::{NAMES, assert_same, content, write_file, write_tree};
use bdnfs_tests::web::WebServer;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStore, ObjectStoreExt, PutMode, WriteMultipart};
use tempfile::TempDir;

fn keys() -> Keys {
    Keys { access: "kit".into(), secret: "not much of a secret".into(), token: Some("token".into()) }
}

fn client(s3: &S3Server, keys: &Keys) -> AmazonS3 {
    let builder = AmazonS3Builder::new()
        .with_endpoint(s3.server.url())
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_access_key_id(&keys.access)
        .with_secret_access_key(&keys.secret)
        .with_token(keys.token.as_deref().unwrap())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(object_store::RetryConfig { max_retries: 0, ..Default::default() });
    builder.build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_server_with_object_store_client_lists_reads_and_writes() {
    let root = TempDir::new().unwrap();
    write_tree(&root.path().join("bucket"));
    for number in 0..1100 {
        write_file(root.path(), format!("bucket/many/{number:04}"), number);
    }
    let s3 = S3Server::start(root.path(), Some(keys()));
    let store = client(&s3, &keys());

    let listed: Vec<_> = store.list(Some(&Path::from("many"))).try_collect().await.unwrap();
    let expected: Vec<_> = (0..1100).map(|number| (format!("many/{number:04}"), number)).collect();
    assert_eq!(listed.iter().map(|o| (o.location.to_string(), o.size)).collect::<Vec<_>>(), expected);
    let top = store.list_with_delimiter(None).await.unwrap();
    assert_eq!(top.objects.len(), 1);
    assert_eq!(top.common_prefixes.len(), 4 + NAMES.len());

    let name = Path::parse(format!("names/{}", NAMES[4])).unwrap();
    let (path, len) = (root.path().join("bucket").join(name.as_ref()), 104);
    let range = store.get_range(&name, 10..20).await.unwrap();
    assert_same(&fs::read(&path).unwrap()[10..20], &range, "a range");
    let meta = store.head(&name).await.unwrap();
    assert_eq!(meta.size, len);
    fs::write(&path, content("other", len as usize)).unwrap();
    let pinned = GetOptions { if_match: meta.e_tag, ..GetOptions::default() };
    let changed = store.get_opts(&name, pinned).await;
    assert!(matches!(changed, Err(object_store::Error::Precondition { .. })), "{changed:?}");

    let (new, bytes) = (Path::from("new/one"), content("new", 100));
    store.put_opts(&new, bytes.clone().into(), PutMode::Create.into()).await.unwrap();
    let again = store.put_opts(&new, "other".into(), PutMode::Create.into()).await;
    assert!(matches!(again, Err(object_store::Error::AlreadyExists { .. })), "{again:?}");
    assert_same(&bytes, &store.get(&new).await.unwrap().bytes().await.unwrap(), "what was put");

    let (large, bytes) = (Path::from("new/large"), content("large", 12 << 20));
    let mut upload = WriteMultipart::new(store.put_multipart(&large).await.unwrap());
    upload.write(&bytes);
    upload.finish().await.unwrap();
    assert_same(&bytes, &store.get(&large).await.unwrap().bytes().await.unwrap(), "what was uploaded");
    store.delete(&large).await.unwrap();
    let gone = store.head(&large).await;
    assert!(matches!(gone, Err(object_store::Error::NotFound { .. })), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_server_with_wrong_secret_refuses() {
    let root = TempDir::new().unwrap();
    write_file(root.path(), "bucket/file", 10);
    let s3 = S3Server::start(root.path(), Some(keys()));
    let store = client(&s3, &Keys { secret: "wrong".into(), ..keys() });
    let error = store.get(&Path::from("file")).await.unwrap_err().to_string();
    assert!(error.contains("SignatureDoesNotMatch"), "{error}");
}

#[test]
fn http_server_stopped_and_resumed_keeps_port_and_counts() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "dir/file", 3 << 20);
    let mut web = WebServer::start(root.path());
    let curl = |url: &str| program("curl").args(["-s", "-S", "-f", url]).output().unwrap();
    assert_same(&bytes, &curl(&web.url("dir/file")).stdout, "the file");
    web.server.stop();
    assert!(TcpStream::connect(web.server.address()).is_err());
    web.server.resume();
    assert_same(&bytes, &curl(&web.url("dir/file")).stdout, "the file, again");
    assert_eq!(web.requests.gets("dir/file").requests, 2);
    assert_eq!(web.requests.gets("dir/file").bytes, 2 * bytes.len() as u64);
    assert_eq!(curl(&web.url("../etc")).status.code(), Some(22));
}

#[test]
fn fault_set_changes_the_answers() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "file", 100_000);
    let web = WebServer::start(root.path());
    let curl =
        |more: &[&str]| program("curl").args(["-s", "-i"]).args(more).arg(web.url("file")).output().unwrap();
    let ranged = ["-r", "10-19"];
    for (fault, arguments, code, words) in [
        (ServerFault::IgnoreRange, &ranged[..], 0, "200 OK"),
        (ServerFault::WrongRange, &ranged, 0, "content-range: bytes 11-20/100000"),
        (ServerFault::Truncate(1000), &[], 18, "content-length: 100000"),
        (ServerFault::Gzip, &[], 0, "content-encoding: gzip"),
        (ServerFault::Status(axum::http::StatusCode::TOO_MANY_REQUESTS, Some(7)), &[], 0, "retry-after: 7"),
        (ServerFault::Silence, &["-m", "0.3"], 28, ""),
        (ServerFault::Stall(1000), &["-m", "0.3"], 28, "200 OK"),
        (ServerFault::Redirect("http://elsewhere".into()), &[], 0, "location: http://elsewhere/file"),
    ] {
        web.faults.set(fault.clone());
        let output = curl(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{fault:?}: {text}");
        assert!(text.contains(words), "{fault:?}: {text}");
    }
    web.faults.times(ServerFault::Garble, 1);
    assert!(!curl(&[]).stdout.ends_with(&bytes));
    assert!(curl(&[]).stdout.ends_with(&bytes), "the fault was for one request");
}

#[test]
fn tcp_proxy_fault_set_while_connected_takes_effect() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "file", 8 << 20);
    let web = WebServer::start(root.path());
    let proxy = Arc::new(TcpProxy::start(web.server.address()));
    let mut connection = TcpStream::connect(proxy.url().strip_prefix("http://").unwrap()).unwrap();
    proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    connection.write_all(b"GET /file HTTP/1.0\r\n\r\n").unwrap();
    connection.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    assert!(connection.read(&mut [0]).is_err(), "frozen");
    proxy.set(NetworkFault::default());
    connection.set_read_timeout(None).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&bytes));

    let url = format!("{}/file", proxy.url());
    proxy.set(NetworkFault { cut: Some(1 << 20), ..NetworkFault::default() });
    assert_eq!(program("curl").args(["-s", "-o", "/dev/null", &url]).status().unwrap().code(), Some(18));
    proxy.set(NetworkFault { refuse: true, ..NetworkFault::default() });
    assert!(!program("curl").args(["-s", "-o", "/dev/null", &url]).status().unwrap().success());
    proxy.set(NetworkFault::default());
    run(program("curl").args(["-s", "-o", "/dev/null", &url]));
}

#[test]
fn s3_server_with_latency_and_a_large_bucket_is_refused() {
    for latency in ["--latency", "--late"] {
        let mut command = std::process::Command::new(target().join("s3-server"));
        let output = command.args(["--large-bucket", "10", latency, "5"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("--latency <MS>") && error.contains("cannot be used with"), "{error}");
    }
}
