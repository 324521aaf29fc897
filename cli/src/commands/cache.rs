//! `bdnfs cache`: inspects, pins, verifies and evicts cached snapshots.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bdnfs::cache::eviction::EvictionPause;
use bdnfs::cache::node::NodeCache;
use bdnfs::error::Kind;
use bdnfs::source::Uri;
use bdnfs_agent::api::cache::{CacheSummary, EvictReport, PinReport, SnapshotSelection, VerifyReport};
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::CacheClaim;
use bdnfs_agent::cache::inventory;
use clap::Subcommand;
use serde::Serialize;

use crate::cache::CacheArgs;
use crate::output::{print, short_id};
use crate::runtime;
use crate::source::Source;
use crate::text;

/// The time to wait for an agent that owns the cache and does not answer, because it starts or exits.
const OWNER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time to wait before the cache is tried again.
const OWNER_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The arguments of `bdnfs cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CacheCommandArgs {
    #[command(subcommand)]
    command: CacheCommand,
    /// Cache directory. Default: that of the node's agent, else /var/cache/bdnfs for root, else ~/.cache/bdnfs
    #[arg(long, global = true, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// List cached snapshots: size, files, last use and current users
    Summarize,
    /// Evict snapshots that are neither in use nor pinned
    Evict(SnapshotArgs),
    /// Read and verify all cached data, and remove what is damaged
    Verify,
    /// Pin snapshots, so that they are not evicted
    Pin(SnapshotArgs),
    /// Unpin snapshots
    Unpin(SnapshotArgs),
}

/// The arguments that select snapshots.
#[derive(Debug, clap::Args)]
struct SnapshotArgs {
    /// Sources, or the first digits of snapshot ids
    #[arg(required_unless_present = "all", value_name = "SOURCE")]
    sources: Vec<String>,
    /// All snapshots
    #[arg(long, conflicts_with = "sources")]
    all: bool,
    /// Only snapshots of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
}

impl SnapshotArgs {
    fn selection(&self) -> SnapshotSelection {
        let which = self.sources.iter().map(|name| absolute_name(name)).collect();
        SnapshotSelection { which, all: self.all, tenant: self.tenant.clone() }
    }
}

/// The name of a snapshot for the agent, which has another working directory.
fn absolute_name(name: &str) -> String {
    match name.parse::<Source>() {
        Ok(source) if matches!(source.uri(), Uri::File(_)) => source.uri().to_string(),
        _ => name.to_owned(),
    }
}

const EXAMPLES: &str = "Examples:
  bdnfs cache summarize
  bdnfs cache pin s3://models/llama-3-8b
  bdnfs cache evict hf://openai-community/gpt2
  bdnfs cache evict --all --cache-dir /nvme/bdnfs";

/// Runs the subcommand.
pub fn run(args: &CacheCommandArgs) -> Result<()> {
    let cache = CacheArgs::directory(args.cache_dir.clone());
    let pin = |snapshots: &SnapshotArgs, pin: bool| {
        let selection = snapshots.selection();
        let ask = async |agent: &Client| agent.pin(&selection, pin).await;
        on_cache(&cache, ask, |node| inventory::pin(node, &selection, pin))
    };
    match &args.command {
        CacheCommand::Summarize => {
            let ask = async |agent: &Client| agent.cache().await;
            let summary = on_cache(&cache, ask, |node| inventory::summarize(node, |_, _| Vec::new()))?;
            print_report(args.json, &summary, format_summary)
        }
        CacheCommand::Evict(snapshots) => {
            let selection = snapshots.selection();
            let ask = async |agent: &Client| agent.evict(&selection).await;
            let evicted = on_cache(&cache, ask, |node| inventory::evict(node, &selection))?;
            print_report(args.json, &evicted, format_evicted)
        }
        CacheCommand::Pin(snapshots) => print_report(args.json, &pin(snapshots, true)?, format_pinned),
        CacheCommand::Unpin(snapshots) => print_report(args.json, &pin(snapshots, false)?, format_unpinned),
        CacheCommand::Verify => {
            let ask = async |agent: &Client| agent.verify().await;
            let report = on_cache(&cache, ask, |node| inventory::verify(node, &AtomicBool::new(false)))?;
            print_report(args.json, &report, format_verified)?;
            match format_damage(&report) {
                None => Ok(()),
                Some(damage) => bail!("{damage}"),
            }
        }
    }
}

/// Access to a cache: through the agent that owns it, or directly where none does.
enum CacheAccess {
    /// The agent of this node.
    NodeAgent(Client),
    /// The agent of the cache that is named, which may end with its last mount.
    Owner(Client),
    Direct {
        node: Box<NodeCache>,
        /// Prevents evictions other than those requested.
        _hold: EvictionPause,
    },
}

impl CacheAccess {
    fn open(args: &CacheArgs) -> Result<Self> {
        let agent = socket::well_known().filter(|_| !args.has_directory()).map(Client::new);
        if let Some(agent) = agent.filter(Client::is_served) {
            return Ok(Self::NodeAgent(agent));
        }
        let cache = args.open_existing()?;
        let start = Instant::now();
        loop {
            let agent = Client::new(socket::of_cache(&cache.dir));
            if agent.is_served() {
                return Ok(Self::Owner(agent));
            }
            CacheClaim::ensure_unclaimed(&cache.dir)?;
            let config = cache.engine_config()?;
            match NodeCache::open(&config.cache, config.limits, config.quotas, config.now) {
                Ok((node, hold)) => return Ok(Self::Direct { node: Box::new(node), _hold: hold }),
                // An agent that starts, or exits with its last mount.
                Err(error) if error.kind() == Kind::Busy && start.elapsed() < OWNER_TIMEOUT => {
                    sleep(OWNER_RETRY_INTERVAL)
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Asks the agent that owns the cache, or does the `work` where none does. One that ends while it is asked is none.
fn on_cache<T>(
    args: &CacheArgs,
    ask: impl AsyncFn(&Client) -> Result<T, ClientError>,
    work: impl Fn(&NodeCache) -> bdnfs::error::Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        let (agent, may_end) = match CacheAccess::open(args)? {
            CacheAccess::Direct { node, .. } => return Ok(work(&node)?),
            CacheAccess::NodeAgent(agent) => (agent, false),
            CacheAccess::Owner(agent) => (agent, true),
        };
        match runtime::block_on(async { Ok(ask(&agent).await) })? {
            Err(error) if may_end && error.is_gone() && start.elapsed() < OWNER_TIMEOUT => {
                sleep(OWNER_RETRY_INTERVAL);
            }
            answer => return Ok(answer?),
        }
    }
}

fn print_report<T: Serialize>(json: bool, value: &T, format: impl FnOnce(&T) -> String) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(value)? + "\n" } else { format(value) };
    print(&text)
}

fn format_summary(summary: &CacheSummary) -> String {
    let has_tenants = summary.tenants.len() > 1;
    let head = ["SOURCE", "SNAPSHOT", "SIZE", "LOCAL", "FILES", "LAST USED", "IN USE BY"];
    let tenant = |name: &str| has_tenants.then(|| name.to_owned()).into_iter();
    let mut rows = vec![tenant("TENANT").chain(head.map(str::to_owned)).collect::<Vec<_>>()];
    for line in &summary.snapshots {
        let mut users: Vec<_> = line.in_use_by.iter().map(|path| path.display().to_string()).collect();
        users.extend(line.pinned.then(|| "pinned".to_owned()));
        let cells = [
            line.source.clone(),
            short_id(&line.snapshot).to_owned(),
            text::size(line.bytes),
            text::size(line.bytes_local),
            format!("{} of {}", line.files_local, line.files),
            line.used_at.map_or("-".to_owned(), text::minute),
            if users.is_empty() { "-".to_owned() } else { users.join(", ") },
        ];
        rows.push(tenant(&line.tenant).chain(cells).collect());
    }
    let shift = usize::from(has_tenants);
    let mut out = text::table(&rows, &[2 + shift, 3 + shift, 4 + shift]);
    for tenant in &summary.tenants {
        let name = if has_tenants { format!("tenant {}: ", tenant.tenant) } else { String::new() };
        let quota = tenant.quota.map_or(String::new(), |quota| format!(" of {}", text::size(quota)));
        let (bytes, others) = (text::size(tenant.bytes), text::size(tenant.others));
        out.push_str(&format!("{name}{bytes}{quota} used, {others} of it by no listed snapshot\n"));
    }
    if let Some(scrub) = &summary.last_scrub {
        let (ended, bytes) = (text::minute(scrub.ended as i64), text::size(scrub.bytes));
        let (blobs, damaged) = (text::count(scrub.blobs, "blob"), scrub.damaged.len());
        let unknown = format_unknown(scrub.unknown);
        out.push_str(&format!("last scrub {ended}: {blobs} verified, {bytes}, {damaged} damaged{unknown}\n"));
    }
    out
}

fn format_evicted(done: &EvictReport) -> String {
    let kept = match done.held {
        0 => String::new(),
        kept => format!("; {} not evicted: in use or pinned", text::size(kept)),
    };
    let (blobs, snapshots) = (text::count(done.blobs, "blob"), text::count(done.snapshots, "snapshot"));
    format!("{} freed: {snapshots} and {blobs} evicted{kept}\n", text::size(done.bytes))
}

fn format_pinned(done: &PinReport) -> String {
    let (local, bytes) = (text::size(done.bytes_local), text::size(done.bytes));
    format!("{} pinned, {local} of {bytes} local\n", text::count(done.snapshots.len() as u64, "snapshot"))
}

fn format_unpinned(done: &PinReport) -> String {
    format!("{} unpinned\n", text::count(done.snapshots.len() as u64, "snapshot"))
}

fn format_unknown(unknown: u64) -> String {
    match unknown {
        0 => String::new(),
        unknown => format!("; {unknown} skipped: incomplete, or without a known digest"),
    }
}

fn format_verified(report: &VerifyReport) -> String {
    let mut out: String = report.damaged.iter().map(|damaged| format!("damaged: {damaged}\n")).collect();
    let unknown = format_unknown(report.unknown);
    let (blobs, bytes) = (text::count(report.blobs, "blob"), text::size(report.bytes));
    out.push_str(&format!("{blobs} verified, {bytes}{unknown}\n"));
    out
}

/// Formats the damage that a verification found, in a sentence.
fn format_damage(report: &VerifyReport) -> Option<String> {
    let others = report.still_open + report.damaged_manifests + report.mounts_to_renew;
    let removed = (report.damaged.len() as u64).saturating_sub(others);
    let blobs = text::count(removed, "blob");
    let removed = (removed > 0)
        .then(|| format!("{blobs} damaged; the damaged data was removed and will be fetched again"));
    let manifests = text::count(report.damaged_manifests, "manifest");
    let manifests = (report.damaged_manifests > 0)
        .then(|| format!("{manifests} damaged, and written again or removed, as its line says"));
    let mounts = text::count(report.mounts_to_renew, "source");
    let mounts = (report.mounts_to_renew > 0)
        .then(|| format!("{mounts} mounted with a damaged list of files: unmount and mount again"));
    let files = text::count(report.still_open, "file");
    let open = (report.still_open > 0).then(|| {
        format!("{files} removed before, and a program still reads the damaged data: close and reopen")
    });
    let parts: Vec<_> = removed.into_iter().chain(manifests).chain(mounts).chain(open).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use bdnfs::engine::Usage;

    use super::*;
    #[test]
    fn damage_found_before_is_told_apart_from_new_damage() {
        let report = |removed: usize, still_open: u64| VerifyReport {
            damaged: vec![String::new(); removed + still_open as usize],
            still_open,
            ..VerifyReport::default()
        };
        assert_eq!(format_damage(&report(0, 0)), None);
        let found = format_damage(&report(2, 0)).expect("damage");
        assert!(found.starts_with("2 blobs damaged") && !found.contains("reads"), "{found}");
        let open = format_damage(&report(0, 1)).expect("damage");
        assert!(open.starts_with("1 file removed before") && !open.contains("fetched"), "{open}");
        let lists = VerifyReport { damaged_manifests: 1, mounts_to_renew: 1, ..report(2, 0) };
        let lists = format_damage(&lists).expect("damage");
        assert!(lists.starts_with("1 manifest damaged") && lists.contains("mount again"), "{lists}");
        assert!(!lists.contains("blob"), "{lists}");
    }

    use bdnfs_agent::api::cache::{ScrubPass, SnapshotUsage, TenantUsage};

    #[test]
    fn cache_summary_is_a_table_with_totals() {
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
            last_scrub: Some(ScrubPass { blobs: 2, bytes: 5000, ..ScrubPass::default() }),
        };
        let text = "\
SOURCE    SNAPSHOT        SIZE   LOCAL    FILES  LAST USED         IN USE BY
s3://b/p  0123456789ab  4.0 kB  1.0 kB  3 of 12  1970-01-01 00:00  /mnt/p, pinned
s3://b/p  0123456789ab  4.0 kB  1.0 kB  3 of 12  -                 -
1.0 kB used, 0 B of it by no listed snapshot
last scrub 1970-01-01 00:00: 2 blobs verified, 5.0 kB, 0 damaged
";
        assert_eq!(format_summary(&whole), text);
        let bob = TenantUsage { tenant: "bob".into(), quota: Some(5000), ..tenant.clone() };
        let two = format_summary(&CacheSummary { tenants: vec![tenant, bob], ..whole });
        assert!(
            two.starts_with("TENANT   SOURCE") && two.contains("tenant bob: 1.0 kB of 5.0 kB used"),
            "{two}"
        );
    }
}
