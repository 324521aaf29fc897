//! The report of a deployment: which tier brought how many bytes.

use std::path::PathBuf;
use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::metrics::Traffic;
use bdnfs::task::blocking;

use crate::api::job::{BytesByTier, DeployReport, SourceReport};
use crate::mounts::ManagedMount;

/// Reports on `mounts` that are staged, each with the place where the job sees it.
pub async fn report(mounts: Vec<(Arc<ManagedMount>, PathBuf)>) -> Result<DeployReport> {
    blocking(move || {
        let mut report = DeployReport::default();
        for (mount, mount_location) in mounts {
            let snapshot = mount.snapshot();
            let found = snapshot.staged().map_or(0, |stage| stage.progress().bytes_found);
            let manifest = snapshot.manifest();
            let bytes = snapshot.content_bytes()?;
            let by_tier = bytes_by_tier(manifest.files(), bytes, found, snapshot.traffic());
            report.total = report.total.plus(by_tier);
            report.sources.push(SourceReport {
                source: manifest.source().to_owned(),
                mount_location,
                snapshot: snapshot.id().to_string(),
                by_tier,
                verdict: by_tier.verdict(),
            });
        }
        report.verdict = report.total.verdict();
        Ok(report)
    })
    .await
}

/// The tiers that `bytes` came from, of which `found` were in the cache before. What was not fetched for this mount, another
/// mount fetched.
fn bytes_by_tier(files: u64, bytes: u64, found: u64, traffic: Traffic) -> BytesByTier {
    let cache = found.min(bytes);
    let mut rest = bytes - cache;
    // Blocks that were fetched twice, because they were wrong at first, count once.
    let mut take = |fetched: u64| {
        let taken = fetched.min(rest);
        rest -= taken;
        taken
    };
    let (peers, mirror, origin) = (take(traffic.peer), take(traffic.mirror), take(traffic.origin));
    BytesByTier { files, bytes, cache, peers, mirror, origin, shared: rest }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::job::Verdict;

    #[test]
    fn bytes_by_tier_add_up_to_all_bytes() {
        let traffic = Traffic { mirror: 60, origin: 10, peer: 5, ..Traffic::default() };
        let some = bytes_by_tier(2, 100, 20, traffic);
        assert_eq!((some.cache, some.peers, some.mirror, some.origin, some.shared), (20, 5, 60, 10, 5));
        assert_eq!(some.verdict(), Verdict::Miss);
        assert_eq!(bytes_by_tier(2, 100, 100, Traffic::default()).verdict(), Verdict::Node);
        let near = bytes_by_tier(1, 100, 20, Traffic { peer: 80, ..Traffic::default() });
        assert_eq!((near.shared, near.verdict()), (0, Verdict::Cluster));
        let twice = Traffic { mirror: 300, ..Traffic::default() };
        assert_eq!(bytes_by_tier(1, 100, 20, twice).mirror, 80);
        assert_eq!(bytes_by_tier(1, 0, 0, Traffic::default()).verdict(), Verdict::Node);
    }
}
