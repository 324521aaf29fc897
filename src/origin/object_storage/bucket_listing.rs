//! Listing a bucket page by page, with keys exactly as they are.

use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::bucket_client::BucketClient;
use super::object_api::ObjectEntry;
use super::object_version::{ObjectVersion, VersionTag};
use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::manifest::{ListedFile, Listing};
use crate::origin::pagination::Pagination;

/// The number of objects that are asked for their version at once.
const PARALLEL_PROBES: usize = 16;

/// The number of objects that a listing asks for a part of, where no response shows whether the service ignores Range.
const RANGE_PROBE_LIMIT: usize = 3;

/// Lists all objects whose keys begin with `prefix`. Returns whether there are any.
pub(super) async fn list_below(client: &BucketClient, prefix: &str, listing: &mut Listing) -> Result<bool> {
    let (mut pages, mut next) = (Pagination::of("the service"), None);
    let mut listing = BucketListing::new(client, listing);
    loop {
        let page = client.page(prefix, next.as_deref()).await?;
        pages.check_keys(page.objects.iter().map(|object| &*object.key))?;
        let complete = page.objects.into_iter().map(|object| complete(client, object));
        let objects: Vec<_> = stream::iter(complete).buffered(PARALLEL_PROBES).try_collect().await?;
        listing.probe_ranges(&objects, prefix.as_bytes()).await;
        for object in &objects {
            listing.object(object, prefix)?;
        }
        listing.listing.check_spill()?;
        let Some(following) = page.next else { return Ok(pages.has_keys()) };
        pages.check_cursor(next.as_deref(), &following)?;
        next = Some(following);
    }
}

/// Lists an object that is the whole source.
pub(super) async fn list_single(
    client: &BucketClient,
    object: ObjectEntry,
    listing: &mut Listing,
) -> Result<()> {
    let object = complete(client, object).await?;
    let name = object.key.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    let (above, name) = object.key.split_at(name);
    let mut listing = BucketListing::new(client, listing);
    listing.probe_ranges(std::slice::from_ref(&object), above).await;
    listing.file(&object, name, true)
}

/// Asks for the version of an object, where the listing tells none (s3s-fs).
async fn complete(client: &BucketClient, object: ObjectEntry) -> Result<ObjectEntry> {
    match std::str::from_utf8(&object.key) {
        Ok(key) if object.tag.is_none() && !object.directory && client.api.can_name(key) => {
            let tag = client.tag(key, object.size).await?;
            Ok(ObjectEntry { tag, ..object })
        }
        _ => Ok(object),
    }
}

/// A listing of a bucket, and what is known of its service.
struct BucketListing<'a> {
    client: &'a BucketClient,
    listing: &'a mut Listing,
    /// Whether the service is known to ignore Range.
    ignores_range: bool,
    /// The number of objects that may still be asked for a part.
    probes_left: usize,
}

impl<'a> BucketListing<'a> {
    /// The services of the schemes themselves have ranges, and are not asked.
    fn new(client: &'a BucketClient, listing: &'a mut Listing) -> Self {
        let probes_left = if client.has_own_endpoint { RANGE_PROBE_LIMIT } else { 0 };
        Self { client, listing, ignores_range: false, probes_left }
    }

    /// Asks for a part of `objects`, one after the other, until a response shows whether the service ignores Range.
    async fn probe_ranges(&mut self, objects: &[ObjectEntry], prefix: &[u8]) {
        for (key, tag, size) in self.samples(objects, prefix) {
            self.probes_left -= 1;
            if let Some(ignores_range) = self.client.ignores_range(key, tag, size).await {
                (self.ignores_range, self.probes_left) = (ignores_range, 0);
                break;
            }
        }
    }

    /// The first of `objects` that would be read in parts, as many as may still be asked: key, version and size of each.
    fn samples<'o>(&self, objects: &'o [ObjectEntry], prefix: &[u8]) -> Vec<(&'o str, &'o VersionTag, u64)> {
        let sample = |object: &'o ObjectEntry| {
            let path = object.key.strip_prefix(prefix)?;
            let large = object.size > BLOCK && !object.directory && self.listing.selects(path);
            let key = std::str::from_utf8(&object.key).ok().filter(|key| self.client.api.can_name(key))?;
            large.then_some((key, object.tag.as_ref()?, object.size))
        };
        objects.iter().filter_map(sample).take(self.probes_left).collect()
    }

    /// Lists an object whose key begins with `prefix`.
    fn object(&mut self, object: &ObjectEntry, prefix: &str) -> Result<()> {
        let Some(path) = object.key.strip_prefix(prefix.as_bytes()) else {
            return Err(Error::new(
                Kind::Unsupported,
                "the service lists keys that do not begin with the prefix",
            ));
        };
        let mtime = timestamp(&object.modified);
        if object.directory || object.size == 0 && (path.is_empty() || path.ends_with(b"/")) {
            // File browsers put such an object into a bucket to show an empty directory.
            self.listing.directory(path.strip_suffix(b"/").unwrap_or(path), mtime);
            return Ok(());
        }
        match std::str::from_utf8(&object.key) {
            Err(_) => self.listing.refuse(path, "its key is not UTF-8"),
            Ok(key) if !self.client.api.can_name(key) => {
                self.listing.refuse(path, "a part of its key is '.' or '..', so no request can name it");
            }
            Ok(_) => self.file(object, path, false)?,
        }
        Ok(())
    }

    /// Lists an object as the file `path`; `alone` says whether it is the whole source.
    fn file(&mut self, object: &ObjectEntry, path: &[u8], alone: bool) -> Result<()> {
        let tag = object.tag.clone().ok_or_else(|| {
            let key = String::from_utf8_lossy(&object.key);
            let text = format!(
                "the service sends no strong ETag or generation for {key:?}, so a change would go unnoticed"
            );
            Error::new(Kind::Unsupported, text)
        })?;
        let whole = self.ignores_range && object.size > BLOCK;
        let version = ObjectVersion { tag, whole, alone, escaped: self.listing.escapes() }.encode();
        let (version, size) = (version.as_bytes(), object.size);
        let mtime = timestamp(&object.modified);
        self.listing.file(ListedFile { path, size, mtime, executable: false, version, sha256: None });
        Ok(())
    }
}

fn timestamp(date: &DateTime<Utc>) -> (i64, u32) {
    (date.timestamp(), date.timestamp_subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::object_storage::BucketOrigin;
    use crate::source::{Access, GcsAccess, Patterns};

    #[tokio::test]
    async fn bucket_listing_probes_services_at_an_endpoint_only() {
        for (endpoint, probes) in [(None, 0), (Some("https://storage.example".to_owned()), RANGE_PROBE_LIMIT)]
        {
            let gcs = GcsAccess { endpoint, anonymous: true, ..GcsAccess::default() };
            let access = Access { gcs: Some(gcs), ..Access::default() };
            let origin = BucketOrigin::open(&"gs://b".parse().expect("a URI"), &access).await.expect("open");
            let mut listing = Listing::new("gs://b", Patterns::default(), &std::env::temp_dir());
            assert_eq!(BucketListing::new(&origin.client, &mut listing).probes_left, probes);
        }
    }
}
