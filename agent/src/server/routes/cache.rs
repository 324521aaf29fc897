//! The cache: what it holds; evicting, pinning and verifying it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Json;
use axum::extract::State;
use bdnfs::task::blocking;

use super::{Answer, JsonBody, Routes};
use crate::agent::Agent;
use crate::api::cache::{CacheSummary, EvictReport, PinReport, SnapshotSelection, VerifyReport};
use crate::cache::inventory;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .get("/v1/cache", summarize)
        .post("/v1/cache/evict", evict)
        .post("/v1/cache/pin", pin)
        .post("/v1/cache/unpin", unpin)
        .post("/v1/cache/verify", verify)
}

async fn summarize(State(agent): State<Arc<Agent>>) -> Answer<CacheSummary> {
    let mut users: HashMap<(String, String), Vec<PathBuf>> = HashMap::new();
    for (tenant, snapshot, mountpoint) in agent.mounts().users() {
        users.entry((tenant, snapshot)).or_default().push(mountpoint);
    }
    let summary = blocking(move || {
        let users = |tenant: &str, snapshot: &str| {
            users.get(&(tenant.to_owned(), snapshot.to_owned())).cloned().unwrap_or_default()
        };
        inventory::summarize(agent.engine().cache(), users)
    });
    Ok(Json(summary.await?))
}

async fn evict(
    State(agent): State<Arc<Agent>>,
    JsonBody(selection): JsonBody<SnapshotSelection>,
) -> Answer<EvictReport> {
    Ok(Json(blocking(move || inventory::evict(agent.engine().cache(), &selection)).await?))
}

async fn pin(
    State(agent): State<Arc<Agent>>,
    JsonBody(selection): JsonBody<SnapshotSelection>,
) -> Answer<PinReport> {
    Ok(Json(blocking(move || inventory::pin(agent.engine().cache(), &selection, true)).await?))
}

async fn unpin(
    State(agent): State<Arc<Agent>>,
    JsonBody(selection): JsonBody<SnapshotSelection>,
) -> Answer<PinReport> {
    Ok(Json(blocking(move || inventory::pin(agent.engine().cache(), &selection, false)).await?))
}

/// Verifies until all is read, or the client has gone.
async fn verify(State(agent): State<Arc<Agent>>) -> Answer<VerifyReport> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let _cancel = CancelOnDrop(Arc::clone(&cancelled));
    // A native mount of the last run can be repaired only when it is taken up.
    agent.lifecycle().ready().await;
    Ok(Json(blocking(move || inventory::verify(agent.engine().cache(), &cancelled)).await?))
}

/// Sets a flag when it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
