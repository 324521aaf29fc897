//! What a daemon tells of its cache, and does with it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::Failure;
use crate::api::cache::{CacheSummary, EvictReport, PinReport, SnapshotSelection, VerifyReport};
use crate::cache::inventory;
use crate::mounts::host::{Host, blocking};

impl Host {
    /// Tells what the cache holds.
    pub async fn summarize(&self) -> Result<CacheSummary, Failure> {
        let engine = self.engine.clone();
        let mut mounted: HashMap<(String, String), Vec<PathBuf>> = HashMap::new();
        for kept in self.all_kept() {
            let tenant = kept.request.tenant.unwrap_or_else(|| engine.tenant().to_owned());
            mounted.entry((tenant, kept.snapshot)).or_default().push(kept.request.weights.mountpoint);
        }
        blocking(move || {
            let at = |tenant: &str, id: &str| {
                mounted.get(&(tenant.to_owned(), id.to_owned())).cloned().unwrap_or_default()
            };
            Ok(inventory::summarize(engine.cache(), at)?)
        })
        .await
    }

    /// Removes what is selected and not in use.
    pub async fn evict(&self, selection: SnapshotSelection) -> Result<EvictReport, Failure> {
        let engine = self.engine.clone();
        blocking(move || Ok(inventory::evict(engine.cache(), &selection)?)).await
    }

    /// Pins what is selected, or with `pin` false unpins it.
    pub async fn pin(&self, selection: SnapshotSelection, pin: bool) -> Result<PinReport, Failure> {
        let engine = self.engine.clone();
        blocking(move || Ok(inventory::pin(engine.cache(), &selection, pin)?)).await
    }

    /// Reads everything, and removes what is not right. Dropping the future gives it up.
    pub async fn verify(&self) -> Result<VerifyReport, Failure> {
        let (engine, given_up) = (self.engine.clone(), GiveUp(Arc::default()));
        let give_up = Arc::clone(&given_up.0);
        blocking(move || Ok(inventory::verify(engine.cache(), &give_up)?)).await
    }
}

/// Gives up what listens to it when it is dropped.
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
