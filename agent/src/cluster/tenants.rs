//! The tenants that a node hosts: those of its certificate, as it is now.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::engine::Engine;
use bdnfs::error::Result;
use bdnfs::peer::identity::Identity;
use bdnfs::peer::membership::gossip::Gossip;
use bdnfs::peer::server::PeerServer;
use bdnfs::peer::token;
use bdnfs::peer_service::PeerBlockService;
use bdnfs::source::SecretStore;
use bdnfs::task::blocking;

use crate::api::MirrorRequest;
use crate::mirror;

/// The tenants whose data a node serves to peers.
pub struct HostedTenants {
    engine: Engine,
    mirror: MirrorRequest,
    cache: PathBuf,
    server: Arc<PeerServer>,
    tenants: BTreeSet<String>,
}

impl HostedTenants {
    /// No tenants yet. `server` serves what `engine` has, and can get from each tenant's part of `mirror`.
    pub fn new(
        engine: &Engine,
        mirror: &MirrorRequest,
        cache: &Path,
        secrets: &[SecretStore],
        server: Arc<PeerServer>,
    ) -> Self {
        let mut mirror = mirror.clone();
        mirror.access.secrets.extend_from_slice(secrets);
        Self { engine: engine.clone(), mirror, cache: cache.to_owned(), server, tenants: BTreeSet::new() }
    }

    /// Serves the data of `tenant` from now on, to members that host it.
    pub async fn host(&mut self, tenant: String) -> Result<()> {
        let at = MirrorRequest { tenant: tenant.clone(), ..self.mirror.clone() };
        let (engine, scratch) = (self.engine.clone(), self.cache.clone());
        let made = blocking(move || {
            Ok(Arc::new(PeerBlockService::new(engine.of(&at.tenant)?, mirror::open(&at, scratch)?)))
        });
        self.server.host(&tenant, Arc::new(made.await?));
        self.tenants.insert(tenant);
        Ok(())
    }

    /// Hosts the tenants that the certificate of `identity` names, whenever that changes, and tells the members so by
    /// `gossip`. Never ends.
    pub async fn follow(mut self, identity: Arc<Identity>, gossip: Arc<Gossip>) {
        let mut changes = identity.changes();
        // The channel lives as long as the identity.
        while changes.changed().await.is_ok() {
            let named: BTreeSet<String> = identity.own().tenants.unwrap_or_default().into_iter().collect();
            if named == self.tenants {
                continue;
            }
            for gone in self.tenants.difference(&named) {
                self.server.stop_hosting(gone);
            }
            self.tenants.retain(|tenant| named.contains(tenant));
            for tenant in named {
                if self.tenants.contains(&tenant) {
                    continue;
                }
                if let Err(error) = self.host(tenant.clone()).await {
                    tracing::warn!(%error, "cannot host the tenant {tenant}");
                }
            }
            tracing::info!("the node hosts these tenants now: {:?}", self.tenants);
            let tokens: Vec<_> = self.tenants.iter().map(|tenant| token(&[tenant.as_bytes()])).collect();
            gossip.host(&tokens).await;
        }
    }
}
