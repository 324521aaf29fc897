//! Staging what a job reads, and what that came to.

use std::sync::Arc;
use std::time::Duration;

use bdnfs::metrics::Traffic;
use bdnfs::stage::Progress;

use crate::api::job::{BytesByTier, DeployReport, SourceReport};
use crate::api::{Failure, StageState};
use crate::jobs::Known;
use crate::mounts::host::{Host, blocking};
use crate::mounts::hosted::Hosted;

/// How often the figures of all sources are put together.
const TICK: Duration = Duration::from_millis(100);

impl Host {
    /// Makes all of a job's mounts local.
    pub(crate) async fn stage_all(
        self: &Arc<Self>,
        job: &Known,
        mounts: &[Arc<Hosted>],
    ) -> Result<(), Failure> {
        for mount in mounts {
            self.stage(mount.id()).await?;
        }
        loop {
            let (mut sum, mut running) = (Progress::default(), None);
            for mount in mounts {
                let Some(staging) = mount.staging(Duration::ZERO).await else { continue };
                let progress = staging.progress;
                sum.files += progress.files;
                sum.files_done += progress.files_done;
                sum.bytes += progress.bytes;
                sum.bytes_done += progress.bytes_done;
                sum.bytes_found += progress.bytes_found;
                match staging.state {
                    StageState::Done => {}
                    StageState::Running => running = Some(mount),
                    StageState::Failed(failure) => {
                        let source = mount.snapshot().manifest().source();
                        let text = format!("cannot stage {source}: {failure}");
                        return Err(Failure { kind: failure.kind, message: text });
                    }
                }
            }
            job.stages(Some(sum));
            match running {
                None => return Ok(()),
                Some(mount) => drop(mount.staging(TICK).await),
            }
        }
    }
}

/// What became of each mount of a job.
pub async fn report(job: &Known, mounts: Vec<Arc<Hosted>>) -> Result<DeployReport, Failure> {
    let places: Vec<_> = job.request().weights.iter().map(|weights| weights.mountpoint.clone()).collect();
    blocking(move || {
        let mut report = DeployReport::default();
        for (mount, mount_location) in mounts.iter().zip(places) {
            let snapshot = mount.snapshot();
            let found = snapshot.staged().map_or(0, |stage| stage.progress().bytes_found);
            let manifest = snapshot.manifest();
            let came = came(manifest.files(), snapshot.content_bytes()?, found, snapshot.traffic());
            report.total = report.total.and(came);
            report.sources.push(SourceReport {
                source: manifest.source().to_owned(),
                mount_location,
                snapshot: snapshot.id().to_string(),
                came,
                verdict: came.verdict(),
            });
        }
        report.verdict = report.total.verdict();
        Ok(report)
    })
    .await
}

/// Where `bytes` came from, `found` of which were here before. What nobody brought for this mount another one did.
fn came(files: u64, bytes: u64, found: u64, traffic: Traffic) -> BytesByTier {
    let cache = found.min(bytes);
    let mut rest = bytes - cache;
    // What was fetched twice, for it was wrong at first, counts once.
    let mut take = |brought: u64| {
        let taken = brought.min(rest);
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
    fn every_byte_came_from_somewhere() {
        let traffic = Traffic { mirror: 60, origin: 10, peer: 5, ..Traffic::default() };
        let some = came(2, 100, 20, traffic);
        assert_eq!((some.cache, some.peers, some.mirror, some.origin, some.shared), (20, 5, 60, 10, 5));
        assert_eq!(some.verdict(), Verdict::Miss);
        assert_eq!(came(2, 100, 100, Traffic::default()).verdict(), Verdict::Node);
        let near = came(1, 100, 20, Traffic { peer: 80, ..Traffic::default() });
        assert_eq!((near.shared, near.verdict()), (0, Verdict::Cluster));
        assert_eq!(came(1, 100, 20, Traffic { mirror: 300, ..Traffic::default() }).mirror, 80);
        assert_eq!(came(1, 0, 0, Traffic::default()).verdict(), Verdict::Node);
    }
}
