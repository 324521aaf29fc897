//! The network between the nodes, which can be cut, and the mirror.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bdnfs::blob::Blob;
use bdnfs::block::BLOCK;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::peer::Member;
use bdnfs::peer::client::PeerClient;
use bdnfs::peer::identity::Caller;
use bdnfs::peer::wire::{BlockRequest, BlockResponse};
use bdnfs::tier::{Body, Tier, TierKind, Urgency};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::sleep;

use super::Sim;

/// How fast things are: a mirror that takes its time, a network of 10 Gbit/s.
const MIRROR_LATENCY: Duration = Duration::from_millis(40);
const MIRROR_BLOCK_TIME: Duration = Duration::from_millis(10);
const NETWORK_LATENCY: Duration = Duration::from_micros(300);
const NETWORK_BLOCK_TIME: Duration = Duration::from_millis(1);

/// The way to other nodes.
#[derive(Debug)]
pub struct SimNetwork {
    pub sim: Weak<Sim>,
    pub me: String,
}

impl PeerClient for SimNetwork {
    fn request<'a>(
        &'a self,
        peer: &'a Member,
        request: &'a BlockRequest,
    ) -> BoxFuture<'a, Result<BlockResponse>> {
        async move {
            let gone = || Error::new(Kind::Unavailable, format!("{} refuses the connection", peer.id));
            let sim = self.sim.upgrade().ok_or_else(gone)?;
            sleep(NETWORK_LATENCY).await;
            if !sim.reachable(&self.me, &peer.id) {
                std::future::pending::<()>().await;
            }
            let node = sim.nodes.lock().get(&peer.id).cloned().ok_or_else(gone)?;
            if let Some(me) = sim.nodes.lock().get(&self.me) {
                sim.max_requests_in_flight.fetch_max(me.peers().requests_in_flight() as u64, Relaxed);
            }
            let frames = match node.server.answer(&Caller::ANONYMOUS, request.clone()).await {
                BlockResponse::Frames(frames) => frames,
                other => return Ok(other),
            };
            let (me, wire) = (self.me.clone(), Arc::downgrade(&sim));
            // Blocks take their time, and what is cut off comes no more.
            let frames = frames.then(move |frame| {
                let (sim, node, me) = (wire.clone(), node.clone(), me.clone());
                async move {
                    sleep(NETWORK_BLOCK_TIME).await;
                    match sim.upgrade() {
                        Some(sim) if !sim.reachable(&me, &node.id) => std::future::pending().await,
                        Some(_) if node.is_alive() => frame,
                        _ => Err(Error::new(Kind::Unavailable, "the connection was reset")),
                    }
                }
            });
            Ok(BlockResponse::Frames(frames.boxed()))
        }
        .boxed()
    }
}

/// The mirror.
#[derive(Debug)]
pub struct SimMirror(pub Weak<Sim>);

impl Tier for SimMirror {
    fn kind(&self) -> TierKind {
        TierKind::Mirror
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            let Some(sim) = self.0.upgrade() else { return Ok(None) };
            sleep(MIRROR_LATENCY).await;
            let blob = blob.clone();
            let pages = stream::iter(range.step_by(BLOCK as usize)).then(move |_| {
                let (sim, blob) = (sim.clone(), blob.clone());
                async move {
                    sleep(MIRROR_BLOCK_TIME).await;
                    sim.read(&blob);
                    Ok(sim.page.clone())
                }
            });
            Ok(Some(pages.boxed()))
        }
        .boxed()
    }
}
