//! ListObjectsV2: a bucket's keys in order, page by page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::StatusCode;
use axum::response::IntoResponse;
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::task::spawn_blocking;

use super::{BucketStore, S3Error, S3Query, S3Result, write};
use crate::file::etag;

/// The most keys on a page, as S3 has it.
const PAGE_KEYS: usize = 1000;

/// How many listings under way are kept; the oldest is forgotten first.
const CACHED_LISTINGS: usize = 16;

/// Listings under way, by the number in their continuation tokens. A listing is made once and then paged through,
/// so that a large bucket is not walked again for each page.
#[derive(Debug, Default)]
pub(super) struct ListingPages(Mutex<ListingCache>);

#[derive(Debug, Default)]
struct ListingCache {
    last: u64,
    listings: BTreeMap<u64, Arc<[ListingItem]>>,
}

impl ListingPages {
    fn keep(&self, items: Arc<[ListingItem]>) -> u64 {
        let mut kept = self.0.lock();
        kept.last += 1;
        let number = kept.last;
        kept.listings.insert(number, items);
        if kept.listings.len() > CACHED_LISTINGS {
            kept.listings.pop_first();
        }
        number
    }

    /// The listing that `token` belongs to, its number, and where to go on in it.
    fn resume(&self, token: &str) -> Option<(u64, usize, Arc<[ListingItem]>)> {
        let (number, at) = token.split_once('-')?;
        let (number, at) = (number.parse().ok()?, at.parse().ok()?);
        let kept = self.0.lock();
        Some((number, at, kept.listings.get(&number)?.clone()))
    }
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListingItem {
    Object { key: String, size: u64, changed: SystemTime, etag: String },
    Prefix(String),
}

pub(super) async fn answer(store: &Arc<BucketStore>, bucket: String, query: S3Query) -> S3Result {
    let store = store.clone();
    spawn_blocking(move || page(&store, &bucket, &query)).await.expect("listing does not panic")
}

fn page(store: &BucketStore, bucket: &str, query: &S3Query) -> S3Result {
    if query.get("list-type") != Some("2") {
        return Err(S3Error(StatusCode::NOT_IMPLEMENTED, "NotImplemented"));
    }
    let invalid = || S3Error(StatusCode::BAD_REQUEST, "InvalidArgument");
    let most = query.get("max-keys").map_or(Ok(PAGE_KEYS), str::parse).map_err(|_| invalid())?.min(PAGE_KEYS);
    let (number, from, items) = match query.get("continuation-token") {
        Some(token) => store.listings.resume(token).ok_or_else(invalid)?,
        None => {
            let items: Arc<[ListingItem]> = items(store, bucket, query)?.into();
            let number = if items.len() > most { store.listings.keep(items.clone()) } else { 0 };
            (number, 0, items)
        }
    };
    let to = items.len().min(from.saturating_add(most));
    let next = (to < items.len()).then(|| format!("{number}-{to}"));
    let text = xml(bucket, query, items.get(from..to).ok_or_else(invalid)?, next);
    Ok(([("content-type", "application/xml")], text).into_response())
}

/// Everything that the query asks for, in the order of keys.
fn items(store: &BucketStore, bucket: &str, query: &S3Query) -> Result<Vec<ListingItem>, S3Error> {
    let mut found = Vec::new();
    walk(&store.root.join(bucket), "", &mut found)?;
    for ((_, key), file) in store.odd.lock().iter().filter(|((b, _), _)| b == bucket) {
        found.push(object(key.clone(), &fs::metadata(file)?)?);
    }
    found.sort();
    let (prefix, after) = (query.get("prefix").unwrap_or(""), query.get("start-after").unwrap_or(""));
    let mut items: Vec<ListingItem> = Vec::new();
    for item in found {
        let ListingItem::Object { key, .. } = &item else { continue };
        let Some(rest) = key.strip_prefix(prefix) else { continue };
        if key.as_str() <= after {
            continue;
        }
        let delimiter = query.get("delimiter").filter(|delimiter| !delimiter.is_empty());
        match delimiter.and_then(|delimiter| Some(rest.find(delimiter)? + delimiter.len())) {
            None => items.push(item),
            Some(end) => {
                let common = ListingItem::Prefix(key[..prefix.len() + end].to_owned());
                if items.last() != Some(&common) {
                    items.push(common);
                }
            }
        }
    }
    Ok(items)
}

fn walk(directory: &Path, prefix: &str, found: &mut Vec<ListingItem>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry
            .file_name()
            .into_string()
            .map_err(|name| io::Error::other(format!("{name:?} is no key")))?;
        if name.starts_with(write::UPLOAD_PREFIX) {
            continue;
        }
        let (key, meta) = (format!("{prefix}{name}"), fs::metadata(entry.path())?);
        if meta.is_dir() {
            walk(&entry.path(), &format!("{key}/"), found)?;
        } else {
            found.push(object(key, &meta)?);
        }
    }
    Ok(())
}

fn object(key: String, meta: &fs::Metadata) -> io::Result<ListingItem> {
    Ok(ListingItem::Object { key, size: meta.len(), changed: meta.modified()?, etag: etag(meta) })
}

fn xml(bucket: &str, query: &S3Query, items: &[ListingItem], next: Option<String>) -> String {
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<ListBucketResult>");
    let mut field = |name: &str, value: &str| {
        let _ = write!(text, "<{name}>{}</{name}>", escape(value));
    };
    field("Name", bucket);
    field("Prefix", query.get("prefix").unwrap_or(""));
    field("KeyCount", &items.len().to_string());
    field("MaxKeys", query.get("max-keys").unwrap_or("1000"));
    let encoded = query.get("encoding-type") == Some("url");
    if encoded {
        field("EncodingType", "url");
    }
    let written = |key: &str| if encoded { encode(key) } else { escape(key) };
    field("IsTruncated", if next.is_some() { "true" } else { "false" });
    if let Some(next) = &next {
        field("NextContinuationToken", next);
    }
    for item in items {
        let _ = match item {
            ListingItem::Prefix(prefix) => {
                write!(text, "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", written(prefix))
            }
            ListingItem::Object { key, size, changed, etag } => write!(
                text,
                "<Contents><Key>{}</Key><LastModified>{}</LastModified><ETag>{}</ETag><Size>{size}</Size>\
                 <StorageClass>STANDARD</StorageClass></Contents>",
                written(key),
                humantime::format_rfc3339_millis(*changed),
                escape(etag)
            ),
        };
    }
    text + "</ListBucketResult>"
}

/// A key as `encoding-type=url` has it, which can hold what XML can't.
fn encode(key: &str) -> String {
    utf8_percent_encode(key, NON_ALPHANUMERIC).to_string().replace("%2F", "/").replace("%20", "+")
}

/// `text` as it stands in XML.
pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' | '<' | '>' | '"' | '\'' | '\0'..='\x1f' => {
                let _ = write!(out, "&#{};", c as u32);
            }
            _ => out.push(c),
        }
        out
    })
}
