//! The CSI identity service: name, capabilities, readiness.

use bdnfs_agent::api::client::Client;
use tonic::{Request, Response, Status};

use crate::proto::csi;
use crate::proto::csi::identity_server::Identity;
use crate::proto::csi::plugin_capability;

/// The CSI identity service of a driver on a node, or of a controller.
pub struct IdentityService {
    name: String,
    /// The agent, without which a node's driver is not ready; a controller has none.
    agent: Option<Client>,
}

impl IdentityService {
    /// The identity of a node's driver.
    pub fn node(name: String, agent: Client) -> Self {
        Self { name, agent: Some(agent) }
    }

    /// The identity of a controller.
    pub fn controller(name: String) -> Self {
        Self { name, agent: None }
    }
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let vendor_version = env!("CARGO_PKG_VERSION").to_owned();
        let name = self.name.clone();
        Ok(Response::new(csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let controller = plugin_capability::service::Type::ControllerService.into();
        let service = plugin_capability::Type::Service(plugin_capability::Service { r#type: controller });
        let capability = csi::PluginCapability { r#type: Some(service) };
        let capabilities = if self.agent.is_none() { vec![capability] } else { Vec::new() };
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        let ready = match &self.agent {
            Some(agent) => agent.status().await.is_ok_and(|status| status.agent.ready),
            None => true,
        };
        Ok(Response::new(csi::ProbeResponse { ready: Some(ready) }))
    }
}
