//! `bdnfs mount`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bdnfs::error::Kind;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::{MountInfo, MountRequest, Weights};
use bdnfs_agent::{AgentConfig, AgentServer};
use bdnfs_agent::{runtime, signals};

use crate::cache;
use crate::mirror;
use crate::mountpoint::Made;
use crate::options::{self, Options};
use crate::server::Server;
use crate::source::{self, Source};
use crate::spawn::{Spawned, spawn};
use crate::weights::Item;
use crate::{mountpoint, progress, text, weights};

/// How long a daemon may take to end before its cache is given up on: it makes what it has durable first.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait before its socket and its lock are tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How many daemons may hang up on one request before it is taken to be what kills them.
const LOST_DAEMONS: u32 = 3;
/// As much of a snapshot's id as tells snapshots apart.
const ID_SHOWN: usize = 12;

/// What to mount where, and how.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// hf://owner/name@revision, s3://bucket/prefix, gs://, r2://, cw://, azure://, https://host/file, or a local /path
    #[arg(value_parser = source::Parser, required_unless_present = "config")]
    source: Option<Source>,
    /// Where it is to appear: an existing directory
    #[arg(required_unless_present = "config")]
    mountpoint: Option<PathBuf>,
    /// Mount all that a configuration names, each where it says: config.yaml of Truss, training job as JSON, or TOML with
    /// [[weights]]. Directories that are missing are made
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["source", "mountpoint", "allow", "ignore", "secret", "credentials", "auth"])]
    config: Option<PathBuf>,
    /// With --config: put everything below this directory, and nothing elsewhere
    #[arg(long, value_name = "DIR", requires = "config")]
    root: Option<PathBuf>,
    #[command(flatten)]
    how: source::How,
    #[command(flatten)]
    mirror: mirror::Args,
    #[command(flatten)]
    cache: cache::Args,
    /// Stay in the foreground; SIGINT and SIGTERM unmount
    #[arg(long)]
    foreground: bool,
    /// Return only when all of it is local and verified
    #[arg(long)]
    wait: bool,
    /// Let other users read it, too
    #[arg(long)]
    allow_other: bool,
    /// Owner of all files, as a number
    #[arg(long)]
    uid: Option<u32>,
    /// Group of all files, as a number
    #[arg(long)]
    gid: Option<u32>,
    /// Options as mount(8) takes them: ro, allow_other, uid=, gid=
    #[arg(short, value_name = "OPTIONS", value_parser = options::parse)]
    options: Vec<Options>,
    /// Tell the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs mount s3://models/llama-3-8b /mnt/model
  bdnfs mount --mirror s3://mirror s3://models/llama-3-8b /mnt/model
  bdnfs mount --wait --allow '*.safetensors' --allow '*.json' s3://models/llama-3-8b /mnt/model
  bdnfs mount --secrets /run/secrets --secret hf_access_token hf://owner/private /mnt/model
  bdnfs mount --secrets /run/secrets --config config.yaml --root /srv/weights
  bdnfs mount --endpoint http://127.0.0.1:9000 --credentials key.json s3://models/x /mnt/x
  bdnfs mount --cache-dir /nvme/bdnfs --cache-size 2T https://host/weights.bin /mnt/weights";

impl Args {
    /// Whether this process may become the daemon.
    pub fn foreground(&self) -> bool {
        self.foreground
    }

    /// What is to be mounted, as it was named.
    fn items(&self) -> Result<Vec<Item>> {
        match (&self.config, &self.source, &self.mountpoint) {
            (Some(file), ..) => weights::read(file, &self.how),
            (None, Some(source), Some(location)) => {
                let (allow, ignore) = self.how.globs();
                let access = self.how.access(source.uri())?;
                let (source, location) = (source.clone(), location.clone());
                Ok(vec![Item { source, location, allow, ignore, access }])
            }
            _ => bail!("name a source and where it is to appear, or a configuration"),
        }
    }

    /// What the daemon is asked to mount at `location`, where nothing may be in the way.
    fn request(&self, item: Item, location: &Path) -> Result<MountRequest> {
        let place = mountpoint::prepare(location)?;
        let name = place.path.display();
        let uri = item.source.uri();
        if item.source.is_below(&place.path) {
            bail!("{uri} lies below {name}, so the mount would hide it; choose another directory");
        }
        for note in uri.note().iter().chain(&place.notes) {
            eprintln!("note: {note}");
        }
        let flags = Options { allow_other: self.allow_other, uid: self.uid, gid: self.gid };
        let options = self.options.iter().fold(Options::default(), Options::and).and(&flags);
        Ok(MountRequest {
            mirror: self.mirror.request(&self.how.access, Some(uri))?,
            weights: Weights { mountpoint: place.path, ..item.weights() },
            tenant: self.mirror.tenant().map(str::to_owned),
            direct: false,
            allow_other: options.allow_other,
            uid: options.uid,
            gid: options.gid,
            cache_size: self.cache.size(),
        })
    }
}

