//! Operations on the whole inventory of a cache: summarize, evict, pin, verify. An agent does them, or a command on a cache
//! without an agent.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use bdnfs::cache::inventory::{self, CachedSnapshot};
use bdnfs::cache::node::NodeCache;
use bdnfs::cache::partition::Partition;
use bdnfs::cache::{pins, scrub};
use bdnfs::engine::Usage;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::Uri;

use super::scrubber;
use crate::api::cache::{
    CacheSummary, EvictReport, PinReport, SnapshotSelection, SnapshotUsage, TenantUsage, VerifyReport,
};

/// The fewest digits of an id that are taken for one.
const MIN_ID_PREFIX_LEN: usize = 6;

/// Summarizes what `node` holds. `mounted` returns where a snapshot of a tenant is mounted, given its id.
pub fn summarize(node: &NodeCache, mounted: impl Fn(&str, &str) -> Vec<PathBuf>) -> Result<CacheSummary> {
    let (mut tenants, mut snapshots) = (Vec::new(), Vec::new());
    for partition in node.partitions() {
        let tenant = partition.layout.tenant();
        let mut held = inventory::take(&partition)?;
        held.snapshots.sort_by_key(|line| std::cmp::Reverse((line.used_at, line.bytes)));
        snapshots.extend(held.snapshots.into_iter().map(|line| snapshot_usage(tenant, line, &mounted)));
        let (quota, tenant) = (partition.quota, tenant.to_owned());
        tenants.push(TenantUsage { tenant, bytes: held.bytes, quota, others: held.others });
    }
    tenants.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    snapshots.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    let (cache, last_scrub) = (node.root().to_owned(), scrubber::last_pass(node.root()));
    Ok(CacheSummary { cache, usage: Usage::of(node), tenants, snapshots, last_scrub })
}

fn snapshot_usage(
    tenant: &str,
    line: CachedSnapshot,
    mounted: impl Fn(&str, &str) -> Vec<PathBuf>,
) -> SnapshotUsage {
    let CachedSnapshot { source, snapshot, files, files_local, bytes, bytes_local, used_at, pinned } = line;
    let (snapshot, tenant) = (snapshot.to_string(), tenant.to_owned());
    let in_use_by = mounted(&tenant, &snapshot);
    SnapshotUsage {
        tenant,
        source,
        snapshot,
        files,
        files_local,
        bytes,
        bytes_local,
        used_at,
        pinned,
        in_use_by,
    }
}

/// Removes what is selected and not in use.
pub fn evict(node: &NodeCache, selection: &SnapshotSelection) -> Result<EvictReport> {
    let mut sum = EvictReport::default();
    for (partition, chosen) in choose(node, selection)? {
        let takes = |id: &bdnfs::digest::Digest, _: &str| chosen.iter().any(|line| line.snapshot == *id);
        let one = inventory::evict(&partition, takes, selection.all)?;
        sum.snapshots += one.snapshots;
        sum.blobs += one.blobs;
        sum.bytes += one.bytes;
        sum.held += one.held;
    }
    Ok(sum)
}

/// Pins what is selected, or with `pin` false unpins it.
pub fn pin(node: &NodeCache, selection: &SnapshotSelection, pin: bool) -> Result<PinReport> {
    let mut sum = PinReport::default();
    for (partition, chosen) in choose(node, selection)? {
        for line in chosen {
            let done = if pin {
                pins::pin(&partition, &line.snapshot).map(|()| true)
            } else {
                pins::unpin(&partition, &line.snapshot)
            };
            if done? {
                sum.snapshots.push(line.snapshot.to_string());
                sum.bytes += line.bytes;
                sum.bytes_local += line.bytes_local;
            }
        }
    }
    Ok(sum)
}

