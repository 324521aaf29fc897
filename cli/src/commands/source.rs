//! `bdnfs source`: the identity of a source in a cluster. Needs no network.

use anyhow::{Result, anyhow};
use bdnfs::source::tenant;
use bdnfs_agent::api::DEFAULT_TENANT;
use bdnfs_agent::api::attributes::Attributes;
use bdnfs_csi::source_label;
use clap::Subcommand;

use crate::output;
use crate::source::{Parser, Source};

/// The arguments of `bdnfs source`.
#[derive(Debug, clap::Args)]
pub struct SourceCommandArgs {
    #[command(subcommand)]
    command: SourceCommand,
}

#[derive(Debug, Subcommand)]
enum SourceCommand {
    /// Print the affinity of pods that prefer nodes which have the source whole, for `bdnfs csi --locality`
    Key(KeyArgs),
}

/// The arguments of `bdnfs source key`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct KeyArgs {
    /// The source, as the volume names it. Its revision does not matter
    #[arg(value_parser = Parser)]
    source: Source,
    /// Tenant of the volume: the pod's namespace, unless an administrator says otherwise
    #[arg(long, value_name = "NAME", default_value = DEFAULT_TENANT, value_parser = tenant)]
    tenant: String,
    /// URL of the service, where the volume has the attribute `endpoint`
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
}

const EXAMPLES: &str = "Examples:
  bdnfs source key hf://meta-llama/Llama-3.1-8B --tenant team-a
  bdnfs source key s3://models/llama --endpoint https://minio.example.org";

/// Runs the command.
pub fn run(args: SourceCommandArgs) -> Result<()> {
    let SourceCommand::Key(KeyArgs { source, tenant, endpoint }) = args.command;
    let text = ("source".to_owned(), source.text().expose().to_owned());
    let attributes: Attributes =
        endpoint.map(|url| ("endpoint".to_owned(), url)).into_iter().chain([text]).collect();
    let request = attributes.request(None, Default::default(), None).map_err(|error| anyhow!("{error}"))?;
    let label = source_label(&tenant, &source.uri().identity(&request.access));
    output::print(&affinity(&label))
}

/// The affinity for a pod's `spec`, as YAML.
pub fn affinity(label: &str) -> String {
    format!(
        "affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
        - key: {label}
          operator: Exists
"
    )
}

fn tenant(text: &str) -> Result<String, String> {
    tenant::check(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}
