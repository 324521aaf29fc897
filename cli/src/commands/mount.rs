//! `bdnfs mount`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use bdnfs::error::Kind;
use bdnfs::source::{TreeLayout, Uri};
use bdnfs_agent::AgentServer;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::{MountInfo, MountRequest, Weights};
use bdnfs_agent::signals;
use bdnfs_fs::mounts;

use crate::access::option_name;
use crate::cache::CacheArgs;
use crate::endpoint::{Connection, Endpoint, serve_or_request};
use crate::mirror::MirrorArgs;
use crate::mountpoint::CreatedDirectories;
use crate::options::{self, MountBackendArg, MountOptions};
use crate::output::{mount_summary, stderr_line};
use crate::runtime;
use crate::source::{self, Source, SourceOptions};
use crate::spawn::{AGENT_EXIT_TIMEOUT, AGENT_START_POLL_INTERVAL, SpawnOutcome, spawn};
use crate::weights::WeightsEntry;
use crate::{mountpoint, progress, text, weights};

/// How many agents may fail during one request before it is taken for the cause.
const AGENT_FAILURE_LIMIT: u32 = 3;

/// The arguments of `bdnfs mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct MountArgs {
    /// hf://owner/name@revision, s3://bucket/prefix, gs://, r2://, cw://, azure://, https://host/file, or a local /path
    #[arg(value_parser = source::Parser, required_unless_present = "config")]
    source: Option<Source>,
    /// Mount point: an existing directory
    #[arg(required_unless_present = "config")]
    mountpoint: Option<PathBuf>,
    /// Mount all weights of a configuration: config.yaml of Truss, training job as JSON, or TOML with [[weights]]. Missing
    /// mount points are created
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["source", "mountpoint", "allow", "ignore", "secret", "credentials", "auth", "layout"])]
    config: Option<PathBuf>,
    /// With --config: directory under which all mount points are created
    #[arg(long, value_name = "DIR", requires = "config", conflicts_with = "source")]
    root: Option<PathBuf>,
    /// Ignore unknown keys of the configuration with a warning, instead of rejecting it
    #[arg(long, requires = "config", conflicts_with = "source")]
    lenient: bool,
    #[command(flatten)]
    source_options: SourceOptions,
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Run in the foreground; SIGINT and SIGTERM unmount, SIGHUP is ignored
    #[arg(long)]
    foreground: bool,
    /// Stage: return when all data is local and verified
    #[arg(long)]
    pub wait: bool,
    /// With --wait: also read and verify what was local before
    #[arg(long, requires = "wait")]
    verify: bool,
    /// With --wait: what serves the mount once all of it is local. fuse: the agent; native: the kernel alone (EROFS); auto: the
    /// kernel alone where no file exceeds 16 MiB. Default: as the agent is configured, else fuse
    #[arg(long, value_enum, requires = "wait")]
    via: Option<MountBackendArg>,
    /// How the tree is shown. hf-cache, for hf://: models--owner--name/{refs,blobs,snapshots}, as in a directory that HF_HUB_CACHE
    /// names. Default: as the source has it
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<TreeLayout>,
    /// Use no network: mount the newest snapshot that is complete in the cache
    #[arg(long)]
    offline: bool,
    /// Allow other users to access the mount
    #[arg(long)]
    allow_other: bool,
    /// Owner of all files, a numeric user id. Default: the user who mounts
    #[arg(long, value_parser = options::parse_id)]
    uid: Option<u32>,
    /// Group of all files, a numeric group id. Default: that of the user who mounts
    #[arg(long, value_parser = options::parse_id)]
    gid: Option<u32>,
    /// Mount options, as of mount(8): ro, allow_other, uid=, gid=
    #[arg(short, value_name = "OPTIONS", value_parser = options::parse)]
    options: Vec<MountOptions>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Whether to print nothing when it succeeds.
    #[arg(skip)]
    pub quiet: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs mount s3://models/llama-3-8b /mnt/model
  bdnfs mount --mirror s3://mirror s3://models/llama-3-8b /mnt/model
  bdnfs mount --wait --layout hf-cache hf://owner/name /mnt/hub && HF_HUB_CACHE=/mnt/hub HF_HUB_OFFLINE=1 python train.py
  bdnfs mount --wait --via native hf://datasets/owner/images /mnt/images
  bdnfs mount --wait --allow '*.safetensors' --allow '*.json' s3://models/llama-3-8b /mnt/model
  bdnfs mount --secrets /run/secrets --secret hf_access_token hf://owner/private /mnt/model
  bdnfs mount --secrets /run/secrets --config config.yaml --root /srv/weights
  bdnfs mount --endpoint http://127.0.0.1:9000 --credentials key.json s3://models/x /mnt/x
  bdnfs mount --cache-dir /nvme/bdnfs --cache-size 2T https://host/weights.bin /mnt/weights";

