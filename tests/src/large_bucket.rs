//! A bucket of any number of objects, which are made as they are asked for: an S3 server with nothing behind it.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_RANGE, ETAG};
use axum::response::{IntoResponse, Response};

use crate::serve::{HttpServer, ReservedPort};

/// The bucket's name.
pub const BUCKET: &str = "large-bucket";
/// The size of each object, in bytes.
const OBJECT_BYTES: usize = 16;
/// How many keys a page has, as S3 has it, and a directory.
const PAGE_KEYS: u64 = 1000;

/// A server of one bucket, open to everybody.
#[derive(Debug)]
pub struct LargeBucket {
    /// To stop and start it.
    pub server: HttpServer,
}

/// What its keys are like.
#[derive(Clone, Copy, Debug)]
struct LargeBucketShape {
    count: u64,
    depth: usize,
}

impl LargeBucket {
    /// Serves `count` objects, a thousand in each directory, below `depth` others that have names as long as can be.
    pub fn start(count: u64, depth: usize) -> Self {
        Self::on_port(count, depth, 0)
    }

    /// The same, on a port of one's choice.
    pub fn on_port(count: u64, depth: usize, port: u16) -> Self {
        let app = Router::new().fallback(answer).with_state(Arc::new(LargeBucketShape { count, depth }));
        Self { server: HttpServer::on_port(app, ReservedPort::take(port)) }
    }
}

async fn answer(State(shape): State<Arc<LargeBucketShape>>, request: Request) -> Response {
    let object = request.uri().path().strip_prefix("/large-bucket/").filter(|key| !key.is_empty());
    match object {
        Some(key) => shape.object(key).unwrap_or(StatusCode::NOT_FOUND.into_response()),
        None => shape.page(request.uri().query().unwrap_or_default()).into_response(),
    }
}

impl LargeBucketShape {
    /// Whatever is asked for of an object, its whole content is the answer: it has 16 bytes.
    fn object(&self, key: &str) -> Option<Response> {
        let number: u64 = key.rsplit('-').next()?.parse().ok()?;
        let range = format!("bytes 0-{}/{OBJECT_BYTES}", OBJECT_BYTES - 1);
        let headers = [(ETAG, etag(number)), (CONTENT_RANGE, range)];
        (number < self.count).then(|| {
            (StatusCode::PARTIAL_CONTENT, headers, format!("{number:0width$}", width = OBJECT_BYTES))
                .into_response()
        })
    }

    /// A page of all objects, whose token is the number of its first one; or the only page of one directory.
    fn page(&self, query: &str) -> String {
        let number = |after: &str| -> Option<u64> {
            let digits = query.split_once(after)?.1;
            digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let directory = number("shard-");
        let first = directory.map(|number| number * PAGE_KEYS).or(number("continuation-token=")).unwrap_or(0);
        let last = self.count.min(first + PAGE_KEYS);
        let mut text = String::from("<ListBucketResult>");
        if last < self.count && directory.is_none() {
            let _ = write!(text, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        let above = format!("{}/", "x".repeat(255)).repeat(self.depth);
        for number in first..last {
            let directory = number / PAGE_KEYS;
            let _ = write!(
                text,
                "<Contents><Key>{above}shard-{directory:06}/object-{number:09}</Key><Size>{OBJECT_BYTES}</Size><ETag>{}</ETag>\
                 <LastModified>2024-01-02T03:04:05.000Z</LastModified></Contents>",
                etag(number)
            );
        }
        text + "</ListBucketResult>"
    }
}

fn etag(number: u64) -> String {
    format!("\"{number:032x}\"")
}
