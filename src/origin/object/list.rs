//! Listings, page by page, with keys exactly as they are.

use chrono::{DateTime, Utc};

use super::cloud::Object;
use super::door::Door;
use super::version::Version;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Found, Listing};
use crate::origin::pages::Pages;

/// Lists all objects whose keys begin with `prefix`. Answers whether there are any.
pub(super) async fn below(door: &Door, prefix: &str, listing: &mut Listing) -> Result<bool> {
    let (mut pages, mut next) = (Pages::of("the service"), None);
    loop {
        let page = door.page(prefix, next.as_deref()).await?;
        pages.take(page.objects.iter().map(|object| &*object.key))?;
        for object in &page.objects {
            take(door, listing, object, prefix)?;
        }
        listing.sound()?;
        if page.next.is_none() {
            return Ok(pages.any());
        }
        if page.next == next {
            return Err(Error::new(Kind::Unsupported, "the service sends the same page again and again"));
        }
        next = page.next;
    }
}

/// Takes an object whose key begins with `prefix`.
fn take(door: &Door, listing: &mut Listing, object: &Object, prefix: &str) -> Result<()> {
    let Some(path) = object.key.strip_prefix(prefix.as_bytes()) else {
        return Err(Error::new(Kind::Unsupported, "the service lists what is not below the prefix"));
    };
    let mtime = time(&object.modified);
    if object.directory || object.size == 0 && (path.is_empty() || path.ends_with(b"/")) {
        // What file browsers put in a bucket to show an empty directory.
        listing.directory(path.strip_suffix(b"/").unwrap_or(path), mtime);
        return Ok(());
    }
    match std::str::from_utf8(&object.key) {
        Err(_) => listing.refuse(path, "its key is no UTF-8"),
        Ok(key) if !door.cloud.reaches(key) => {
            listing.refuse(path, "a part of its key is '.' or '..', so no request can name it");
        }
        Ok(_) => file(listing, object, path, false)?,
    }
    Ok(())
}

/// Takes an object that is the whole source.
pub(super) fn single(object: &Object, listing: &mut Listing) -> Result<()> {
    let name = object.key.rsplit(|b| *b == b'/').next().unwrap_or(&object.key);
    file(listing, object, name, true)
}

fn file(listing: &mut Listing, object: &Object, path: &[u8], alone: bool) -> Result<()> {
    let tag = object.tag.clone().ok_or_else(|| {
        let key = String::from_utf8_lossy(&object.key);
        let text = format!(
            "the service tells no strong ETag or generation for {key:?}, so a change would go unnoticed"
        );
        Error::new(Kind::Unsupported, text)
    })?;
    let version = Version { tag, alone, escaped: listing.escapes() }.encode();
    let (version, size) = (version.as_bytes(), object.size);
    let mtime = time(&object.modified);
    listing.file(Found { path, size, mtime, executable: false, version, sha256: None });
    Ok(())
}

fn time(date: &DateTime<Utc>) -> (i64, u32) {
    (date.timestamp(), date.timestamp_subsec_nanos())
}
