//! Mounts: mounted, staged, unmounted; and the status of all.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use bdnfs::error::Kind;
use bdnfs::task::blocking;
use serde::Deserialize;

use super::{Answer, IdPath, JsonBody, Routes};
use crate::agent::Agent;
use crate::api::{AgentStatus, Failure, MountInfo, MountRequest, StageStatus};
use crate::real_path::real_path;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .post("/v1/mounts", mount)
        .delete("/v1/mounts/{id}", unmount)
        .get("/v1/mounts/{id}/ended", ended)
        .post("/v1/mounts/{id}/stage", stage)
        .get("/v1/mounts/{id}/stage", staging)
        .get("/v1/status", status)
        .post("/v1/stop", stop)
}

async fn mount(
    State(agent): State<Arc<Agent>>,
    JsonBody(mut request): JsonBody<MountRequest>,
) -> Answer<MountInfo> {
    let named = request.weights.mountpoint.clone();
    if !named.is_absolute() {
        let text = format!("mountpoint {}: must be an absolute path", named.display());
        return Err(Failure::new(Kind::Invalid, text));
    }
    // As the kernel will name it: its table of mounts knows no links and no dots.
    if let Some(real) = blocking(move || Ok(real_path(&named))).await? {
        request.weights.mountpoint = real;
    }
    agent.mounts().mount(request).await.map(Json)
}

#[derive(Deserialize)]
struct UnmountQuery {
    #[serde(default)]
    lazy: bool,
}

async fn unmount(
    State(agent): State<Arc<Agent>>,
    id: IdPath,
    query: Result<Query<UnmountQuery>, QueryRejection>,
) -> Answer<()> {
    let (Path(id), Query(query)) = (id?, query?);
    agent.mounts().unmount(id, query.lazy).await.map(Json)
}

async fn ended(State(agent): State<Arc<Agent>>, id: IdPath) -> Answer<()> {
    let Path(id) = id?;
    agent.mounts().await_end(id).await.map(Json)
}

#[derive(Deserialize)]
struct StageQuery {
    #[serde(default)]
    verify: bool,
}

async fn stage(
    State(agent): State<Arc<Agent>>,
    id: IdPath,
    query: Result<Query<StageQuery>, QueryRejection>,
) -> Answer<StageStatus> {
    let (Path(id), Query(query)) = (id?, query?);
    agent.mounts().stage(id, query.verify).await.map(Json)
}

async fn staging(State(agent): State<Arc<Agent>>, id: IdPath) -> Answer<StageStatus> {
    let Path(id) = id?;
    agent.mounts().staging(id).await.map(Json)
}

async fn stop(State(agent): State<Arc<Agent>>) -> Answer<()> {
    agent.lifecycle().request_stop();
    Ok(Json(()))
}

async fn status(State(agent): State<Arc<Agent>>) -> Answer<AgentStatus> {
    agent.status().await.map(Json)
}
