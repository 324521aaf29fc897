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

/// How many objects are asked for their version at once.
const PARALLEL_PROBES: usize = 16;

/// Lists all objects whose keys begin with `prefix`. Returns whether there are any.
pub(super) async fn list_below(client: &BucketClient, prefix: &str, listing: &mut Listing) -> Result<bool> {
    let (mut pages, mut next) = (Pagination::of("the service"), None);
    let mut ranges = RangeProbe::new(client);
    loop {
        let page = client.page(prefix, next.as_deref()).await?;
        pages.check_keys(page.objects.iter().map(|object| &*object.key))?;
        let complete = page.objects.into_iter().map(|object| complete(client, object));
        let objects: Vec<_> = stream::iter(complete).buffered(PARALLEL_PROBES).try_collect().await?;
        let chosen = ranges.choose(client, listing, &objects, prefix.as_bytes());
        ranges.ask(client, chosen).await;
        for object in &objects {
            list_object(client, listing, (object, &ranges), prefix)?;
        }
        listing.check_spill()?;
        let Some(following) = page.next else { return Ok(pages.has_keys()) };
        pages.check_cursor(next.as_deref(), &following)?;
        next = Some(following);
    }
}

/// Whether a service ignores Range; `None` as long as no object has shown it.
struct RangeProbe(Option<bool>);

impl RangeProbe {
    /// The services of the schemes themselves have ranges, and are not asked.
    fn new(client: &BucketClient) -> Self {
        Self((!client.foreign).then_some(false))
    }

    /// The first of `objects` that would be read in parts, if one is to be asked for.
    fn choose<'a>(
        &self,
        client: &BucketClient,
        listing: &Listing,
        objects: &'a [ObjectEntry],
        prefix: &[u8],
    ) -> Option<(&'a str, &'a VersionTag)> {
        let named = |object: &'a ObjectEntry| {
            let path = object.key.strip_prefix(prefix)?;
            let large = object.size > BLOCK && !object.directory && listing.selects(path);
            let key = std::str::from_utf8(&object.key).ok().filter(|key| client.api.can_name(key))?;
            large.then_some((key, object.tag.as_ref()?))
        };
        self.0.is_none().then(|| objects.iter().find_map(named)).flatten()
    }

    /// Asks with the object that was chosen. Where that fails, a reader will see why.
    async fn ask(&mut self, client: &BucketClient, chosen: Option<(&str, &VersionTag)>) {
        if let Some((key, tag)) = chosen {
            self.0 = client.ignores_range(key, tag).await.ok();
        }
    }

    /// Whether `object` is sent whole only.
    fn is_whole(&self, object: &ObjectEntry) -> bool {
        self.0 == Some(true) && object.size > BLOCK
    }
}

/// Lists an object whose key begins with `prefix`.
fn list_object(
    client: &BucketClient,
    listing: &mut Listing,
    (object, ranges): (&ObjectEntry, &RangeProbe),
    prefix: &str,
) -> Result<()> {
    let Some(path) = object.key.strip_prefix(prefix.as_bytes()) else {
        return Err(Error::new(
            Kind::Unsupported,
            "the service lists keys that do not begin with the prefix",
        ));
    };
    let mtime = timestamp(&object.modified);
    if object.directory || object.size == 0 && (path.is_empty() || path.ends_with(b"/")) {
        // File browsers put such an object into a bucket to show an empty directory.
        listing.directory(path.strip_suffix(b"/").unwrap_or(path), mtime);
        return Ok(());
    }
    match std::str::from_utf8(&object.key) {
        Err(_) => listing.refuse(path, "its key is not UTF-8"),
        Ok(key) if !client.api.can_name(key) => {
            listing.refuse(path, "a part of its key is '.' or '..', so no request can name it");
        }
        Ok(_) => list_file(listing, (object, ranges), path, false)?,
    }
    Ok(())
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

/// Lists an object that is the whole source.
pub(super) async fn list_single(
    client: &BucketClient,
    object: ObjectEntry,
    listing: &mut Listing,
) -> Result<()> {
    let object = complete(client, object).await?;
    let name = object.key.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    let (above, name) = object.key.split_at(name);
    let mut ranges = RangeProbe::new(client);
    let chosen = ranges.choose(client, listing, std::slice::from_ref(&object), above);
    ranges.ask(client, chosen).await;
    list_file(listing, (&object, &ranges), name, true)
}

fn list_file(
    listing: &mut Listing,
    (object, ranges): (&ObjectEntry, &RangeProbe),
    path: &[u8],
    alone: bool,
) -> Result<()> {
    let tag = object.tag.clone().ok_or_else(|| {
        let key = String::from_utf8_lossy(&object.key);
        let text = format!(
            "the service sends no strong ETag or generation for {key:?}, so a change would go unnoticed"
        );
        Error::new(Kind::Unsupported, text)
    })?;
    let whole = ranges.is_whole(object);
    let version = ObjectVersion { tag, whole, alone, escaped: listing.escapes() }.encode();
    let (version, size) = (version.as_bytes(), object.size);
    let mtime = timestamp(&object.modified);
    listing.file(ListedFile { path, size, mtime, executable: false, version, sha256: None });
    Ok(())
}

fn timestamp(date: &DateTime<Utc>) -> (i64, u32) {
    (date.timestamp(), date.timestamp_subsec_nanos())
}
