//! Publications: asked for, looked at, ended; and the sources that have a name.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::{Answer, JsonBody, Routes};
use crate::agent::Agent;
use crate::api::ApiResult;
use crate::api::publication::{
    PublicationList, PublicationRequest, PublicationState, PublicationStatus, SourceList,
};
use crate::publications::Milestone;

type NamePath = Result<Path<String>, PathRejection>;
type WaitQueryResult = Result<Query<WaitQuery>, QueryRejection>;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .get("/v1/publications", publications)
        .put("/v1/publications/{key}", publish)
        .get("/v1/publications/{key}", publication)
        .delete("/v1/publications/{key}", unpublish)
        .get("/v1/sources", sources)
        .put("/v1/sources/{name}", publish_source)
}

#[derive(Deserialize)]
struct WaitQuery {
    /// In seconds.
    #[serde(default)]
    wait: u64,
}

/// 200 for a published one, 202 for a pending one.
fn answer(status: PublicationStatus) -> (StatusCode, Json<PublicationStatus>) {
    let is_published = status.state == PublicationState::Published;
    (if is_published { StatusCode::OK } else { StatusCode::ACCEPTED }, Json(status))
}

async fn publications(State(agent): State<Arc<Agent>>) -> Answer<PublicationList> {
    agent.lifecycle().ready().await;
    Ok(Json(PublicationList { publications: agent.publications().list() }))
}

async fn publish(
    State(agent): State<Arc<Agent>>,
    key: NamePath,
    query: WaitQueryResult,
    JsonBody(request): JsonBody<PublicationRequest>,
) -> ApiResult<(StatusCode, Json<PublicationStatus>)> {
    let (Path(key), Query(query)) = (key?, query?);
    let wait = Duration::from_secs(query.wait);
    agent.publications().publish(&key, request, wait, Milestone::Published).await.map(answer)
}

async fn publication(State(agent): State<Arc<Agent>>, key: NamePath) -> Answer<PublicationStatus> {
    let Path(key) = key?;
    // Until then it is not known what there is.
    agent.lifecycle().ready().await;
    agent.publications().status(&key).map(Json)
}

async fn unpublish(State(agent): State<Arc<Agent>>, key: NamePath) -> Answer<()> {
    let Path(key) = key?;
    agent.publications().unpublish(&key).await.map(Json)
}

async fn sources(State(agent): State<Arc<Agent>>) -> Answer<SourceList> {
    Ok(Json(SourceList { sources: agent.publications().sources() }))
}

async fn publish_source(
    State(agent): State<Arc<Agent>>,
    name: NamePath,
    query: WaitQueryResult,
) -> ApiResult<(StatusCode, Json<PublicationStatus>)> {
    let (Path(name), Query(query)) = (name?, query?);
    let wait = Duration::from_secs(query.wait);
    agent.publications().publish_source(&name, wait).await.map(answer)
}
