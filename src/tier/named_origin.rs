//! An origin under another name: a directory of this machine, under the name that it is saved as.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Body, Origin, Tier, TierKind, Urgency};
use crate::blob::Blob;
use crate::error::Result;
use crate::manifest::Listing;

/// An origin under another name.
#[derive(Debug)]
pub struct NamedOrigin {
    name: String,
    origin: Arc<dyn Origin>,
}

impl NamedOrigin {
    /// `origin`, called `name`.
    pub fn new(name: String, origin: Arc<dyn Origin>) -> Self {
        Self { name, origin }
    }
}

impl Tier for NamedOrigin {
    fn kind(&self) -> TierKind {
        self.origin.kind()
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        self.origin.fetch(blob, range, urgency)
    }
}

impl Origin for NamedOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        self.origin.list(listing)
    }
}
