//! `bdnfs status`.

#[cfg(test)]
mod tests;
pub mod unsaved;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use bdnfs::task::blocking;
use bdnfs::timeout::within;
use bdnfs_agent::api::container_volume::ContainerVolumeStatus;
use bdnfs_agent::api::publication::{PublicationState, PublicationStatus};
use bdnfs_agent::api::saving::UnsavedDirectory;
use bdnfs_agent::api::socket;
use bdnfs_agent::api::{AgentInfo, AgentStatus, LostMount, MountBackend, MountStatus, StageState};
use bdnfs_agent::recorded_mountpoints;
use bdnfs_fs::mounts::{self, MountEntry, MountUser};
use serde::Serialize;

use crate::agents;
use crate::output::print;
use crate::probe::{self, MountHealth};
use crate::runtime;
use crate::text;
use unsaved::unsaved_table;

/// The arguments of `bdnfs status`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// Print all details as JSON
    #[arg(long)]
    json: bool,
    /// Show only mounts that use this cache
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

/// The time in which the disk of a cache must tell of its mounts, which are a few small files.
const RECORDS_TIMEOUT: Duration = Duration::from_secs(2);
/// The names of the fd store's process: of this version, and of one that an earlier version started.
const FDSTORE_PROCESS_NAMES: [&str; 2] = ["bdnfs-fdstore", "bdnfs-holder"];

const EXAMPLES: &str = "Examples:
  bdnfs status
  bdnfs status --json | jq '.mounts[].state'";

/// The mounts and agents of this machine.
#[derive(Debug, Serialize)]
struct StatusReport {
    mounts: Vec<MountReport>,
    /// The publications.
    publications: Vec<PublicationStatus>,
    /// The volumes that containers write to.
    volumes: Vec<ContainerVolumeStatus>,
    /// The directories with checkpoints that could not be saved.
    unsaved: Vec<UnsavedDirectory>,
    #[serde(rename = "daemons")]
    agents: Vec<AgentInfo>,
    /// The agents that do not answer, a sentence each.
    unresponsive: Vec<String>,
}

/// A mount as the kernel lists it, with the status of its agent.
#[derive(Debug, Serialize)]
struct MountReport {
    mountpoint: PathBuf,
    source: String,
    /// The state in a few words.
    state: String,
    /// The status from its agent, if that answers.
    status: Option<MountStatus>,
    /// Whether nobody can read there.
    #[serde(skip)]
    is_broken: bool,
}

impl MountReport {
    /// A mount that its agent could not restore.
    fn lost(lost: LostMount) -> Self {
        let LostMount { source, mountpoint, why, .. } = lost;
        Self { mountpoint, source, state: format!("not restored: {why}"), status: None, is_broken: true }
    }
}

/// Prints the status.
pub fn run(args: &StatusArgs) -> Result<()> {
    // A missing cache has no mounts.
    let cache = args.cache_dir.as_ref().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    let report = runtime::block_on(query(cache))?;
    print(&if args.json { serde_json::to_string_pretty(&report)? + "\n" } else { format_report(&report) })?;
    let broken = report.mounts.iter().filter(|mount| mount.is_broken);
    let broken = broken.map(|mount| format!("{}: {}", mount.mountpoint.display(), mount.state));
    let faults: Vec<_> = report.unresponsive.iter().cloned().chain(broken).collect();
    if faults.is_empty() { Ok(()) } else { bail!("{}", faults.join("; ")) }
}