/// Reads everything, and removes what is not right. Ends early when `give_up` is set.
pub fn verify(node: &NodeCache, give_up: &AtomicBool) -> Result<VerifyReport> {
    let mut sum = VerifyReport::default();
    let (mut manifests, mut to_renew, mut still_open) = (Vec::new(), Vec::new(), Vec::new());
    for partition in node.partitions() {
        let one = scrub::scrub(&node.tenant(partition.layout.tenant())?, give_up)?;
        sum.blobs += one.blobs;
        sum.bytes += one.bytes;
        sum.unknown += one.unknown;
        sum.damaged.extend(one.damaged);
        manifests.extend(one.damaged_manifests);
        to_renew.extend(one.mounts_to_renew);
        still_open.extend(one.still_open);
    }
    sum.damaged_manifests = manifests.len() as u64;
    sum.mounts_to_renew = to_renew.len() as u64;
    sum.still_open = still_open.len() as u64;
    sum.damaged.extend([manifests, to_renew, still_open].concat());
    Ok(sum)
}

/// Selects snapshots, by tenant. Each name must have chosen something.
fn choose(
    node: &NodeCache,
    selection: &SnapshotSelection,
) -> Result<Vec<(std::sync::Arc<Partition>, Vec<CachedSnapshot>)>> {
    if selection.which.is_empty() && !selection.all {
        return Err(Error::new(
            Kind::Invalid,
            "no snapshot given: name sources or snapshot ids, or select all",
        ));
    }
    let named: Vec<_> = selection.which.iter().map(|text| SnapshotSelector::new(text)).collect();
    let mut hits = vec![false; named.len()];
    let mut chosen = Vec::new();
    for partition in node.partitions() {
        if selection.tenant.as_ref().is_some_and(|tenant| tenant != partition.layout.tenant()) {
            continue;
        }
        let mut snapshots = inventory::take(&partition)?.snapshots;
        snapshots.retain(|line| {
            let mut takes = selection.all;
            for (name, hit) in named.iter().zip(&mut hits) {
                let matches = name.matches(&line.snapshot.to_string(), &line.source);
                takes |= matches;
                *hit |= matches;
            }
            takes
        });
        chosen.push((partition, snapshots));
    }
    match selection.which.iter().zip(hits).find(|(_, hit)| !hit) {
        Some((name, _)) => {
            let text = format!("the cache has nothing of {name}; `bdnfs cache summarize` tells what it has");
            Err(Error::new(Kind::NotFound, text))
        }
        None => Ok(chosen),
    }
}

/// Selects snapshots as a user names them: by source, or by the first digits of their ids.
struct SnapshotSelector {
    text: String,
    /// The names of the source: a local one is recorded as it was written, or by its real path.
    sources: Vec<String>,
}

impl SnapshotSelector {
    /// Touches the local disk.
    fn new(text: &str) -> Self {
        let uris = match text.parse::<Uri>() {
            Ok(Uri::File(path)) => {
                let real = path.canonicalize().ok();
                [std::path::absolute(&path).ok(), real].into_iter().flatten().map(Uri::File).collect()
            }
            other => Vec::from_iter(other),
        };
        Self { text: text.to_owned(), sources: uris.iter().map(Uri::to_string).collect() }
    }

    /// Whether the selector names the snapshot `id` of `source`. A source without a revision means all of them.
    fn matches(&self, id: &str, source: &str) -> bool {
        if self.text.len() >= MIN_ID_PREFIX_LEN && id.starts_with(&self.text) {
            return true;
        }
        // A revision; an endpoint; the hash of a query.
        let is_rest =
            |rest: &str| rest.is_empty() || ["@", " at ", "#"].iter().any(|next| rest.starts_with(next));
        self.sources.iter().any(|own| source.strip_prefix(own.as_str()).is_some_and(is_rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_selector_matches_source_or_id_prefix() {
        let means =
            |name: &str, source: &str| SnapshotSelector::new(name).matches("0123456789abcdef", source);
        assert!(means("s3://b/p/", "s3://b/p") && means("s3://b/p", "s3://b/p at http://h:1"));
        assert!(!means("s3://b/p", "s3://b/pq") && !means("s3://b", "s3://b/p"));
        assert!(means("hf://a/b", "hf://models/a/b@0123") && means("hf://a/b@0123", "hf://models/a/b@0123"));
        assert!(!means("hf://a/b@main", "hf://models/a/b@0123"));
        assert!(means("012345", "s3://x") && !means("01234", "s3://x"));
        assert!(means("https://h/x", "https://h/x#0123"));
    }
}
