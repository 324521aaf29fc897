//! Tiers: the stores that hold blocks and send them on request. The seam between the engine and the network.
//!
//! A tier moves bytes; it is not trusted with them. Whatever it sends is verified block by block before it is stored or
//! read ([`crate::block`]). Tiers know nothing of each other; the ladder decides their order ([`crate::fetch`]).

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod lazy_origin;
pub mod memory;
pub mod named_origin;
pub(crate) mod reference;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::blob::Blob;
use crate::error::Result;
use crate::manifest::Listing;

/// The kinds of tier below the node's own cache, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TierKind {
    /// Another node of the cluster.
    Peer,
    /// The mirror in object storage.
    Mirror,
    /// The service that the source lives on.
    Origin,
}

impl fmt::Display for TierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "peer",
            Self::Mirror => "mirror",
            Self::Origin => "origin",
        })
    }
}

/// The urgency of a fetch, by what waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nothing waits: the bytes are for later.
    Stage,
    /// Nothing waits yet: a sequential reader will be there soon.
    Ahead,
    /// A reader, now.
    Read,
}

/// The bytes of one answer, in order, in whatever pieces they arrive.
pub type Body = BoxStream<'static, Result<Bytes>>;

/// A store that holds blobs and can be asked for a part of one.
///
/// Cancellation: dropping the future or the body gives the request up.
pub trait Tier: Send + Sync + fmt::Debug + 'static {
    /// The kind of this tier.
    fn kind(&self) -> TierKind;

    /// Asks for `range` of `blob`, in bytes; never empty, never past its end. `None`: this tier does not have it (a
    /// miss is a value). The body yields exactly the range; ending early, or an error within it, leaves what came
    /// before usable.
    ///
    /// # Errors
    /// [`Changed`](crate::error::Kind::Changed) when the origin no longer holds the pinned version,
    /// [`Refused`](crate::error::Kind::Refused) for credentials, [`Unavailable`](crate::error::Kind::Unavailable)
    /// and [`Timeout`](crate::error::Kind::Timeout) when a later try may succeed.
    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>>;

    /// Names the place of `blob` for an error message: what to look at, and to repair, when its bytes are wrong.
    fn locate(&self, _blob: &Blob) -> String {
        format!("the {}", self.kind())
    }
}

/// An origin: a tier that can also say what a source holds.
pub trait Origin: Tier {
    /// The canonical URI without credentials, for messages.
    fn name(&self) -> &str;

    /// The identity of the origin, for listings and for the keys of blobs: the name, and whatever else tells
    /// this origin from others of the same name (an endpoint, a hash of a secret query). Holds no secret.
    fn identity(&self) -> String {
        self.name().into()
    }

    /// Lists the source at one pinned state into `listing`, page by page, as it arrives. File names are handed on
    /// byte for byte; the listing refuses those that can't be names.
    ///
    /// # Errors
    /// [`NotFound`](crate::error::Kind::NotFound) when there is no such source, and those of [`Tier::fetch`].
    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>>;
}