async fn query(cache: Option<PathBuf>) -> Result<StatusReport> {
    let mounts = mounts::list()?;
    // The agent runs without mounts, too. It is asked while they are, so that what hangs is waited for once.
    let named = cache.as_deref().map_or_else(socket::well_known, |cache| Some(socket::of_cache(cache)));
    let mountpoints: Vec<_> = mounts.iter().map(|mounted| mounted.mountpoint.clone()).collect();
    let probing = blocking(move || Ok(probe::mounts(mountpoints.iter().map(PathBuf::as_path))));
    let (healths, asked) = tokio::join!(probing, agents::query(named.iter().cloned().collect()));
    let (healths, mut agents) = (healths?, asked?);
    // A mount without its agent can't say which cache it uses, but there is a record of it.
    let has_mount_without_agent = healths.iter().any(|health| !matches!(health, MountHealth::Alive(_)));
    let recorded = match cache.clone().filter(|_| has_mount_without_agent) {
        Some(cache) => {
            let read = blocking(move || Ok(recorded_mountpoints(&cache)));
            within(RECORDS_TIMEOUT, read).await.transpose()?
        }
        None => Some(Vec::new()),
    };
    let is_wanted = |(mounted, health): &(MountEntry, MountHealth)| match (&cache, health) {
        (None, _) => true,
        (Some(cache), MountHealth::Alive(socket)) => *socket == socket::of_cache(cache),
        (Some(_), _) => recorded.iter().flatten().any(|mountpoint| *mountpoint == mounted.mountpoint),
    };
    let mounts: Vec<_> = mounts.into_iter().zip(healths).filter(is_wanted).collect();
    let sockets = mounts.iter().filter_map(|(_, health)| health.socket());
    let others = sockets.filter(|socket| Some(*socket) != named.as_ref()).cloned();
    agents.extend(agents::query(others.collect()).await?);
    let mut unresponsive: Vec<String> =
        agents.values().filter_map(|agent| agent.as_ref().err().cloned()).collect();
    unresponsive.extend(mounts.iter().filter_map(|(mounted, health)| match health {
        MountHealth::Unresponsive => Some(format_unresponsive(mounted)),
        _ => None,
    }));
    unresponsive.extend(cache.as_deref().filter(|_| recorded.is_none()).map(format_unresponsive_disk));
    let mut publications: Vec<_> =
        agents.values().flatten().flat_map(|status| status.publications.clone()).collect();
    publications.sort_by(|a, b| a.key.cmp(&b.key));
    publications.dedup();
    let volumes = agents.values().flatten().flat_map(|status| status.volumes.clone()).collect();
    let mut unsaved: Vec<_> = agents.values().flatten().flat_map(|status| status.unsaved.clone()).collect();
    // Agents of several caches have the same volumes.
    unsaved.sort_by(|a, b| a.directory.cmp(&b.directory));
    unsaved.dedup_by(|a, b| a.directory == b.directory);
    // Binds of a base are told with their publications.
    let is_bind = |mountpoint: &Path| {
        let bound = |one: &PublicationStatus| one.target.is_some() && one.path.as_deref() == Some(mountpoint);
        publications.iter().any(bound)
    };
    let mounts = mounts.into_iter().filter(|(mounted, _)| !is_bind(&mounted.mountpoint));
    let mounts = mounts.map(|(mounted, health)| {
        let (state, status) = match &health {
            MountHealth::Alive(socket) => mount_status(agents.get(socket), &mounted),
            MountHealth::Dead => ("dead: its agent is gone".to_owned(), None),
            MountHealth::Unresponsive => ("does not respond".to_owned(), None),
            MountHealth::Unknown(error) => (format!("unknown: {error}"), None),
        };
        // The mount table has the path of its image.
        let named = status.as_ref().filter(|_| mounted.is_native());
        let source = named.map_or(mounted.source, |status| status.mounted.source.clone());
        let is_broken = matches!(health, MountHealth::Dead);
        MountReport { mountpoint: mounted.mountpoint, source, state, status, is_broken }
    });
    let mut mounts: Vec<_> = mounts.collect();
    let lost = agents.values().flatten().flat_map(|status| &status.lost).cloned();
    let mut lost: Vec<_> = lost.map(MountReport::lost).collect();
    // An agent may listen on two sockets, and what is dead is listed.
    lost.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    lost.dedup_by(|a, b| a.mountpoint == b.mountpoint);
    mounts.retain(|mount| !mount.is_broken || lost.iter().all(|lost| lost.mountpoint != mount.mountpoint));
    mounts.extend(lost);
    let mut agents: Vec<_> = agents.into_values().flatten().map(|status| status.agent).collect();
    // An agent may listen on two sockets.
    agents.sort_by_key(|agent| agent.pid);
    agents.dedup_by_key(|agent| agent.pid);
    Ok(StatusReport { mounts, publications, volumes, unsaved, agents, unresponsive })
}

/// The error that the disk of `cache` does not respond, on which records say which mounts without an agent are its own.
fn format_unresponsive_disk(cache: &Path) -> String {
    let (cache, seconds) = (cache.display(), RECORDS_TIMEOUT.as_secs());
    format!(
        "the disk of {cache} does not respond within {seconds} s: its mounts without an agent are not known"
    )
}

/// The error that a mount does not respond, and which process should.
fn format_unresponsive(mounted: &MountEntry) -> String {
    let servers = mounts::servers(mounted);
    // Without its agent, the fd store has it alone.
    let is_agent = |process: &&MountUser| !FDSTORE_PROCESS_NAMES.contains(&process.command.as_str());
    let agent = servers.iter().find(is_agent).or(servers.first());
    let agent = agent
        .map_or("its agent".to_owned(), |process| format!("{} (process {})", process.command, process.pid));
    format!("{}: {agent} does not respond", mounted.mountpoint.display())
}

fn mount_status(
    agent: Option<&Result<AgentStatus, String>>,
    mounted: &MountEntry,
) -> (String, Option<MountStatus>) {
    let missing = |state: &str| {
        // Its image names the agent that made it, which may be gone, and another in its place.
        let state =
            if mounted.is_native() { "native: the kernel serves it, and no agent has it" } else { state };
        state.to_owned()
    };
    match agent {
        Some(Ok(status)) => {
            let found = status.at(&mounted.mountpoint);
            (found.map_or_else(|| missing("moved, bound, or being unmounted"), format_state), found.cloned())
        }
        Some(Err(error)) => (format!("unknown: {error}"), None),
        None => (missing("unknown"), None),
    }
}

