//! Object storage as an origin: what lies below a prefix of a bucket, or a single object.
//!
//! The `object_store` crate signs requests, with keys that [`crate::credentials`] gets. The requests are made here
//! ([`door`]): the crate's own have no keys of objects but those that it takes for paths (it drops slashes, and a listing
//! fails as a whole at a key that it can't name). What is particular to a service is its [`cloud::Cloud`].

mod azure;
mod cloud;
mod door;
mod gcs;
mod list;
mod s3;
mod version;

use std::ops::Range;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use reqwest::header::{HeaderMap, IF_MATCH, RANGE};
use reqwest::redirect::Policy;

use self::cloud::Cloud;
use self::door::Door;
use self::version::{Tag, Version};
use super::{changed, foreign, range, shown};
use crate::blob::Blob;
use crate::client::{self, Client};
use crate::credentials::Keys;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Listing, escape};
use crate::source::{Access, Service, Uri};
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// What lies below a prefix of a bucket.
#[derive(Debug)]
pub(super) struct Objects {
    name: String,
    identity: String,
    /// Without a slash at either end.
    prefix: String,
    door: Door,
    /// Whether bad names are escaped.
    escape: bool,
}

impl Objects {
    /// Opens what `uri` names: anything but a local file, a web server or the Hub.
    pub(super) async fn open(uri: &Uri, access: &Access) -> Result<Self> {
        let name = uri.to_string();
        Self::connect(uri, &name, access).await.map_err(|e| e.within(&name))
    }

    async fn connect(uri: &Uri, name: &str, access: &Access) -> Result<Self> {
        let client = Client::new(Policy::none(), access.authorities.as_deref())?;
        let service = Service::of(uri, access)?;
        let (prefix, cloud): (_, Box<dyn Cloud>) = match uri {
            Uri::Gs { bucket, prefix } => (prefix, Box::new(gcs::Bucket::new(bucket, &service, access)?)),
            Uri::Azure { account, container, prefix } => {
                (prefix, Box::new(azure::Container::new(account, container, &service)))
            }
            Uri::S3 { bucket, prefix } | Uri::R2 { bucket, prefix, .. } | Uri::Cw { bucket, prefix } => {
                (prefix, Box::new(s3::Bucket::new(bucket, &service, access)?))
            }
            _ => return Err(Error::new(Kind::Unsupported, "it is no object storage")),
        };
        let keys = Keys::open(uri, access, &client).await?;
        // A bucket's name is unique at one endpoint only.
        let identity = match access.endpoint(uri) {
            Some(endpoint) => format!("{name} at {}", endpoint.trim_end_matches('/')),
            None => name.to_owned(),
        };
        let (prefix, escape) = (prefix.clone(), access.escape);
        Ok(Self { name: name.to_owned(), identity, prefix, door: Door { client, keys, cloud }, escape })
    }

    /// The key of what is at `path` in this tree.
    fn key(&self, path: &[u8], pinned: &Version) -> Option<String> {
        let path = if pinned.escaped { escape::decode(path) } else { path.to_vec() };
        Some(match (pinned.alone, self.prefix.as_str()) {
            (true, prefix) => prefix.into(),
            (false, "") => String::from_utf8(path).ok()?,
            (false, prefix) => format!("{prefix}/{}", String::from_utf8(path).ok()?),
        })
    }

    async fn get(&self, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
        let alien = || foreign(&shown(&self.name, &blob.path));
        let pinned = Version::decode(&blob.version).ok_or_else(alien)?;
        let what = if pinned.alone { self.name.clone() } else { shown(&self.name, &blob.path) };
        let key = self.key(&blob.path, &pinned).ok_or_else(alien)?;
        let headers = headers(&range, &pinned.tag)?;
        let answer = self.door.object(&key, &pinned.tag, &headers).await.map_err(|e| match e.kind() {
            Kind::NotFound | Kind::Changed => changed(&what, &e.to_string()),
            _ => e.within(&what),
        })?;
        range::part(&answer, blob.size, &range, &what)?;
        if !self.door.cloud.plain(answer.headers()) {
            let text = format!(
                "{what}: the service sends it encoded (Content-Encoding), and may not send what it keeps"
            );
            return Err(Error::new(Kind::Corrupt, text));
        }
        let len = range.end - range.start;
        let (told, body) = match self.door.cloud.tag(answer.headers()) {
            Some(tag) => {
                (Some(tag), answer.bytes_stream().map(|piece| piece.map_err(client::transport)).boxed())
            }
            None => {
                // Some services tell no version. Those are asked for it: what was the pinned one before the answer and
                // is so after its end has been so between.
                let whole = client::read(answer, len as usize).await.map_err(|e| e.within(&what))?;
                let now = self.door.find(&key).await.map_err(|e| e.within(&what))?;
                (now.and_then(|object| object.tag), stream::iter([Ok(whole)]).boxed())
            }
        };
        // Not every service heeds conditions.
        if told.as_ref() != Some(&pinned.tag) {
            return Err(changed(&what, "the service tells another version of it"));
        }
        Ok(Some(client::exactly(body, len, what)))
    }

    /// Lists what is below the prefix; an object whose key is the prefix itself only where nothing is.
    async fn list(&self, listing: &mut Listing) -> Result<()> {
        if self.escape {
            listing.escape();
        }
        let below = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        if list::below(&self.door, &below, listing).await? || self.prefix.is_empty() {
            return Ok(());
        }
        match self.door.find(&self.prefix).await? {
            Some(object) => list::single(&object, listing),
            None => {
                let text = "there is no such object, and none below it";
                Err(Error::new(Kind::NotFound, text))
            }
        }
    }
}

/// What is asked for: a range, of one version.
fn headers(wanted: &Range<u64>, tag: &Tag) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(RANGE, range::value(&format!("bytes={}-{}", wanted.start, wanted.end - 1))?);
    if let Tag::ETag(etag) = tag {
        headers.insert(IF_MATCH, range::value(etag)?);
    }
    Ok(headers)
}

impl Tier for Objects {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        self.get(blob, range).boxed()
    }
}

impl Origin for Objects {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        self.list(listing).map(|listed| listed.map_err(|e| e.within(&self.name))).boxed()
    }
}
