//! Mounts: made, staged, waited for, ended; and how all is doing.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::routing::{delete, get, post};
use serde::Deserialize;

use super::{Answer, Body};
use crate::control::api::{MountRequest, Mounted, Staging, Status};
use crate::daemon::Host;

type Id = Result<Path<u64>, PathRejection>;

/// The routes.
pub fn routes() -> Router<Arc<Host>> {
    Router::new()
        .route("/v1/mounts", post(mount))
        .route("/v1/mounts/{id}", delete(unmount))
        .route("/v1/mounts/{id}/ended", get(ended))
        .route("/v1/mounts/{id}/stage", post(stage))
        .route("/v1/mounts/{id}/stage", get(staging))
        .route("/v1/status", get(status))
}

async fn mount(State(host): State<Arc<Host>>, Body(request): Body<MountRequest>) -> Answer<Mounted> {
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

async fn stage(State(host): State<Arc<Host>>, id: Id) -> Answer<Staging> {
    let Path(id) = id?;
    host.stage(id).await.map(Json)
}

async fn staging(State(host): State<Arc<Host>>, id: Id) -> Answer<Staging> {
    let Path(id) = id?;
    host.staging(id).await.map(Json)
}

async fn status(State(host): State<Arc<Host>>) -> Answer<Status> {
    host.status().await.map(Json)
}
