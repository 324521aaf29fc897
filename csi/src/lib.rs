//! The CSI driver of bdnfs: sources as volumes of Kubernetes, and of whatever else speaks CSI 1.11.
//!
//! ```text
//!   kubelet ── GetInfo ──────────────> registration    which driver this is, and where it listens
//!           ── Probe ────────────────> identity        ready when the agent is
//!           ── NodePublishVolume ────> node ──────────> the agent: PUT /v1/publications/{key}, /v1/volumes/{key}
//!                                      │ volume_context what the author of a volume may ask for
//!                                      │ pod_identity   whom the pod's own token is exchanged for
//!                                      │ written_volume what a pod writes to
//!                                      │ call_deadline  how long a call is held
//!                                      │ status_code    what a failure means to the kubelet
//!                                      └ events         the progress that kubectl shows
//!   the API server <── PATCH node ─── locality        labels for the scheduler: what the agent's cache has
//!   provisioner ── CreateVolume ─────> controller      for StorageClass; keeps nothing
//! ```
//!
//! Calls of the agent go through `agent_retry`, which waits while it restarts; those of the API server, by `events` and `locality`,
//! through `api_server`.
//!
//! The driver has no privileges and keeps nothing: all work is the agent's, which goes on when a call is given up, and is joined
//! when the kubelet calls again.
//!
//! Serves the controller until somebody has connected:
//!
//! ```
//! use std::time::Duration;
//!
//! use bdnfs_csi::{DRIVER_NAME, serve_controller};
//! use tokio::net::UnixStream;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! let endpoint = home.path().join("csi.sock");
//! serve_controller(DRIVER_NAME.into(), &endpoint, async {
//!     while UnixStream::connect(&endpoint).await.is_err() {
//!         tokio::time::sleep(Duration::from_millis(10)).await;
//!     }
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```

mod api_server;
mod call_deadline;
mod controller;
mod events;
mod identity;
mod locality;
mod node;
mod pod_identity;
mod pod_token;
#[expect(missing_docs, reason = "generated from the protocols, which describe it")]
#[allow(clippy::all, clippy::unwrap_used)]
pub mod proto {
    //! The messages and services of the protocols. Messages carry secrets, so none can be printed.

    /// The Container Storage Interface.
    pub mod csi {
        tonic::include_proto!("csi.v1");
    }
    /// The registration of plugins at the kubelet.
    pub mod pluginregistration {
        tonic::include_proto!("pluginregistration");
    }
}
mod registration;
mod single_pod_claim;
mod status_code;
mod volume_context;
mod written_volume;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::Router;
use bdnfs::error::{Error, Result};
use bdnfs_agent::ControlSocket;
use bdnfs_agent::api::client::Client;
use tonic::service::Routes;

use self::controller::ControllerService;
use self::events::EventPoster;
use self::identity::IdentityService;
use self::locality::NodePatcher;
use self::node::NodeService;
use self::proto::csi::controller_server::ControllerServer;
use self::proto::csi::identity_server::IdentityServer;
use self::proto::csi::node_server::NodeServer;
use self::proto::pluginregistration::registration_server::RegistrationServer;
use self::registration::RegistrationService;

pub use self::api_server::ApiServerConfig;
pub use self::locality::{LocalityConfig, source_label};

/// The name of the driver, which volumes and the object `CSIDriver` refer to.
pub const DRIVER_NAME: &str = "csi.bdnfs.io";

/// The volumes that a driver trusts, and the tenants of namespaces.
#[derive(Clone, Debug, Default)]
pub struct TrustPolicy {
    /// Whether a volume is trusted that is marked neither persistent nor inline, as by other orchestrators than Kubernetes.
    pub trust_unmarked: bool,
    /// Whether the kubelet sends tokens of pods: the CSIDriver asks for them. Else such a token was written by an author.
    pub pod_tokens: bool,
    /// The tenants of namespaces; the tenant of any other has the namespace's name.
    pub tenants: BTreeMap<String, String>,
}

/// The driver of a node.
#[derive(Debug)]
pub struct NodeDriver {
    /// The name of the driver.
    pub name: String,
    /// The name of its node.
    pub node_id: String,
    /// The socket that it listens on.
    pub endpoint: PathBuf,
    /// The registration socket, and the path that `endpoint` has for the kubelet. `None`: a sidecar registers the driver.
    pub registration: Option<(PathBuf, PathBuf)>,
    /// The agent, which does the work.
    pub agent: Client,
    /// The volumes that the driver trusts.
    pub policy: TrustPolicy,
    /// The API server for events of pods; `None`: it posts none.
    pub events: Option<ApiServerConfig>,
    /// The labels of its node; `None`: it sets none.
    pub locality: Option<LocalityConfig>,
}

/// Serves a node's driver until `end` completes.
///
/// # Errors
/// [`bdnfs::error::Kind::Disk`] where a socket can't be used; [`bdnfs::error::Kind::Refused`] where the kubelet does not register
/// the driver.
pub async fn serve_node(driver: NodeDriver, end: impl Future<Output = ()>) -> Result<()> {
    let NodeDriver { name, node_id, endpoint, registration, agent, policy, events, locality } = driver;
    let patcher = |config| NodePatcher::new(config, agent.clone(), node_id.clone(), name.clone());
    let patcher = locality.map(patcher).transpose()?;
    let events = events.map(|config| EventPoster::new(config, node_id.clone())).transpose()?;
    let identity = IdentityService::node(name.clone(), agent.clone());
    let node = NodeService::new(agent, node_id, policy, events);
    let routes = Routes::new(IdentityServer::new(identity)).add_service(NodeServer::new(node));
    let driver = serve(ControlSocket::bind_beside(&endpoint)?, &endpoint, routes.into_axum_router());
    let registered = async {
        let Some((socket, endpoint)) = registration else { return std::future::pending().await };
        let (service, refused) = RegistrationService::new(name, endpoint);
        let routes = Routes::new(RegistrationServer::new(service)).into_axum_router();
        tokio::select! {
            ended = serve(ControlSocket::bind(&socket)?, &socket, routes) => ended,
            error = refused => Err(error),
        }
    };
    let patched = async {
        match patcher {
            Some(patcher) => patcher.run().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = driver => ended,
        ended = registered => ended,
        () = patched => Ok(()),
        // Calls under way are cut off: the kubelet repeats them, and the work goes on in the agent.
        () = end => Ok(()),
    }
}

/// Serves the controller at `endpoint`, which makes volumes of the parameters of a StorageClass, until `end` completes.
///
/// # Errors
/// [`bdnfs::error::Kind::Disk`] where the socket can't be used.
pub async fn serve_controller(name: String, endpoint: &Path, end: impl Future<Output = ()>) -> Result<()> {
    let routes = Routes::new(IdentityServer::new(IdentityService::controller(name)))
        .add_service(ControllerServer::new(ControllerService::default()));
    let socket = ControlSocket::bind_beside(endpoint)?;
    tokio::select! {
        ended = serve(socket, endpoint, routes.into_axum_router()) => ended,
        () = end => Ok(()),
    }
}

async fn serve(socket: ControlSocket, path: &Path, routes: Router) -> Result<()> {
    tracing::info!("listening at {}", path.display());
    let served = socket.serve(routes, std::future::pending()).await;
    served.map_err(|e| Error::disk(format!("cannot serve {}", path.display()), e))
}
