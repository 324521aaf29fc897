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

/// What others are given, tenant by tenant.
pub struct Hosting {
    engine: Engine,
    mirror: MirrorRequest,
    cache: PathBuf,
    server: Arc<PeerServer>,
    tenants: BTreeSet<String>,
}

impl Hosting {
    /// Nobody yet. What `server` gives is what `engine` has, and can get from each tenant's part of `mirror`.
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

    /// From now on, what `tenant` has is given to those who may have it.
    pub async fn take_in(&mut self, tenant: String) -> Result<()> {
        let at = MirrorRequest { tenant: tenant.clone(), ..self.mirror.clone() };
        let (engine, scratch) = (self.engine.clone(), self.cache.clone());
        let made = blocking(move || {
            Ok(Arc::new(PeerBlockService::new(engine.of(&at.tenant)?, mirror::open(&at, scratch)?)))
        });
        self.server.host(&tenant, Arc::new(made.await?));
        self.tenants.insert(tenant);
        Ok(())
    }

    /// Hosts those whom the certificate of `identity` names, whenever that changes, and has `gossip` tell the others. Never
    /// ends.
    pub async fn follow(mut self, identity: Arc<Identity>, gossip: Arc<Gossip>) {
        let mut changes = identity.changes();
        // It lives as long as the identity.
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
                if let Err(error) = self.take_in(tenant.clone()).await {
                    tracing::warn!(%error, "the tenant {tenant} can't be hosted");
                }
            }
            tracing::info!("the node hosts these tenants now: {:?}", self.tenants);
            let tokens: Vec<_> = self.tenants.iter().map(|tenant| token(&[tenant.as_bytes()])).collect();
            gossip.host(&tokens).await;
        }
    }
}
