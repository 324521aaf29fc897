//! The HTTP client of peers, with a pool of connections.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::StatusCode;

use super::connection::{PeerConnection, ResponseHead};
use super::frame_reader::FrameReader;
use super::pool::{ConnectionPool, PoolKey};
use super::{PeerClient, RESPONSE_TIMEOUT};
use crate::buffer::BufferPool;
use crate::error::{Error, Kind, Result};
use crate::peer::Member;
use crate::peer::identity::{self, Identity};
use crate::peer::wire::{BlockRequest, BlockResponse};

/// Sends requests over TCP, with TLS where this node has an identity.
#[derive(Debug, Default)]
pub struct HttpPeerClient {
    identity: Option<Arc<Identity>>,
    pool: Arc<ConnectionPool>,
    /// The buffers of responses.
    buffers: Arc<BufferPool>,
}

impl HttpPeerClient {
    /// A client with mutual TLS.
    pub fn new(identity: Arc<Identity>) -> Self {
        Self { identity: Some(identity), ..Self::default() }
    }

    /// A client without TLS: for tests on one machine.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Sends `request` to `peer`, on a connection of the pool or a new one, and receives the head of the response.
    async fn send(
        &self,
        to: &PoolKey,
        peer: &Member,
        request: &BlockRequest,
    ) -> Result<(PeerConnection, ResponseHead)> {
        let host = identity::host(&peer.id);
        while let Some(mut stream) = self.pool.take(to) {
            // It fails at once when the peer has closed it in the meantime.
            if let Ok(status) = stream.send(&host, request).await {
                return Ok((stream, status));
            }
        }
        let mut stream = PeerConnection::connect(self.identity.as_deref(), peer).await?;
        let status = stream.send(&host, request).await?;
        Ok((stream, status))
    }
}

impl PeerClient for HttpPeerClient {
    fn request<'a>(
        &'a self,
        peer: &'a Member,
        request: &'a BlockRequest,
    ) -> BoxFuture<'a, Result<BlockResponse>> {
        async move {
            let version = self.identity.as_ref().map_or(0, |identity| identity.version());
            let to = (peer.id.clone(), peer.address, version);
            let sent = self.send(&to, peer, request).await;
            let (stream, status) = sent.map_err(|e| e.context(format!("the peer {}", peer.id)))?;
            let pool = status.kept.then(|| (self.pool.clone(), to));
            if status.body && status.code == StatusCode::OK {
                return Ok(BlockResponse::Frames(
                    FrameReader::new(stream, pool, self.buffers.clone()).frames(),
                ));
            }
            if let Some((pool, to)) = pool.filter(|_| !status.body) {
                pool.keep(to, stream);
            }
            match status.code {
                StatusCode::NOT_FOUND => Ok(BlockResponse::Miss),
                StatusCode::SERVICE_UNAVAILABLE => {
                    Ok(BlockResponse::Busy(status.retry_after.unwrap_or(RESPONSE_TIMEOUT)))
                }
                code => {
                    let text = format!("the peer {} responds with HTTP {code}", peer.id);
                    Err(Error::new(Kind::Unavailable, text))
                }
            }
        }
        .boxed()
    }
}