impl MountArgs {
    /// Whether this process may become the agent.
    pub fn is_foreground(&self) -> bool {
        self.foreground
    }

    /// The source and the mount point, where they are arguments.
    pub fn target(&self) -> Option<(&Uri, &Path)> {
        Some((self.source.as_ref()?.uri(), self.mountpoint.as_deref()?))
    }

    /// The sources to mount, of the arguments or a configuration.
    fn entries(&self) -> Result<Vec<WeightsEntry>> {
        match (&self.config, &self.source, &self.mountpoint) {
            (Some(file), ..) => weights::read(file, &self.source_options, self.lenient),
            (None, Some(source), Some(mountpoint)) => {
                let (allow, ignore) = self.source_options.globs();
                let access = self.source_options.access(source.uri())?;
                let (source, mountpoint) = (source.clone(), mountpoint.clone());
                self.layout.map_or(Ok(()), |layout| layout.check(source.uri()))?;
                Ok(vec![WeightsEntry { source, mountpoint, allow, ignore, access, layout: self.layout }])
            }
            _ => bail!("name a source and a mount point, or --config"),
        }
    }

    /// The request to mount `entry` on `mountpoint`, which is checked.
    fn request(&self, entry: WeightsEntry, mountpoint: &Path) -> Result<MountRequest> {
        let mountpoint = mountpoint::prepare(mountpoint)?;
        let name = mountpoint.path.display();
        let uri = entry.source.uri();
        if entry.source.is_below(&mountpoint.path) {
            bail!("{uri} is below {name}, so the mount would hide it; choose another mount point");
        }
        for note in uri.note().iter().chain(&mountpoint.notes) {
            stderr_line!("note: {note}");
        }
        let flags = MountOptions { allow_other: self.allow_other, uid: self.uid, gid: self.gid };
        let options = self.options.iter().fold(MountOptions::default(), MountOptions::merge).merge(&flags);
        Ok(MountRequest {
            mirror: self.mirror.request(&self.source_options.access, &[uri])?,
            weights: Weights { mountpoint: mountpoint.path, ..entry.into_weights() },
            tenant: self.mirror.tenant().map(str::to_owned),
            direct: false,
            offline: self.offline,
            snapshot: None,
            allow_other: options.allow_other,
            uid: options.uid,
            gid: options.gid,
            via: self.via.map(MountBackendArg::into),
            cache_size: self.cache.size(),
        })
    }
}

/// Mounts the sources.
pub fn run(args: MountArgs, verbose: u8) -> Result<()> {
    let session = MountSession::new(args, verbose)?;
    if session.args.foreground {
        return runtime::block_on_threads(session.run_in_foreground());
    }
    runtime::block_on(session.run_in_background())
}

/// The mounts of one command.
struct MountSession {
    args: MountArgs,
    verbose: u8,
    endpoint: Endpoint,
    client: Client,
    requests: Vec<MountRequest>,
    /// The directories created for them.
    created: CreatedDirectories,
}

impl MountSession {
    fn new(args: MountArgs, verbose: u8) -> Result<Self> {
        mountpoint::check_fuse()?;
        let endpoint = Endpoint::find(&args.cache)?;
        let entries = args.entries()?;
        weights::refuse_shared_locations(&entries)?;
        let sources: Vec<_> = entries.iter().map(|entry| entry.source.uri()).collect();
        args.source_options.access.check(&sources, args.mirror.uri(), option_name)?;
        let mut created = CreatedDirectories::default();
        let mut requests = Vec::new();
        for entry in entries {
            let mountpoint = match &args.config {
                None => entry.mountpoint.clone(),
                Some(_) => created.create(&entry.mountpoint, args.root.as_deref())?,
            };
            requests.push(args.request(entry, &mountpoint)?);
        }
        let client = Client::new(endpoint.socket());
        Ok(Self { args, verbose, endpoint, client, requests, created })
    }

    /// Mounts through the agent of the cache, which is started when there is none. A failure leaves nothing mounted.
    async fn run_in_background(mut self) -> Result<()> {
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
    async fn run_in_foreground(mut self) -> Result<()> {
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
            self.client.await_end(mounted.id).await?;
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
        // An on-demand agent ends with its last mount.
        let is_unmounted = || matches!(mounts::at(&mounted.mountpoint), Ok(None));
        let staging = match progress::stage(&self.client, mounted.id, self.args.verify).await {
            Ok(staging) => staging,
            Err(error) if error.is(Kind::NotFound) || error.is_gone() && is_unmounted() => {
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
                    stderr_line!("note: {}; detached", mountpoint::busy_message(&mounted.mountpoint));
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
