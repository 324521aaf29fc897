//! `bdnfs mount`.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bdnfs::error::Kind;

use crate::cache::{self, Cache};
use crate::control::api::{MountRequest, Mounted};
use crate::control::client::{Client, Trouble};
use crate::daemon::Daemon;
use crate::daemon::spawn::{Spawned, spawn};
use crate::mirror::place;
use crate::options::{self, Options};
use crate::{control, mountpoint, progress, runtime, signals, source, text};

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
    #[command(flatten)]
    source: source::Args,
    #[command(flatten)]
    mirror: place::Args,
    /// Where it is to appear: an existing directory
    mountpoint: PathBuf,
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
  bdnfs mount --endpoint http://127.0.0.1:9000 --credentials key.json s3://models/x /mnt/x
  bdnfs mount --cache-dir /nvme/bdnfs --cache-size 2T https://host/weights.bin /mnt/weights";

impl Args {
    /// Whether this process may become the daemon.
    pub fn foreground(&self) -> bool {
        self.foreground
    }
}

/// Mounts it.
pub fn run(args: Args, verbose: u8) -> Result<()> {
    let task = Task::new(args, verbose)?;
    if task.args.foreground {
        return runtime::daemon(task.foreground());
    }
    runtime::command(task.background())
}

/// One mount to be made.
struct Task {
    args: Args,
    verbose: u8,
    cache: Cache,
    client: Client,
    request: MountRequest,
}

impl Task {
    fn new(args: Args, verbose: u8) -> Result<Self> {
        let place = mountpoint::prepare(&args.mountpoint)?;
        mountpoint::fuse()?;
        let name = place.path.display();
        if args.source.is_below(&place.path) {
            bail!(
                "{} lies below {name}, so the mount would hide it; choose another directory",
                args.source.uri()
            );
        }
        let cache = args.cache.make()?;
        if cache.is_below(&place.path) {
            bail!("the cache lies below {name}, so the mount would hide it; choose another with --cache-dir");
        }
        for note in args.source.uri().note().iter().chain(&place.notes) {
            eprintln!("note: {note}");
        }
        let flags = Options { allow_other: args.allow_other, uid: args.uid, gid: args.gid };
        let options = args.options.iter().fold(Options::default(), Options::and).and(&flags);
        let (allow, ignore) = args.source.globs();
        let request = MountRequest {
            source: args.source.text().clone(),
            mountpoint: place.path,
            allow: allow.to_vec(),
            ignore: ignore.to_vec(),
            access: args.source.access()?,
            mirror: args.mirror.request(&args.source.how.access)?,
            allow_other: options.allow_other,
            uid: options.uid,
            gid: options.gid,
            cache_size: cache.size,
        };
        let client = Client::new(control::socket(&cache.dir));
        Ok(Self { args, verbose, cache, client, request })
    }

    /// Through the cache's daemon, which is started when there is none.
    async fn background(self) -> Result<()> {
        let mounted = self.request().await?;
        self.announce(&mounted)?;
        if !self.args.wait {
            return Ok(());
        }
        tokio::select! {
            biased;
            asked = signals::asked_to_end() => {
                self.take_down(&mounted).await;
                asked?;
                bail!("interrupted; {} is unmounted again", mounted.mountpoint.display());
            }
            staged = self.stage(&mounted) => staged,
        }
    }

    async fn request(&self) -> Result<Mounted> {
        let (mut lost, mut busy) = (0, None);
        loop {
            match self.client.mount(&self.request).await {
                Ok(mounted) => return Ok(mounted),
                Err(trouble @ Trouble::Lost(_)) if lost == LOST_DAEMONS => {
                    return Err(trouble).with_context(|| format!("see {}", self.cache.log().display()));
                }
                Err(Trouble::Lost(_)) => lost += 1,
                Err(trouble) if trouble.is_gone() => {}
                Err(trouble) => return Err(trouble.into()),
            }
            if spawn(&self.cache, self.verbose)? == Spawned::Ready {
                continue;
            }
            if busy.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                let (dir, log) = (self.cache.dir.display(), self.cache.log());
                bail!("another process holds the cache {dir} and does not answer; see {}", log.display());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// As the cache's daemon, or beside it when there is one, until the mount ends.
    async fn foreground(self) -> Result<()> {
        let begun = Instant::now();
        loop {
            match Daemon::start(&self.cache).await {
                Ok(daemon) => return self.serve(daemon).await,
                Err(failure) if failure.is(Kind::Busy) => {}
                Err(failure) => return Err(failure.into()),
            }
            match self.client.mount(&self.request).await {
                Ok(mounted) => return self.attend(&mounted).await,
                Err(trouble) if trouble.is_gone() && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(trouble) => return Err(trouble.into()),
            }
        }
    }

    /// Hosts the mount, and others that come, until the last has ended. A signal is the daemon's to obey.
    async fn serve(&self, daemon: Daemon) -> Result<()> {
        let hold = daemon.hold();
        let work = async {
            let stay = async { self.stay(&self.client.mount(&self.request).await?).await };
            let worked = tokio::select! {
                biased;
                asked = signals::asked_to_end() => asked.map_err(Into::into),
                stayed = stay => stayed,
            };
            drop(hold);
            worked
        };
        let (served, worked) = tokio::join!(daemon.serve(), work);
        worked.and(served)
    }

    /// Stays beside the daemon that hosts the mount; a signal unmounts it.
    async fn attend(&self, mounted: &Mounted) -> Result<()> {
        tokio::select! {
            biased;
            asked = signals::asked_to_end() => {
                self.take_down(mounted).await;
                Ok(asked?)
            }
            stayed = self.stay(mounted) => stayed,
        }
    }

    async fn stay(&self, mounted: &Mounted) -> Result<()> {
        self.announce(mounted)?;
        if self.args.wait {
            self.stage(mounted).await?;
        }
        Ok(self.client.ended(mounted.id).await?)
    }

    async fn stage(&self, mounted: &Mounted) -> Result<()> {
        let begun = Instant::now();
        let staging = match progress::stage(&self.client, mounted.id).await {
            Ok(staging) => staging,
            Err(trouble) if trouble.is_gone() || trouble.is(Kind::NotFound) => {
                bail!("{} ended before all of it was local", mounted.mountpoint.display());
            }
            Err(trouble) => {
                self.take_down(mounted).await;
                return Err(trouble).with_context(|| {
                    format!("cannot make all of {} local, so it is unmounted again", mounted.source)
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

    fn announce(&self, mounted: &Mounted) -> Result<()> {
        for warning in &mounted.warnings {
            eprintln!("note: {warning}");
        }
        say(&if self.args.json { serde_json::to_string(mounted)? } else { summary(mounted) });
        Ok(())
    }

    /// Unmounts it, or takes it out of sight when somebody holds it already.
    async fn take_down(&self, mounted: &Mounted) {
        match self.client.unmount(mounted.id, false).await {
            Err(trouble) if trouble.is(Kind::Busy) => {
                eprintln!("note: {}; detached", mountpoint::busy(&mounted.mountpoint));
                if let Err(trouble) = self.client.unmount(mounted.id, true).await {
                    eprintln!("note: {trouble}");
                }
            }
            Err(trouble) if !trouble.is_gone() => eprintln!("note: {trouble}"),
            _ => {}
        }
    }
}

/// Prints a line. That nobody reads it any more is no reason to leave a mount half made.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

fn summary(mounted: &Mounted) -> String {
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
        let mounted = Mounted {
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
