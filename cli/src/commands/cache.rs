//! `bdnfs cache`: what a cache holds, and what is to become of it.

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bdnfs::cache::eviction::EvictionPause;
use bdnfs::cache::node::NodeCache;
use bdnfs::error::Kind;
use bdnfs_agent::api::cache::{CacheSummary, EvictReport, PinReport, SnapshotSelection, VerifyReport};
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::CacheClaim;
use bdnfs_agent::cache::inventory;
use bdnfs_agent::runtime;
use clap::Subcommand;
use serde::Serialize;

use crate::{cache, text};

/// How long to wait for who owns the cache and does not answer: it begins or ends.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to look meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// What to do with a cache.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// Directory of the cache; by default that of the node's agent, else /var/cache/bdnfs for root, else ~/.cache/bdnfs
    #[arg(long, global = true, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Tell the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tell what is in the cache: by source its size, its files, when it was last used, and by whom it is now
    Summarize,
    /// Remove snapshots from the cache, but what is in use or pinned
    Evict(Which),
    /// Read everything, and remove what is no longer what it was when it came
    Verify,
    /// Keep snapshots in the cache although nobody uses them
    Pin(Which),
    /// Let them go again
    Unpin(Which),
}

/// Which snapshots.
#[derive(Debug, clap::Args)]
struct Which {
    /// Sources, or the first digits of snapshots' ids
    #[arg(required_unless_present = "all", value_name = "SOURCE")]
    which: Vec<String>,
    /// All there are
    #[arg(long, conflicts_with = "which")]
    all: bool,
    /// Only what is this tenant's
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

impl Which {
    fn selection(&self) -> SnapshotSelection {
        SnapshotSelection { which: self.which.clone(), all: self.all, tenant: self.tenant.clone() }
    }
}

const EXAMPLES: &str = "Examples:
  bdnfs cache summarize
  bdnfs cache pin s3://models/llama-3-8b
  bdnfs cache evict hf://openai-community/gpt2
  bdnfs cache evict --all --cache-dir /nvme/bdnfs";

/// Does it.
pub fn run(args: &Args) -> Result<()> {
    let owner = Owner::find(&cache::Args::new(args.cache_dir.clone(), None))?;
    match &args.command {
        Command::Summarize => say(args.json, &owner.summarize()?, summary),
        Command::Evict(which) => say(args.json, &owner.evict(&which.selection())?, evicted),
        Command::Pin(which) => say(args.json, &owner.pin(&which.selection(), true)?, pinned),
        Command::Unpin(which) => say(args.json, &owner.pin(&which.selection(), false)?, unpinned),
        Command::Verify => {
            let found = owner.verify()?;
            say(args.json, &found, verified)?;
            match found.damaged.len() as u64 {
                0 => Ok(()),
                damaged => bail!(
                    "{} damaged; what was wrong is removed and will be fetched again",
                    text::count(damaged, "blob")
                ),
            }
        }
    }
}

/// Who does it: whoever owns the cache, or this process where nobody does.
enum Owner {
    Daemon(Client),
    Nobody {
        node: Box<NodeCache>,
        /// Nothing goes but what is asked for.
        _hold: EvictionPause,
    },
}

impl Owner {
    fn find(args: &cache::Args) -> Result<Self> {
        let agent = socket::well_known().filter(|_| !args.names_directory()).map(Client::new);
        if let Some(agent) = agent.filter(Client::is_served) {
            return Ok(Self::Daemon(agent));
        }
        let cache = args.make()?;
        let begun = Instant::now();
        loop {
            let daemon = Client::new(socket::of_cache(&cache.dir));
            if daemon.is_served() {
                return Ok(Self::Daemon(daemon));
            }
            CacheClaim::of_nobody(&cache.dir)?;
            let config = cache.config()?;
            match NodeCache::open(&config.cache, config.limits, config.quotas, config.now) {
                Ok((node, hold)) => return Ok(Self::Nobody { node: Box::new(node), _hold: hold }),
                // A daemon that begins, or one that ends because its last mount did.
                Err(error) if error.kind() == Kind::Busy && begun.elapsed() < PATIENCE => sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn summarize(&self) -> Result<CacheSummary> {
        match self {
            Self::Daemon(client) => ask(client.cache()),
            Self::Nobody { node, .. } => Ok(inventory::summarize(node, |_, _| Vec::new())?),
        }
    }

    fn evict(&self, selection: &SnapshotSelection) -> Result<EvictReport> {
        match self {
            Self::Daemon(client) => ask(client.evict(selection)),
            Self::Nobody { node, .. } => Ok(inventory::evict(node, selection)?),
        }
    }

    fn pin(&self, selection: &SnapshotSelection, pin: bool) -> Result<PinReport> {
        match self {
            Self::Daemon(client) => ask(client.pin(selection, pin)),
            Self::Nobody { node, .. } => Ok(inventory::pin(node, selection, pin)?),
        }
    }

    fn verify(&self) -> Result<VerifyReport> {
        match self {
            Self::Daemon(client) => ask(client.verify()),
            Self::Nobody { node, .. } => Ok(inventory::verify(node, &AtomicBool::new(false))?),
        }
    }
}

fn ask<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T> {
    runtime::block_on(async { Ok(answer.await?) })
}

fn say<T: Serialize>(json: bool, value: &T, shown: impl FnOnce(&T) -> String) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(value)? + "\n" } else { shown(value) };
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

fn summary(summary: &CacheSummary) -> String {
    let many = summary.tenants.len() > 1;
    let head = ["SOURCE", "SNAPSHOT", "SIZE", "LOCAL", "FILES", "LAST USED", "IN USE BY"];
    let tenant = |name: &str| many.then(|| name.to_owned()).into_iter();
    let mut rows = vec![tenant("TENANT").chain(head.map(str::to_owned)).collect::<Vec<_>>()];
    for line in &summary.snapshots {
        let mut users: Vec<_> = line.in_use_by.iter().map(|place| place.display().to_string()).collect();
        users.extend(line.pinned.then(|| "a pin".to_owned()));
        let cells = [
            line.source.clone(),
            line.snapshot.get(..12).unwrap_or(&line.snapshot).to_owned(),
            text::size(line.bytes),
            text::size(line.bytes_local),
            format!("{} of {}", line.files_local, line.files),
            line.used_at.map_or("-".to_owned(), text::minute),
            if users.is_empty() { "-".to_owned() } else { users.join(", ") },
        ];
        rows.push(tenant(&line.tenant).chain(cells).collect());
    }
    let shift = usize::from(many);
    let mut out = text::table(&rows, &[2 + shift, 3 + shift, 4 + shift]);
    for tenant in &summary.tenants {
        let name = if many { format!("tenant {}: ", tenant.tenant) } else { String::new() };
        let quota = tenant.quota.map_or(String::new(), |quota| format!(" of {}", text::size(quota)));
        let (bytes, others) = (text::size(tenant.bytes), text::size(tenant.others));
        out.push_str(&format!("{name}{bytes}{quota} in all, {others} of it of no snapshot here\n"));
    }
    out
}

fn evicted(done: &EvictReport) -> String {
    let held = match done.held {
        0 => String::new(),
        held => format!("; {} stay, in use or pinned", text::size(held)),
    };
    let (blobs, snapshots) = (text::count(done.blobs, "blob"), text::count(done.snapshots, "snapshot"));
    format!("{} freed: {blobs} removed, {snapshots} forgotten{held}\n", text::size(done.bytes))
}

fn pinned(done: &PinReport) -> String {
    let (local, bytes) = (text::size(done.bytes_local), text::size(done.bytes));
    format!("{} pinned, {local} of {bytes} local\n", text::count(done.snapshots.len() as u64, "snapshot"))
}

fn unpinned(done: &PinReport) -> String {
    format!("{} no longer pinned\n", text::count(done.snapshots.len() as u64, "snapshot"))
}

fn verified(found: &VerifyReport) -> String {
    let mut out: String = found.damaged.iter().map(|damaged| format!("damaged: {damaged}\n")).collect();
    let unknown = match found.unknown {
        0 => String::new(),
        unknown => format!("; {unknown} more are being fetched, or nothing is known of them"),
    };
    let (blobs, bytes) = (text::count(found.blobs, "blob"), text::size(found.bytes));
    out.push_str(&format!("{blobs} read, {bytes}{unknown}\n"));
    out
}

#[cfg(test)]
mod tests {
    use bdnfs::engine::Usage;

    use super::*;
    use bdnfs_agent::api::cache::{SnapshotUsage, TenantUsage};

    #[test]
    fn a_summary_is_a_table() {
        let line = SnapshotUsage {
            tenant: "default".into(),
            source: "s3://b/p".into(),
            snapshot: "0123456789abcdef".into(),
            files: 12,
            files_local: 3,
            bytes: 4000,
            bytes_local: 1000,
            used_at: Some(0),
            pinned: true,
            in_use_by: vec!["/mnt/p".into()],
        };
        let other = SnapshotUsage { used_at: None, pinned: false, in_use_by: Vec::new(), ..line.clone() };
        let tenant = TenantUsage { tenant: "default".into(), bytes: 1000, quota: None, others: 0 };
        let whole = CacheSummary {
            cache: "/c".into(),
            usage: Usage::default(),
            tenants: vec![tenant.clone()],
            snapshots: vec![line, other],
        };
        let text = "\
SOURCE    SNAPSHOT        SIZE   LOCAL    FILES  LAST USED         IN USE BY
s3://b/p  0123456789ab  4.0 kB  1.0 kB  3 of 12  1970-01-01 00:00  /mnt/p, a pin
s3://b/p  0123456789ab  4.0 kB  1.0 kB  3 of 12  -                 -
1.0 kB in all, 0 B of it of no snapshot here
";
        assert_eq!(summary(&whole), text);
        let bob = TenantUsage { tenant: "bob".into(), quota: Some(5000), ..tenant.clone() };
        let two = summary(&CacheSummary { tenants: vec![tenant, bob], ..whole });
        assert!(
            two.starts_with("TENANT   SOURCE") && two.contains("tenant bob: 1.0 kB of 5.0 kB in all"),
            "{two}"
        );
    }
}