/// Mounts it.
pub fn run(args: Args, verbose: u8) -> Result<()> {
    let task = Task::new(args, verbose)?;
    if task.args.foreground {
        return runtime::block_on_threads(task.foreground());
    }
    runtime::block_on(task.background())
}

/// The mounts to be made.
struct Task {
    args: Args,
    verbose: u8,
    server: Server,
    client: Client,
    requests: Vec<MountRequest>,
    /// The directories that were made for them.
    made: Made,
}

impl Task {
    fn new(args: Args, verbose: u8) -> Result<Self> {
        mountpoint::fuse()?;
        let server = Server::find(&args.cache)?;
        let items = args.items()?;
        let mut made = Made::default();
        let mut requests = Vec::new();
        for item in items {
            let location = match &args.config {
                None => item.location.clone(),
                Some(_) => made.directory(&item.location, args.root.as_deref())?,
            };
            requests.push(args.request(item, &location)?);
        }
        let client = Client::new(server.socket());
        Ok(Self { args, verbose, server, client, requests, made })
    }

    /// Through the cache's daemon, which is started when there is none. What fails leaves nothing mounted.
    async fn background(mut self) -> Result<()> {
        let mut mounted = Vec::new();
        let done = tokio::select! {
            biased;
            asked = signals::termination() => match asked {
                Ok(()) => Err(anyhow!("interrupted; nothing stays mounted")),
                Err(error) => Err(error.into()),
            },
            done = self.make(&mut mounted) => done,
        };
        if done.is_err() {
            self.take_down(&mounted).await;
        }
        done
    }

    async fn make(&mut self, mounted: &mut Vec<MountInfo>) -> Result<()> {
        for request in &self.requests {
            mounted.push(self.request(request).await?);
        }
        self.settle(mounted).await
    }

    async fn request(&self, request: &MountRequest) -> Result<MountInfo> {
        let (mut lost, mut busy) = (0, None);
        loop {
            let asked = self.client.mount(request).await;
            let Server::Owner(cache) = &self.server else { return Ok(asked?) };
            match asked {
                Ok(mounted) => return Ok(mounted),
                Err(trouble @ ClientError::Disconnected(_)) if lost == LOST_DAEMONS => {
                    return Err(trouble).with_context(|| format!("see {}", cache.log().display()));
                }
                Err(ClientError::Disconnected(_)) => lost += 1,
                Err(trouble) if trouble.is_gone() => {}
                Err(trouble) => return Err(trouble.into()),
            }
            let Spawned::Busy(failure) = spawn(cache, self.verbose)? else { continue };
            if busy.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                bail!("{failure}; nobody answered for {PATIENCE:?}, see {}", cache.log().display());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// As the cache's daemon, or beside it when there is one, until the mounts end.
    async fn foreground(mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let mut busy = None;
            if let Server::Owner(cache) = &self.server {
                match AgentServer::start(AgentConfig::on_demand(cache.clone())).await {
                    Ok(daemon) => return self.serve(daemon).await,
                    Err(failure) if failure.is(Kind::Busy) => busy = Some(failure),
                    Err(failure) => return Err(failure.into()),
                }
            }
            match self.client.mount(&self.requests[0]).await {
                Ok(first) => return self.attend(first).await,
                Err(trouble) if trouble.is_gone() && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(PAUSE).await;
                }
                // Who owns the cache says more than that nobody listens.
                Err(trouble) => return Err(busy.map_or_else(|| trouble.into(), Into::into)),
            }
        }
    }

    /// Hosts the mounts, and others that come, until the last has ended. A signal is the daemon's to obey.
    async fn serve(&mut self, daemon: AgentServer) -> Result<()> {
        let hold = daemon.hold();
        let work = async {
            let mut mounted = Vec::new();
            let worked = tokio::select! {
                biased;
                asked = signals::termination() => asked.map_err(Into::into),
                stayed = self.stay(&mut mounted) => stayed,
            };
            if worked.is_err() {
                self.take_down(&mounted).await;
            }
            drop(hold);
            worked
        };
        let (served, worked) = tokio::join!(daemon.serve(), work);
        worked.and(served)
    }

