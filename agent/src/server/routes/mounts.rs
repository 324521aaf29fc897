//! Mounts: made, staged, waited for, ended; and how all is doing.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::Deserialize;

use super::{Answer, Body, Routes};
use crate::api::{AgentStatus, MountInfo, MountRequest, StageStatus};
use crate::mounts::host::Host;

type Id = Result<Path<u64>, PathRejection>;

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

async fn mount(State(host): State<Arc<Host>>, Body(request): Body<MountRequest>) -> Answer<MountInfo> {
    host.mount(request).await.map(Json)
}

#[derive(Deserialize)]
struct Unmount {
    #[serde(default)]
    lazy: bool,
}

async fn unmount(
    State(host): State<Arc<Host>>,
    id: Id,
    how: Result<Query<Unmount>, QueryRejection>,
) -> Answer<()> {
    let (Path(id), Query(how)) = (id?, how?);
    host.unmount(id, how.lazy).await.map(Json)
}

async fn ended(State(host): State<Arc<Host>>, id: Id) -> Answer<()> {
    let Path(id) = id?;
    host.ended(id).await.map(Json)
}

async fn stage(State(host): State<Arc<Host>>, id: Id) -> Answer<StageStatus> {
    let Path(id) = id?;
    host.stage(id).await.map(Json)
}

async fn staging(State(host): State<Arc<Host>>, id: Id) -> Answer<StageStatus> {
    let Path(id) = id?;
    host.staging(id).await.map(Json)
}

async fn stop(State(host): State<Arc<Host>>) -> Answer<()> {
    host.stop();
    Ok(Json(()))
}

async fn status(State(host): State<Arc<Host>>) -> Answer<AgentStatus> {
    host.status().await.map(Json)
}
