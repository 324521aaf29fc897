//! Volumes of containers: asked for, looked at, ended.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};

use super::{Answer, JsonBody, Routes};
use crate::agent::Agent;
use crate::api::container_volume::{ContainerVolumeList, ContainerVolumeRequest, ContainerVolumeStatus};

type KeyPath = Result<Path<String>, PathRejection>;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .get("/v1/volumes", volumes)
        .put("/v1/volumes/{key}", publish)
        .get("/v1/volumes/{key}", volume)
        .delete("/v1/volumes/{key}", unpublish)
}

async fn volumes(State(agent): State<Arc<Agent>>) -> Answer<ContainerVolumeList> {
    agent.lifecycle().ready().await;
    Ok(Json(ContainerVolumeList { volumes: agent.volumes().list() }))
}

async fn publish(
    State(agent): State<Arc<Agent>>,
    key: KeyPath,
    JsonBody(request): JsonBody<ContainerVolumeRequest>,
) -> Answer<ContainerVolumeStatus> {
    let Path(key) = key?;
    agent.volumes().publish(&key, request).await.map(Json)
}

async fn volume(State(agent): State<Arc<Agent>>, key: KeyPath) -> Answer<ContainerVolumeStatus> {
    let Path(key) = key?;
    // Until then it is not known what there is.
    agent.lifecycle().ready().await;
    agent.volumes().status(&key).map(Json)
}

async fn unpublish(State(agent): State<Arc<Agent>>, key: KeyPath) -> Answer<()> {
    let Path(key) = key?;
    agent.volumes().unpublish(&key).await.map(Json)
}