    /// Stays beside the daemon that hosts the first mount, and makes the others; a signal unmounts them.
    async fn attend(&mut self, first: MountInfo) -> Result<()> {
        let mut mounted = vec![first];
        let (done, ended) = tokio::select! {
            biased;
            asked = signals::termination() => (asked.map_err(Into::into), false),
            stayed = self.stay(&mut mounted) => { let ended = stayed.is_ok(); (stayed, ended) }
        };
        if !ended {
            self.take_down(&mounted).await;
        }
        done
    }

    /// Makes the mounts that are not made yet, and waits for the end of all.
    async fn stay(&mut self, mounted: &mut Vec<MountInfo>) -> Result<()> {
        for request in &self.requests[mounted.len()..] {
            mounted.push(self.client.mount(request).await?);
        }
        self.settle(mounted).await?;
        for mounted in mounted {
            self.client.ended(mounted.id).await?;
        }
        Ok(())
    }

    /// Tells what is mounted, and makes it local where that was asked for.
    async fn settle(&mut self, mounted: &[MountInfo]) -> Result<()> {
        mounted.iter().try_for_each(|mounted| self.announce(mounted))?;
        if self.args.wait {
            // All begin at once, and are told of one after the other.
            for mounted in &mounted[1..] {
                self.client.stage(mounted.id).await?;
            }
            for mounted in mounted {
                self.stage(mounted).await?;
            }
        }
        self.made.keep();
        Ok(())
    }

    async fn stage(&self, mounted: &MountInfo) -> Result<()> {
        let begun = Instant::now();
        let staging = match progress::stage(&self.client, mounted.id).await {
            Ok(staging) => staging,
            Err(trouble) if trouble.is_gone() || trouble.is(Kind::NotFound) => {
                bail!("{} ended before all of it was local", mounted.mountpoint.display());
            }
            Err(trouble) => {
                let all = if self.requests.len() > 1 { "all are" } else { "it is" };
                return Err(trouble).with_context(|| {
                    format!("cannot make all of {} local, so {all} unmounted again", mounted.source)
                });
            }
        };
        say(&if self.args.json {
            serde_json::to_string(&staging)?
        } else {
            let done = &staging.progress;
            let (files, bytes, found) =
                (text::files(done.files), text::size(done.bytes), text::size(done.bytes_found));
            let seconds = begun.elapsed().as_secs_f64();
            format!("all local and verified: {files}, {bytes} ({found} were here before) in {seconds:.1} s")
        });
        Ok(())
    }

    fn announce(&self, mounted: &MountInfo) -> Result<()> {
        for warning in &mounted.warnings {
            eprintln!("note: {warning}");
        }
        say(&if self.args.json { serde_json::to_string(mounted)? } else { summary(mounted) });
        Ok(())
    }

    /// Unmounts them, or takes out of sight those that somebody holds already.
    async fn take_down(&self, mounted: &[MountInfo]) {
        for mounted in mounted {
            match self.client.unmount(mounted.id, false).await {
                Err(trouble) if trouble.is(Kind::Busy) => {
                    eprintln!("note: {}; detached", mountpoint::busy(&mounted.mountpoint));
                    if let Err(trouble) = self.client.unmount(mounted.id, true).await {
                        eprintln!("note: {trouble}");
                    }
                }
                Err(trouble) if !trouble.is_gone() && !trouble.is(Kind::NotFound) => {
                    eprintln!("note: {trouble}");
                }
                _ => {}
            }
        }
    }
}

/// Prints a line. That nobody reads it any more is no reason to leave a mount half made.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn summary(mounted: &MountInfo) -> String {
    let id = mounted.snapshot.get(..ID_SHOWN).unwrap_or(&mounted.snapshot);
    let (files, bytes) = (text::files(mounted.files), text::size(mounted.bytes));
    format!(
        "mounted {} at {}: {files}, {bytes} (snapshot {id})",
        mounted.source,
        mounted.mountpoint.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_what_is_mounted() {
        let mounted = MountInfo {
            id: 1,
            source: "s3://models/x".to_owned(),
            mountpoint: "/mnt/model".into(),
            snapshot: "1f0c".repeat(16),
            files: 12,
            bytes: 13_500_000_000,
            passthrough: true,
            warnings: Vec::new(),
        };
        let text = "mounted s3://models/x at /mnt/model: 12 files, 13.5 GB (snapshot 1f0c1f0c1f0c)";
        assert_eq!(summary(&mounted), text);
    }
}
