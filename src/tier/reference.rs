//! The tier of the blobs that a view adds to a snapshot: the names of commits, which are the versions of their blobs.

use std::ops::Range;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};

use super::{Body, Tier, TierKind, Urgency};
use crate::blob::Blob;
use crate::error::Result;

/// A tier of blobs whose content is their version, so that no request is needed for them.
#[derive(Debug)]
pub struct ReferenceTier;

impl Tier for ReferenceTier {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let content = blob.version.get(range.start as usize..range.end as usize);
        let content = content.map(|part| blob.version.slice_ref(part));
        async move { Ok(content.map(|part| stream::iter([Ok(part)]).boxed())) }.boxed()
    }
}
