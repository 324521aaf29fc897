//! What a daemon tells to those who watch it.

use crate::api::{Failure, StageState};
use crate::mounts::host::{Host, blocking};
use crate::mounts::hosted::Hosted;
use crate::telemetry::facts::{Facts, Mount};

impl Host {
    /// Gathers it.
    pub async fn facts(&self) -> Result<Facts, Failure> {
        let (mounts, lost): (Vec<_>, _) = {
            let table = self.table();
            (table.mounts.values().cloned().collect(), table.missing.len() as u64)
        };
        let (engine, served, ready) = (self.engine.clone(), self.served.totals(), self.is_ready());
        let mounts =
            mounts.iter().filter(|hosted| !hosted.is_detached()).map(|hosted| fact(hosted)).collect();
        blocking(move || Ok(Facts::gather(&engine, served, ready, mounts, lost))).await
    }
}

fn fact(hosted: &Hosted) -> Mount {
    let state = match hosted.stage_state() {
        None => "ready",
        Some(StageState::Running) => "staging",
        Some(StageState::Done) => "staged",
        Some(StageState::Failed(_)) => "failed",
    };
    let (manifest, traffic) = (hosted.snapshot().manifest(), hosted.snapshot().traffic());
    let mountpoint = hosted.mountpoint().display().to_string();
    Mount { source: manifest.source().to_owned(), mountpoint, state, bytes: manifest.bytes(), traffic }
}
