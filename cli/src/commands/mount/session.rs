//! The mounts of one `bdnfs mount`: made, staged, waited for, and unmounted where one of them fails.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use bdnfs::error::Kind;
use bdnfs_agent::AgentServer;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::{MountInfo, MountRequest};
use bdnfs_agent::signals;
use bdnfs_fs::mounts;

use super::MountArgs;
use crate::access::option_name;
use crate::endpoint::{Connection, Endpoint, serve_or_request};
use crate::mountpoint::CreatedDirectories;
use crate::options::MountBackendArg;
use crate::output::{mount_summary, stderr_line};
use crate::spawn::{AGENT_EXIT_TIMEOUT, AGENT_START_POLL_INTERVAL, SpawnOutcome, spawn};
use crate::{mountpoint, progress, text, weights};

/// The number of agents that may fail during one request before it is taken for the cause.
const AGENT_FAILURE_LIMIT: u32 = 3;

/// The mounts of one command.
pub(super) struct MountSession {
    args: MountArgs,
    verbose: u8,
    endpoint: Endpoint,
    client: Client,
    requests: Vec<MountRequest>,
    /// The directories created for them.
    created: CreatedDirectories,
}

impl MountSession {
    /// Checks the arguments and creates the mount points that a configuration names.
    pub(super) fn new(args: MountArgs, verbose: u8) -> Result<Self> {
        mountpoint::check_fuse()?;
        let endpoint = Endpoint::find(&args.cache)?;
        let entries = args.entries()?;
        weights::refuse_shared_locations(&entries)?;
        let sources: Vec<_> = entries.iter().map(|entry| entry.source.uri()).collect();
        let access = &args.source_options.access;
        access.check(&sources, args.mirror.uri(), option_name)?;
        let mirror = args.mirror.request(access, &sources)?;
        let mut created = CreatedDirectories::default();
        let mut requests = Vec::new();
        for entry in entries {
            let mountpoint = match &args.config {
                None => entry.mountpoint.clone(),
                Some(_) => created.create(&entry.mountpoint, args.root.as_deref())?,
            };
            requests.push(args.request(entry, mirror.clone(), &mountpoint)?);
        }
        let client = Client::new(endpoint.socket());
        Ok(Self { args, verbose, endpoint, client, requests, created })
    }

    /// Mounts through the agent of the cache, which is started when there is none. A failure leaves nothing mounted.
    pub(super) async fn run_in_background(mut self) -> Result<()> {
        let mut mounted = Vec::new();
        let result = tokio::select! {
            biased;
            signal = signals::termination() => match signal {
                Ok(()) => Err(anyhow!("interrupted; all mounts of this command are unmounted")),
                Err(error) => Err(error.into()),
            },
            result = self.mount_all(&mut mounted) => result,
        };
        if result.is_err() {
            self.unmount_all(&mounted).await;
        }
        result
    }

    async fn mount_all(&mut self, mounted: &mut Vec<MountInfo>) -> Result<()> {
        for request in &self.requests {
            mounted.push(self.mount(request).await?);
        }
        self.finish(mounted).await
    }

