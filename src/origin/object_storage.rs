//! Object storage as an origin: what lies below a prefix of a bucket, or a single object.
//!
//! The `object_store` crate signs requests with the keys of [`crate::auth`]. The requests are made here
//! ([`bucket_client`]): the crate's own have no keys of objects but those that it takes for paths (it drops slashes, and a
//! listing fails as a whole at a key that it can't name; docs/decisions/object-store.md). What is particular to a service
//! is its [`object_api::ObjectApi`].

mod azure_blob;
mod bucket_client;
mod bucket_listing;
mod gcs;
mod object_api;
mod object_version;
mod s3;

use std::ops::Range;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use reqwest::header::{HeaderMap, IF_MATCH};
use reqwest::redirect::Policy;

use self::bucket_client::BucketClient;
use self::object_api::ObjectApi;
use self::object_version::{ObjectVersion, VersionTag};
use super::range_request::{RangeRequest, condition, is_part};
use super::{display_path, foreign_version};
use crate::auth::KeyCache;
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::manifest::{Listing, escape};
use crate::source::{Access, BucketService, Uri, not_object_storage};
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// The objects below a prefix of a bucket.
#[derive(Debug)]
pub(super) struct BucketOrigin {
    name: String,
    identity: String,
    /// Without a slash at either end.
    prefix: String,
    client: BucketClient,
    /// Whether keys that can't be paths are escaped.
    escape: bool,
}

impl BucketOrigin {
    /// Opens what `uri` names: anything but a local file, a web server or the Hub.
    pub(super) async fn open(uri: &Uri, access: &Access) -> Result<Self> {
        let name = uri.to_string();
        Self::connect(uri, &name, access).await.map_err(|e| e.context(&name))
    }

    async fn connect(uri: &Uri, name: &str, access: &Access) -> Result<Self> {
        let client = HttpClient::new(Policy::none(), access.authorities.as_deref())?;
        let service = BucketService::of(uri, access)?;
        let (prefix, api): (_, Box<dyn ObjectApi>) = match uri {
            Uri::Gs { bucket, prefix } => (prefix, Box::new(gcs::GcsBucket::new(bucket, &service, access)?)),
            Uri::Azure { account, container, prefix } => {
                (prefix, Box::new(azure_blob::BlobContainer::new(account, container, &service)))
            }
            Uri::S3 { bucket, prefix } | Uri::R2 { bucket, prefix, .. } | Uri::Cw { bucket, prefix } => {
                (prefix, Box::new(s3::S3Bucket::new(bucket, &service, access)?))
            }
            _ => return Err(not_object_storage(uri)),
        };
        let keys = KeyCache::open(uri, access, &client).await?;
        Ok(Self {
            name: name.to_owned(),
            identity: uri.identity(access),
            prefix: prefix.clone(),
            client: BucketClient {
                http: client,
                keys,
                api,
                has_own_endpoint: access.endpoint(uri).is_some(),
            },
            escape: access.escape,
        })
    }

    /// The key of the object at `path`; `None` for one that can't be a key.
    fn key(&self, path: &[u8], pinned: &ObjectVersion) -> Option<String> {
        let path = if pinned.escaped { escape::decode(path) } else { path.to_vec() };
        Some(match (pinned.alone, self.prefix.as_str()) {
            (true, prefix) => prefix.into(),
            (false, "") => String::from_utf8(path).ok()?,
            (false, prefix) => format!("{prefix}/{}", String::from_utf8(path).ok()?),
        })
    }

    async fn get(&self, blob: &Blob, range: Range<u64>) -> Result<Option<Body>> {
        let foreign = || foreign_version(&display_path(&self.name, &blob.path));
        let pinned = ObjectVersion::decode(&blob.version).ok_or_else(foreign)?;
        let key = self.key(&blob.path, &pinned).ok_or_else(foreign)?;
        let name = if pinned.alone { self.name.clone() } else { display_path(&self.name, &blob.path) };
        let wanted = RangeRequest::new(name, blob, range);
        let mut headers = HeaderMap::new();
        wanted.set_range(&mut headers);
        if let VersionTag::ETag(etag) = &pinned.tag {
            headers.insert(IF_MATCH, condition(etag)?);
        }
        let answer = self.client.object(&key, &pinned.tag, &headers).await.map_err(|e| wanted.failed(e))?;
        if !is_part(&answer) && !self.client.api.is_stored_encoding(answer.headers()) {
            let text = "the service sends it encoded (Content-Encoding), so perhaps not as it is stored";
            return Err(Error::new(Kind::Corrupt, format!("{}: {text}", wanted.name)));
        }
        let whole = pinned.whole && wanted.is_whole(&answer)?;
        if !whole {
            wanted.check_range(&answer)?;
        }
        let (tag, body) = match self.client.api.version_tag(answer.headers()) {
            Some(tag) if whole => (Some(tag), wanted.body_of_whole(answer)),
            Some(tag) => (Some(tag), wanted.body(answer)),
            None if pinned.whole => return Err(wanted.lacks_version()),
            None => {
                // Some services tell no version with the content. The version of the listing is the pinned one before
                // the response (the condition) and after its end, so it was in between.
                let with_context = |e: Error| e.context(&wanted.name);
                let whole = http_client::read(answer, wanted.bytes() as usize).await.map_err(with_context)?;
                let now = self.client.find(&key).await.map_err(with_context)?;
                (now.and_then(|object| object.tag), wanted.body_from(stream::iter([Ok(whole)])))
            }
        };
        // Not every service obeys conditions.
        if tag.as_ref() != Some(&pinned.tag) {
            return Err(wanted.changed("the service sends another version of it"));
        }
        Ok(Some(body))
    }

    /// Lists what is below the prefix; an object whose key is the prefix itself only where nothing is.
    async fn list_into(&self, listing: &mut Listing) -> Result<()> {
        if self.escape {
            listing.escape();
        }
        let below = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        if bucket_listing::list_below(&self.client, &below, listing).await? || self.prefix.is_empty() {
            return Ok(());
        }
        match self.client.find(&self.prefix).await? {
            Some(object) => bucket_listing::list_single(&self.client, object, listing).await,
            None => {
                let text = "no such object, and none below it";
                Err(Error::new(Kind::NotFound, text))
            }
        }
    }
}

/// Whether `version` is one of an object: a strong ETag or a generation.
pub(super) fn is_version(version: &[u8]) -> bool {
    ObjectVersion::decode(version).is_some()
}

impl Tier for BucketOrigin {
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

impl Origin for BucketOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        self.list_into(listing).map(|listed| listed.map_err(|e| e.context(&self.name))).boxed()
    }
}