/// The state of a mount, in a few words.
pub fn format_state(mount: &MountStatus) -> String {
    match &mount.stage {
        None => "ready".to_owned(),
        Some(staging) => match &staging.state {
            StageState::Running => {
                format!("staging {}", text::percent(staging.progress.bytes_done, staging.progress.bytes))
            }
            StageState::Done if mount.mounted.via == MountBackend::Native => "staged, native".to_owned(),
            StageState::Done => "staged".to_owned(),
            StageState::Failed(failure) => format!("staging failed: {failure}"),
        },
    }
}

fn format_report(report: &StatusReport) -> String {
    let head = ["MOUNTPOINT", "SOURCE", "FILES", "SIZE", "LOCAL", "FETCHED", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.mounts.iter().map(row));
    let mut out = match rows.len() {
        // What a silent agent has is unknown.
        1 if !report.unresponsive.is_empty() => String::new(),
        1 => "no mounts\n".to_owned(),
        _ => text::table(&rows, &[2, 3, 4, 5]),
    };
    if !report.publications.is_empty() {
        let head = ["PUBLICATION", "FOR", "SOURCE", "PATH", "STATE"].map(str::to_owned).to_vec();
        let rows: Vec<_> =
            std::iter::once(head).chain(report.publications.iter().map(publication_row)).collect();
        out.push_str(&text::table(&rows, &[]));
    }
    if !report.volumes.is_empty() {
        let head = ["VOLUME", "FOR", "NAME", "PATH", "STATE"].map(str::to_owned).to_vec();
        let rows: Vec<_> = std::iter::once(head).chain(report.volumes.iter().map(volume_row)).collect();
        out.push_str(&text::table(&rows, &[]));
    }
    out.push_str(&unsaved_table(&report.unsaved));
    for agent in &report.agents {
        out.push_str(&format_usage(agent));
    }
    out
}

fn row(mount: &MountReport) -> Vec<String> {
    let column =
        |format: &dyn Fn(&MountStatus) -> String| mount.status.as_ref().map_or("-".to_owned(), format);
    let local = |mount: &MountStatus| match mount.local {
        Some(local) => text::percent(local.min(mount.mounted.bytes), mount.mounted.bytes),
        None => "-".to_owned(),
    };
    vec![
        mount.mountpoint.display().to_string(),
        mount.source.clone(),
        column(&|mount| mount.mounted.files.to_string()),
        column(&|mount| text::size(mount.mounted.bytes)),
        column(&local),
        column(&|mount| text::size(mount.traffic.peer + mount.traffic.mirror + mount.traffic.origin)),
        mount.state.clone(),
    ]
}

fn publication_row(one: &PublicationStatus) -> Vec<String> {
    let state = match (one.state, &one.progress) {
        (PublicationState::Published, _) if one.abnormal => "published, but damaged".to_owned(),
        (PublicationState::Staging, Some(done)) => {
            format!("staging {}", text::percent(done.bytes_done, done.bytes))
        }
        (PublicationState::Failed, _) => format!("failed: {}", one.message),
        (state, _) => state.to_string(),
    };
    let path = one.path.as_ref().map_or("-".to_owned(), |path| path.display().to_string());
    vec![one.key.clone(), consumer(one.consumer.as_deref()), one.source.clone(), path, state]
}

/// Formats the consumer's name, which may come from a pod.
fn consumer(name: Option<&str>) -> String {
    name.map_or_else(|| "-".to_owned(), |name| text::printable(name.as_bytes()))
}

fn volume_row(one: &ContainerVolumeStatus) -> Vec<String> {
    let path = one.path.as_ref().map_or("-".to_owned(), |path| path.display().to_string());
    let of_job = one.id.as_ref().map_or_else(String::new, |id| format!("@{id}"));
    let (kind, name, state) = (one.kind, &one.name, format!("{}: {}", one.state, one.message));
    vec![kind.to_string(), consumer(one.consumer.as_deref()), format!("{name}{of_job}"), path, state]
}

fn format_usage(agent: &AgentInfo) -> String {
    let usage = &agent.usage;
    let used =
        usage.used.map_or("usage not known yet".to_owned(), |used| format!("{} used", text::size(used)));
    let limit = usage.capacity.map_or(String::new(), |limit| format!(" of {}", text::size(limit)));
    let (free, reserve) = (text::size(usage.free), text::size(usage.reserve));
    format!("cache {}: {used}{limit}; disk: {free} free, {reserve} reserved\n", agent.cache.display())
}
