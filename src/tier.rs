//! Tiers: what holds blocks and can be asked for them. The seam between the engine and the outside.
//!
//! A tier moves bytes; it is not trusted with them. Whatever it sends is verified block by block before it is
//! stored or read ([`crate::block`]). Tiers know nothing of each other; their order is the ladder's affair
//! ([`crate::fetch`]).

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod memory;
pub mod parts;

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
pub enum Rung {
    /// Another node of the cluster.
    Peer,
    /// The mirror in object storage.
    Mirror,
    /// The service that the source lives on.
    Origin,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Peer => "peer",
            Self::Mirror => "mirror",
            Self::Origin => "origin",
        })
    }
}

/// Who waits for a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody: the bytes are for later.
    Stage,
    /// Nobody yet: a sequential reader will be there soon.
    Ahead,
    /// A reader, now.
    Read,
}

/// The bytes of one answer, in order, in whatever pieces they arrive.
pub type Body = BoxStream<'static, Result<Bytes>>;

/// Something that holds blobs and can be asked for a part of one.
///
/// Cancellation: dropping the future or the body gives the request up.
pub trait Tier: Send + Sync + fmt::Debug + 'static {
    /// Which rung of the ladder this is.
    fn rung(&self) -> Rung;

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

    /// Whether it may wait for another node to fetch what it is asked for. Who fetches for other nodes never asks it.
    fn waits(&self) -> bool {
        false
    }

    /// Waits while it is not clear which node does what: what nobody waits for should not begin then.
    fn calm(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether this node is the one that others turn to for block `index` of `blob`: then it waits for nobody.
    fn is_ours(&self, _blob: &Blob, _index: u64) -> bool {
        false
    }

    /// Puts `blocks` of `blob` into the order in which a stage had best ask for what begins with them.
    fn turns(&self, _blob: &Blob, _blocks: &mut [u64]) {}

    /// Takes note that what it has just sent as block `index` of `blob` was not that. Comes before the body is dropped.
    fn refute(&self, _blob: &Blob, _index: u64) {}

    /// What a person is told that `blob` came from: what to look at, and to repair, when its bytes are wrong.
    fn locate(&self, _blob: &Blob) -> String {
        format!("the {}", self.rung())
    }
}

/// An origin: a tier that can also say what a source holds.
pub trait Origin: Tier {
    /// What a person is told that this is: a canonical URI without credentials.
    fn name(&self) -> &str;

    /// What a listing is made for and the keys of blobs are derived from: the name, and whatever else tells this origin
    /// from others of the same name (an endpoint, a hash of a secret query). Holds no secret.
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
