//! Listings of services: each service stands on loopback and answers every request with the bytes under test.

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Arc, LazyLock};

use bdnfs::manifest::{Listing, Manifest};
use bdnfs::origin;
use bdnfs::source::{Access, AzureAccess, GcsAccess, HubAccess, Patterns, S3Access};
use bdnfs::tier::Origin;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::manifest::walk;
use crate::server::AnswerServer;

/// What a Hub says of a revision before its tree can be listed.
const COMMIT: &str =
    r#"{"sha": "0123456789012345678901234567890123456789", "lastModified": "2026-01-02T03:04:05.000Z"}"#;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));

/// Runs the future to its end.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

/// A service and the origin that reads it.
struct Service {
    server: AnswerServer,
    origin: Arc<dyn Origin>,
}

impl Service {
    /// Opens `uri`, in which `HOST` stands for where the service listens, with the access that `access` makes of its URL.
    fn start(uri: &str, access: impl Fn(String) -> Access) -> Self {
        let server = AnswerServer::start(serve);
        let address = server.address;
        let uri = uri.replace("HOST", &address.to_string()).parse().expect("a URI");
        let origin = block_on(origin::open(&uri, &access(format!("http://{address}")))).expect("an origin");
        Self { server, origin }
    }

    /// Lists the source. What comes of it, if anything does, is a manifest without a fault.
    fn list(&self, answer: &[u8]) {
        let _turn = self.server.answer_with(answer);
        let mut listing = Listing::new(&self.origin.identity(), Patterns::default(), &std::env::temp_dir());
        let (listed, mut manifest) = (block_on(self.origin.list(&mut listing)), Vec::new());
        if listed.is_ok() && listing.finish(&mut manifest).is_ok() {
            let manifest = Manifest::from_bytes(manifest).expect("what was written can be read");
            assert_eq!(walk(&manifest).expect("a tree without a fault"), manifest.entries());
        }
    }
}

/// Answers one request after the other, until the client has enough.
pub(crate) fn serve(connection: TcpStream, answer: &Mutex<Vec<u8>>) {
    let Ok(mut replies) = connection.try_clone() else { return };
    let mut requests = BufReader::new(connection);
    let (mut request, mut line) = (String::new(), String::new());
    while requests.read_line(&mut line).is_ok_and(|len| len > 0) {
        if request.is_empty() {
            request = line.clone();
        }
        if line == "\r\n" {
            let body = match request.contains("/revision/") {
                true => COMMIT.into(),
                false => answer.lock().clone(),
            };
            let mut reply =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\netag: \"x\"\r\n\r\n", body.len())
                    .into_bytes();
            if !request.starts_with("HEAD") {
                reply.extend(body);
            }
            if replies.write_all(&reply).is_err() {
                return;
            }
            request.clear();
        }
        line.clear();
    }
}

/// A decoder of the listings of one service.
macro_rules! service {
    ($name:ident, $uri:literal, $access:expr) => {
        pub(crate) fn $name(bytes: &[u8]) {
            static SERVICE: LazyLock<Service> = LazyLock::new(|| Service::start($uri, $access));
            SERVICE.list(bytes);
        }
    };
}

service!(s3, "s3://bucket/below", |endpoint| Access {
    s3: Some(S3Access { endpoint: Some(endpoint), anonymous: true, ..S3Access::default() }),
    ..Access::default()
});
service!(gcs, "gs://bucket/below", |endpoint| Access {
    gcs: Some(GcsAccess { endpoint: Some(endpoint), anonymous: true, ..GcsAccess::default() }),
    ..Access::default()
});
service!(azure, "azure://account/container/below", |endpoint| Access {
    azure: Some(AzureAccess { endpoint: Some(endpoint), anonymous: true, ..AzureAccess::default() }),
    ..Access::default()
});
service!(hub, "hf://owner/repo", |endpoint| Access {
    hub: Some(HubAccess { endpoint: Some(endpoint), ..HubAccess::default() }),
    ..Access::default()
});
service!(index_json, "http://HOST/models/bdnfs.json", |_| Access::default());
service!(index_sums, "http://HOST/models/SHA256SUMS", |_| Access::default());
