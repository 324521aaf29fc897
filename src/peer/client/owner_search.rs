//! Owner search: asks one owner after the other while the membership changes, until one of them sends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::{Candidate, Peers};
use crate::error::Result;
use crate::peer::Member;
use crate::peer::rendezvous::BlockGroup;
use crate::peer::wire::BlockRequest;
use crate::tier::{Body, Urgency};

/// The time for which a stage searches for an owner while each that is asked turns out to be lost. As long as gossip may need to
/// notice: by then, nodes that are cut off together have found each other.
const OWNER_SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// The search for an owner that answers one request.
pub(super) struct OwnerSearch {
    pub(super) peers: Arc<Peers>,
    pub(super) candidate: Candidate,
    pub(super) group: BlockGroup,
    /// The request for what is still to come.
    pub(super) request: BlockRequest,
    pub(super) begin: Instant,
}

impl OwnerSearch {
    /// The bytes; `None`: there is no peer to ask, or the one that was asked does not have them.
    pub(super) async fn body(self) -> Result<Option<Body>> {
        let Some((peer, body)) = self.next().await? else { return Ok(None) };
        let whole = stream::try_unfold((self, peer, body), |(mut search, mut peer, mut body)| async move {
            loop {
                let error = match body.next().await {
                    Some(Ok(bytes)) => {
                        search.request.range.start += bytes.len() as u64;
                        return Ok(Some((bytes, (search, peer, body))));
                    }
                    Some(Err(error)) => error,
                    None => return Ok(None),
                };
                // The parts of a block come from one peer: if it turns out wrong, it must be known who sent it.
                if search.is_over(&peer) {
                    return Err(error);
                }
                (peer, body) = search.next().await?.ok_or(error)?;
            }
        });
        Ok(Some(whole.boxed()))
    }

    /// The next peer that responds, and its body.
    async fn next(&self) -> Result<Option<(Arc<Member>, Body)>> {
        loop {
            if self.candidate.is_owner() && self.request.urgency == Urgency::Stage {
                self.peers.await_stable_membership().await;
            }
            let (tenant, snapshot) = (&self.request.tenant, &self.request.snapshot);
            let Some(peer) = self.peers.choose(self.candidate, self.group, tenant, snapshot) else {
                return Ok(None);
            };
            match self.peers.send_request(self.candidate, peer.clone(), self.request.clone()).await {
                Ok(body) => return Ok(body.map(|body| (peer, body))),
                Err(error) if self.is_over(&peer) => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Whether the search ends with the failure of `peer`.
    fn is_over(&self, peer: &Member) -> bool {
        let goes_on = self.candidate.is_owner()
            && self.request.urgency < Urgency::Read
            && self.begin.elapsed() < OWNER_SEARCH_TIMEOUT;
        !goes_on || !self.peers.is_lost(peer)
    }
}
