//! Search: from one owner to the next, until one of them sends.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::{Peers, Place};
use crate::error::Result;
use crate::peer::Member;
use crate::peer::rank::Group;
use crate::peer::wire::Ask;
use crate::tier::{Body, Urgency};

/// For how long what nobody waits for is looked for among those that may own it, while each that is asked turns out to be gone.
/// As long as gossip may need to notice: most nodes that are cut off together find each other by then.
const SEARCH: Duration = Duration::from_secs(10);

/// One request, and whom it may go to.
pub(super) struct Search {
    pub(super) peers: Arc<Peers>,
    pub(super) place: Place,
    pub(super) group: Group,
    /// What is still to come.
    pub(super) ask: Ask,
    pub(super) begin: Instant,
}

impl Search {
    /// What is asked for; `None`: there is nobody to ask, or who was asked does not have it.
    pub(super) async fn body(self) -> Result<Option<Body>> {
        let Some((peer, body)) = self.next().await? else { return Ok(None) };
        let whole = stream::try_unfold((self, peer, body), |(mut search, mut peer, mut body)| async move {
            loop {
                let error = match body.next().await {
                    Some(Ok(bytes)) => {
                        search.ask.range.start += bytes.len() as u64;
                        return Ok(Some((bytes, (search, peer, body))));
                    }
                    Some(Err(error)) => error,
                    None => return Ok(None),
                };
                // What came of a block is not asked for again: if it turns out wrong, nobody can tell who it was.
                if search.is_over(&peer) {
                    return Err(error);
                }
                (peer, body) = search.next().await?.ok_or(error)?;
            }
        });
        Ok(Some(whole.boxed()))
    }

    /// The next one who answers.
    async fn next(&self) -> Result<Option<(Arc<Member>, Body)>> {
        loop {
            if self.place.is_owner() && self.ask.urgency == Urgency::Stage {
                self.peers.calm().await;
            }
            let (tenant, snapshot) = (&self.ask.tenant, &self.ask.snapshot);
            let Some(peer) = self.peers.choose(self.place, self.group, tenant, snapshot) else {
                return Ok(None);
            };
            match self.peers.ask(self.place, peer.clone(), self.ask.clone()).await {
                Ok(body) => return Ok(body.map(|body| (peer, body))),
                Err(error) if self.is_over(&peer) => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Whether nobody else is asked, since `peer` has failed.
    fn is_over(&self, peer: &Member) -> bool {
        let goes_on =
            self.place.is_owner() && self.ask.urgency < Urgency::Read && self.begin.elapsed() < SEARCH;
        !goes_on || !self.peers.is_lost(peer)
    }
}