    /// Mounts one, and starts an agent where there is none.
    async fn mount(&self, request: &MountRequest) -> Result<MountInfo> {
        let (mut failed_agents, mut in_use_since) = (0, None);
        loop {
            let answer = self.client.mount(request).await;
            let Endpoint::CacheOwner(cache) = &self.endpoint else { return Ok(answer?) };
            match answer {
                Ok(mounted) => return Ok(mounted),
                Err(error @ ClientError::Disconnected(_)) if failed_agents == AGENT_FAILURE_LIMIT => {
                    return Err(error).with_context(|| format!("see {}", cache.log().display()));
                }
                Err(ClientError::Disconnected(_)) => failed_agents += 1,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error.into()),
            }
            let SpawnOutcome::CacheInUse(failure) = spawn(cache, self.verbose)? else { continue };
            if in_use_since.get_or_insert_with(Instant::now).elapsed() > AGENT_EXIT_TIMEOUT {
                bail!(
                    "{failure}; no agent responded within {AGENT_EXIT_TIMEOUT:?}; see {}",
                    cache.log().display()
                );
            }
            tokio::time::sleep(AGENT_START_POLL_INTERVAL).await;
        }
    }

    /// Serves the mounts as the agent of the cache, or mounts through the one that runs, until they end.
    pub(super) async fn run_in_foreground(mut self) -> Result<()> {
        let request = &self.requests[0];
        let (client, connection) =
            serve_or_request(&self.args.cache, async |client: &Client| client.mount(request).await).await?;
        self.client = client;
        match connection {
            Connection::Server(server) => self.serve(server).await,
            Connection::Answer(first) => self.wait_beside(first).await,
        }
    }

    /// Serves the mounts, and those of other commands, until the last has ended. The agent handles signals.
    async fn serve(&mut self, agent: AgentServer) -> Result<()> {
        let alive = agent.keep_alive();
        let work = async {
            let mut mounted = Vec::new();
            let result = tokio::select! {
                biased;
                signal = signals::stop_request() => signal.map_err(Into::into),
                result = self.mount_and_wait(&mut mounted) => result,
            };
            if result.is_err() {
                self.unmount_all(&mounted).await;
            }
            drop(alive);
            result
        };
        let (served, result) = tokio::join!(agent.serve(), work);
        result.and(served.map_err(Into::into))
    }

    /// Mounts the others through the agent that has the first mount, and waits; a signal unmounts them.
    async fn wait_beside(&mut self, first: MountInfo) -> Result<()> {
        let mut mounted = vec![first];
        let (result, ended) = tokio::select! {
            biased;
            signal = signals::stop_request() => (signal.map_err(Into::into), false),
            result = self.mount_and_wait(&mut mounted) => { let ended = result.is_ok(); (result, ended) }
        };
        if !ended {
            self.unmount_all(&mounted).await;
        }
        result
    }

    /// Mounts what is not mounted yet, and waits until all mounts have ended.
    async fn mount_and_wait(&mut self, mounted: &mut Vec<MountInfo>) -> Result<()> {
        for request in &self.requests[mounted.len()..] {
            mounted.push(self.client.mount(request).await?);
        }
        self.finish(mounted).await?;
        for mounted in mounted {
            match self.client.await_end(mounted.id).await {
                // It was unmounted before the agent was asked, or the agent has ended with its last mount.
                Err(error) if error.is(Kind::NotFound) || error.is_gone() && is_unmounted(mounted) => {}
                answer => answer?,
            }
        }
        Ok(())
    }

    /// Prints the mounts, and stages them with `--wait`.
    async fn finish(&mut self, mounted: &[MountInfo]) -> Result<()> {
        mounted.iter().try_for_each(|mounted| self.print_mounted(mounted))?;
        if self.args.wait {
            // All are staged at once; their progress is shown one after the other.
            for mounted in &mounted[1..] {
                self.client.stage(mounted.id, self.args.verify).await?;
            }
            for mounted in mounted {
                self.stage(mounted).await?;
            }
        }
        self.created.keep();
        Ok(())
    }

    async fn stage(&self, mounted: &MountInfo) -> Result<()> {
        let (start, mountpoint) = (Instant::now(), mounted.mountpoint.display());
        let staging = match progress::stage(&self.client, mounted.id, self.args.verify).await {
            Ok(staging) => staging,
            // An on-demand agent ends with its last mount.
            Err(error) if error.is(Kind::NotFound) || error.is_gone() && is_unmounted(mounted) => {
                bail!("{mountpoint} was unmounted before it was staged");
            }
            Err(error) if error.is_gone() => {
                bail!("the agent ended before {mountpoint} was staged; see `bdnfs status`");
            }
            Err(error) => {
                let unmounted = if self.requests.len() > 1 { "all mounts are" } else { "it is" };
                return Err(error)
                    .with_context(|| format!("cannot stage {}; {unmounted} unmounted", mounted.source));
            }
        };
        if self.args.via.is_some_and(|via| !matches!(via, MountBackendArg::Fuse)) {
            let status = self.client.status().await?;
            let warnings = status.at(&mounted.mountpoint).map(|mount| mount.mounted.warnings.clone());
            for warning in warnings.unwrap_or_default() {
                stderr_line!("note: {}: {warning}", mounted.mountpoint.display());
            }
        }
        self.print(&if self.args.json {
            serde_json::to_string(&staging)?
        } else {
            let done = &staging.progress;
            let (files, bytes, cached) =
                (text::files(done.files), text::size(done.bytes), text::size(done.bytes_found));
            let seconds = start.elapsed().as_secs_f64();
            format!("staged {}: {files}, {bytes} ({cached} cached before) in {seconds:.1} s", mounted.source)
        });
        Ok(())
    }

    fn print_mounted(&self, mounted: &MountInfo) -> Result<()> {
        for warning in &mounted.warnings {
            stderr_line!("note: {warning}");
        }
        self.print(&if self.args.json { serde_json::to_string(mounted)? } else { mount_summary(mounted) });
        Ok(())
    }

    /// Prints a line. A closed stdout is no reason to abandon a mount.
    fn print(&self, line: &str) {
        if !self.args.quiet {
            let _ = writeln!(std::io::stdout().lock(), "{line}");
        }
    }

    /// Unmounts all; busy ones are detached.
    async fn unmount_all(&self, mounted: &[MountInfo]) {
        for mounted in mounted {
            match self.client.unmount(mounted.id, false).await {
                Err(error) if error.is(Kind::Busy) => {
                    let holders = mountpoint::holders(&mounted.mountpoint);
                    let busy = mountpoint::busy_message(&mounted.mountpoint, &holders);
                    stderr_line!("note: {busy}; detached");
                    if let Err(error) = self.client.unmount(mounted.id, true).await {
                        stderr_line!("note: {error}");
                    }
                }
                Err(error) if !error.is_gone() && !error.is(Kind::NotFound) => {
                    stderr_line!("note: {error}");
                }
                _ => {}
            }
        }
    }
}

/// Whether nothing is mounted at the mount point of `mounted`.
fn is_unmounted(mounted: &MountInfo) -> bool {
    matches!(mounts::at(&mounted.mountpoint), Ok(None))
}
