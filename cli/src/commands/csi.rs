//! `bdnfs csi`: the driver for Kubernetes, a client of the node's agent.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::socket;
use bdnfs_agent::signals;
use bdnfs_csi::{
    ApiServerConfig, DRIVER_NAME, LocalityConfig, NodeDriver, TrustPolicy, serve_controller, serve_node,
};
use clap::builder::NonEmptyStringValueParser;

use crate::{runtime, text};

/// The arguments of `bdnfs csi`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CsiArgs {
    /// Socket of the driver
    #[arg(long, value_name = "PATH", default_value = "/csi/csi.sock")]
    endpoint: PathBuf,
    /// Socket in the kubelet's directory plugins_registry, which registers the driver. Default: a sidecar does
    #[arg(long, value_name = "PATH", requires = "kubelet_endpoint")]
    registration: Option<PathBuf>,
    /// Path that the socket of the driver has for the kubelet
    #[arg(long, value_name = "PATH")]
    kubelet_endpoint: Option<PathBuf>,
    /// Name of the node
    #[arg(long, value_name = "NAME", required_unless_present = "controller", value_parser = NonEmptyStringValueParser::new())]
    node_id: Option<String>,
    /// Serve the controller, which makes volumes of StorageClasses, instead of a node
    #[arg(long, conflicts_with_all = ["registration", "node_id", "socket", "tenants", "trust_unmarked", "pod_tokens", "events", "locality"])]
    controller: bool,
    /// Control socket of the agent. Default: /run/bdnfs/agent.sock for root
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Tenant of a namespace; repeatable. Default: the namespace's name
    #[arg(long = "tenant", value_name = "NAMESPACE=TENANT", value_parser = tenant)]
    tenants: Vec<(String, String)>,
    /// Trust volumes that are marked neither as persistent nor as inline: outside Kubernetes, where only
    /// administrators write volumes
    #[arg(long)]
    trust_unmarked: bool,
    /// Take the tokens of pods that the kubelet sends: the CSIDriver has tokenRequests
    #[arg(long)]
    pod_tokens: bool,
    /// Post events of pods while their volumes are staged
    #[arg(long)]
    events: bool,
    /// Label the node with the sources that its cache has whole (bdnfs.io/has-…), for pods that prefer such nodes, and remove
    /// its taint bdnfs.io/agent-not-ready once pods can be served
    #[arg(long)]
    locality: bool,
    /// How often the labels are updated
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = text::parse_duration, requires = "locality")]
    locality_interval: Duration,
    /// API server for events and labels. Default: that of the cluster in which this pod runs
    #[arg(long, value_name = "URL")]
    api_server: Option<String>,
    /// Directory with the service account for it: ca.crt and token
    #[arg(long, value_name = "DIR", default_value = SERVICE_ACCOUNT_DIRECTORY)]
    service_account: PathBuf,
    /// Name of the driver
    #[arg(long, value_name = "NAME", default_value = DRIVER_NAME)]
    driver_name: String,
}

const EXAMPLES: &str = "Examples:
  bdnfs csi --node-id node-1 --registration /registration/csi.bdnfs.io-reg.sock \\
    --kubelet-endpoint /var/lib/kubelet/plugins/csi.bdnfs.io/csi.sock
  bdnfs csi --controller";

/// The directory in a pod with the credentials for the API server.
const SERVICE_ACCOUNT_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Serves until a signal stops it.
pub fn run(args: CsiArgs) -> Result<()> {
    runtime::block_on(async {
        let end = signals::termination();
        let end = async move {
            // A process that can't hear signals is ended by them.
            if end.await.is_err() {
                std::future::pending().await
            }
        };
        if args.controller {
            return Ok(serve_controller(args.driver_name, &args.endpoint, end).await?);
        }
        let agent = args
            .socket
            .or_else(socket::well_known)
            .context("no control socket of an agent found; name it with --socket")?;
        let account = args.service_account;
        let tells = args.events || args.locality;
        let api_server = tells.then(|| {
            let url = args.api_server.map_or_else(in_cluster, Ok)?;
            anyhow::Ok(ApiServerConfig {
                url,
                authority: account.join("ca.crt"),
                token: account.join("token"),
            })
        });
        let api_server = api_server.transpose()?;
        let interval = args.locality_interval;
        let locality = |api_server| LocalityConfig { api_server, interval };
        let driver = NodeDriver {
            events: api_server.clone().filter(|_| args.events),
            locality: api_server.filter(|_| args.locality).map(locality),
            name: args.driver_name,
            node_id: args.node_id.unwrap_or_default(),
            endpoint: args.endpoint,
            registration: args.registration.zip(args.kubelet_endpoint),
            agent: Client::new(agent),
            policy: TrustPolicy {
                trust_unmarked: args.trust_unmarked,
                pod_tokens: args.pod_tokens,
                tenants: args.tenants.into_iter().collect(),
            },
        };
        Ok(serve_node(driver, end).await?)
    })
}

/// The URL of the API server of this pod's cluster, from the environment.
fn in_cluster() -> Result<String> {
    let variable = |name| {
        std::env::var(name).with_context(|| format!("{name} is not set, so there is no API server for --events and --locality; name the --api-server"))
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    Ok(if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") })
}

fn tenant(text: &str) -> Result<(String, String), String> {
    let (namespace, tenant) = text.split_once('=').ok_or("expected NAMESPACE=TENANT")?;
    bdnfs::source::tenant::check(tenant).map_err(|error| error.to_string())?;
    Ok((namespace.to_owned(), tenant.to_owned()))
}
