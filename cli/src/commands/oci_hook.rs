//! `bdnfs oci-hook`: weights for a container by its annotation, for podman, CRI-O and whatever runs OCI hooks.
//!
//! ```text
//!  createRuntime: state (stdin) ─> bundle: annotation ─> publish, wait ─> copy of the base ─> mount namespace of the container
//!  poststop:      state (stdin) ─> unpublish
//! ```

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bdnfs::weights::shown_sources;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::publication::{PublicationRequest, PublicationState, Staging};
use bdnfs_fs::mount_copy::DetachedMount;

use crate::publications::{PublisherArgs, publish_until, unpublish_all};
use crate::{runtime, text};
use bundle::{Bundle, ContainerState, ContainerWeights};

mod attach;
mod bundle;

/// The arguments of `bdnfs oci-hook`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct OciHookArgs {
    /// Start containers before everything is local
    #[arg(long)]
    lazy: bool,
    /// Timeout of staging; must be below the timeout of the hook itself
    #[arg(long, value_name = "DURATION", value_parser = text::parse_duration, default_value = "59m")]
    timeout: Duration,
    #[command(flatten)]
    publisher: PublisherArgs,
}

const EXAMPLES: &str = "Container runtimes run it as createRuntime and poststop, with the container's state on its standard input:
  podman run --annotation io.bdnfs.weights='[{\"source\": \"hf://o/m\", \"mount_location\": \"/models/m\"}]' IMAGE";

/// Mounts the weights of a container that is created, or releases those of one that has ended.
pub fn run(args: &OciHookArgs) -> Result<()> {
    let state = ContainerState::read(io::stdin())?;
    let client = args.publisher.client()?;
    let prefix = state.key_prefix();
    if state.has_ended() {
        return runtime::block_on(async { Ok(unpublish_all(&client, &prefix).await?) });
    }
    let bundle = Bundle::read(&state)?;
    let weights = bundle.weights()?;
    if weights.is_empty() {
        return Ok(());
    }
    let mut requests = Vec::new();
    for (index, entry) in weights.iter().enumerate() {
        let consumer = format!("container {}", state.id);
        let mut request = args.publisher.request(&entry.source, entry.auth.clone(), consumer)?;
        request.access.executable.clone_from(&entry.executable);
        let (allow, ignore) = (entry.allow.clone(), entry.ignore.clone());
        let staging = if args.lazy { Staging::Lazy } else { Staging::Wait };
        let layout = entry.layout;
        let request = PublicationRequest { allow, ignore, staging, layout, ..request };
        requests.push((format!("{prefix}{index}"), request));
    }
    let until = Instant::now() + args.timeout;
    let mounted = runtime::block_on(publish(&client, &requests, until)).and_then(|bases| {
        let located = |entry: &'_ ContainerWeights| {
            (entry.mount_location.clone(), entry.layout, entry.source.uri().clone())
        };
        let shown = shown_sources(&weights.iter().map(located).collect::<Vec<_>>(), &[]);
        let trees = bases.iter().zip(&shown).map(|(base, shown)| shown.within(base));
        let copies = trees.map(|tree| DetachedMount::copy_of(&tree)).collect::<Result<Vec<_>, _>>()?;
        let locations = shown.into_iter().map(|shown| shown.place);
        attach::attach(copies.into_iter().zip(locations).collect(), state.pid, &bundle.root)
    });
    if mounted.is_err() {
        // Not every runtime runs poststop for a container that was never created.
        let _ = runtime::block_on(async { Ok(unpublish_all(&client, &prefix).await?) });
    }
    mounted
}

/// Publishes all, and returns the paths of their bases.
async fn publish(
    client: &Client,
    requests: &[(String, PublicationRequest)],
    until: Instant,
) -> Result<Vec<PathBuf>> {
    // All are begun before one is waited for.
    for (key, request) in requests {
        publish_until(client, key, request, Instant::now()).await?;
    }
    let mut bases = Vec::new();
    for (key, request) in requests {
        let status = publish_until(client, key, request, until).await?;
        if status.state != PublicationState::Published {
            bail!("staging timed out: {}; raise --timeout of the hook", status.message);
        }
        bases.push(status.path.context("the agent does not say where it has published the weights")?);
    }
    Ok(bases)
}
