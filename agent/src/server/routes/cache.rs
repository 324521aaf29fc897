//! The cache: what it holds, and what is to become of it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::{Answer, Body, Routes};
use crate::api::cache::{CacheSummary, EvictReport, PinReport, SnapshotSelection, VerifyReport};
use crate::mounts::host::Host;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .get("/v1/cache", summarize)
        .post("/v1/cache/evict", evict)
        .post("/v1/cache/pin", pin)
        .post("/v1/cache/unpin", unpin)
        .post("/v1/cache/verify", verify)
}

async fn summarize(State(host): State<Arc<Host>>) -> Answer<CacheSummary> {
    host.summarize().await.map(Json)
}

async fn evict(
    State(host): State<Arc<Host>>,
    Body(selection): Body<SnapshotSelection>,
) -> Answer<EvictReport> {
    host.evict(selection).await.map(Json)
}

async fn pin(State(host): State<Arc<Host>>, Body(selection): Body<SnapshotSelection>) -> Answer<PinReport> {
    host.pin(selection, true).await.map(Json)
}

async fn unpin(State(host): State<Arc<Host>>, Body(selection): Body<SnapshotSelection>) -> Answer<PinReport> {
    host.pin(selection, false).await.map(Json)
}

async fn verify(State(host): State<Arc<Host>>) -> Answer<VerifyReport> {
    host.verify().await.map(Json)
}
