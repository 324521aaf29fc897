//! A file as an HTTP answer: ranges, conditions, validators.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, IF_NONE_MATCH, LAST_MODIFIED, RANGE,
};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::task::spawn_blocking;

/// The size of a chunk that is read from the disk: large enough that the cost of a hop to another thread does not show.
const CHUNK_BYTES: u64 = 1 << 20;

/// How many chunks are read ahead of the network.
const READ_AHEAD_CHUNKS: usize = 2;

/// The ETag of a file: strong, and another one whenever it was written or replaced.
pub fn etag(meta: &Metadata) -> String {
    let written = meta.mtime() as i128 * 1_000_000_000 + meta.mtime_nsec() as i128;
    format!("\"{:x}-{written:x}-{:x}\"", meta.ino(), meta.len())
}

/// Answers GET or HEAD with the file at `path`.
///
/// # Errors
/// The status to answer with instead: 404, 304, 412 or 416.
pub async fn answer(method: &Method, headers: &HeaderMap, path: &Path) -> Result<Response, StatusCode> {
    let path = path.to_owned();
    let (file, meta) = spawn_blocking(move || open(&path)).await.expect("open does not panic")?;
    let (tag, len) = (etag(&meta), meta.len());
    if text(headers, IF_MATCH).is_some_and(|wanted| !names(wanted, &tag)) {
        return Err(StatusCode::PRECONDITION_FAILED);
    }
    if text(headers, IF_NONE_MATCH).is_some_and(|known| names(known, &tag)) {
        return Err(StatusCode::NOT_MODIFIED);
    }
    let range = match text(headers, RANGE).and_then(|range| parse(range, len)) {
        Some(range) if range.is_empty() => return Err(StatusCode::RANGE_NOT_SATISFIABLE),
        range => range,
    };
    let whole = range.is_none();
    let range = range.unwrap_or(0..len);
    let mut response = Response::builder()
        .header(ETAG, tag)
        .header(LAST_MODIFIED, httpdate::fmt_http_date(meta.modified().expect("Linux keeps mtime")))
        .header(ACCEPT_RANGES, "bytes")
        .header(CONTENT_LENGTH, range.end - range.start);
    if !whole {
        response = response
            .status(StatusCode::PARTIAL_CONTENT)
            .header(CONTENT_RANGE, format!("bytes {}-{}/{len}", range.start, range.end - 1));
    }
    let body = if method == Method::HEAD { Body::empty() } else { Body::from_stream(pieces(file, range)) };
    Ok(response.body(body).expect("headers are valid"))
}

fn open(path: &Path) -> Result<(File, Metadata), StatusCode> {
    let open = || {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if meta.is_file() { Ok((file, meta)) } else { Err(io::ErrorKind::IsADirectory.into()) }
    };
    open().map_err(|_: io::Error| StatusCode::NOT_FOUND)
}

fn text(headers: &HeaderMap, name: axum::http::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a list of ETags, or `*`, names `tag`.
fn names(list: &str, tag: &str) -> bool {
    list.split(',')
        .any(|one| matches!(one.trim(), "*") || one.trim() == tag || one.trim() == tag.trim_matches('"'))
}

/// The one range that is asked for, empty where it can't be satisfied; `None` for what is to be ignored.
fn parse(header: &str, len: u64) -> Option<Range<u64>> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let count: u64 = last.parse().ok()?;
        return Some(len.saturating_sub(count)..len);
    }
    let first: u64 = first.parse().ok()?;
    let end = if last.is_empty() { len } else { last.parse::<u64>().ok()?.saturating_add(1).min(len) };
    Some(first.min(end)..end)
}

fn pieces(file: File, range: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> {
    let file = Arc::new(file);
    let starts = (range.start..range.end).step_by(CHUNK_BYTES as usize);
    stream::iter(starts)
        .map(move |start| {
            let (file, end) = (file.clone(), range.end.min(start + CHUNK_BYTES));
            async move { spawn_blocking(move || read(&file, start..end)).await.expect("read does not panic") }
        })
        .buffered(READ_AHEAD_CHUNKS)
}

fn read(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    let mut piece = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut piece, range.start)?;
    Ok(piece.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_range_parsed_matches_rfc() {
        assert_eq!(parse("bytes=0-0", 10), Some(0..1));
        assert_eq!(parse("bytes=4-", 10), Some(4..10));
        assert_eq!(parse("bytes=4-99", 10), Some(4..10));
        assert_eq!(parse("bytes=-3", 10), Some(7..10));
        assert!(parse("bytes=10-12", 10).is_some_and(|r| r.is_empty()));
        assert_eq!(parse("bytes=0-1,4-5", 10), None);
        assert_eq!(parse("lines=0-1", 10), None);
    }
}
