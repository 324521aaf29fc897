//! Files that may be executed because the user says so: most services do not tell which of theirs may.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::blob::Blob;
use crate::error::Result;
use crate::manifest::Listing;
use crate::source::Patterns;
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// An origin with more executable files: those that match the patterns, beside those that the origin itself marks as executable.
#[derive(Debug)]
pub(super) struct ExecutableFiles {
    pub(super) origin: Arc<dyn Origin>,
    pub(super) patterns: Patterns,
}

impl Tier for ExecutableFiles {
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

    fn locate(&self, blob: &Blob) -> String {
        self.origin.locate(blob)
    }
}

impl Origin for ExecutableFiles {
    fn name(&self) -> &str {
        self.origin.name()
    }

    fn identity(&self) -> String {
        self.origin.identity()
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        listing.mark_executable(self.patterns.clone());
        self.origin.list(listing)
    }
}
