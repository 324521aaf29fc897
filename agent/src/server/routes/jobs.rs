//! Jobs: submitted, followed, stopped, and their logs.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{Answer, IdPath, JsonBody, Routes};
use crate::agent::Agent;
use crate::api::ApiResult;
use crate::api::job::{JobList, JobRequest, JobStatus, LOG_OFFSET_HEADER, LOG_STREAM_HEADER};

type QueryOf<T> = Result<Query<T>, QueryRejection>;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .get("/v1/jobs", jobs)
        .post("/v1/jobs", submit)
        .get("/v1/jobs/{id}", job)
        .post("/v1/jobs/{id}/stop", stop)
        .get("/v1/jobs/{id}/log", log)
}

async fn jobs(State(agent): State<Arc<Agent>>) -> Answer<JobList> {
    Ok(Json(JobList { jobs: agent.jobs().list() }))
}

async fn submit(
    State(agent): State<Arc<Agent>>,
    JsonBody(request): JsonBody<JobRequest>,
) -> Answer<JobStatus> {
    agent.jobs().submit(request).await.map(Json)
}

#[derive(Deserialize)]
struct StatusQuery {
    seen: Option<usize>,
}

async fn job(State(agent): State<Arc<Agent>>, id: IdPath, query: QueryOf<StatusQuery>) -> Answer<JobStatus> {
    let (Path(id), Query(query)) = (id?, query?);
    agent.jobs().status(id, query.seen).await.map(Json)
}

#[derive(Deserialize)]
struct StopQuery {
    #[serde(default)]
    now: bool,
    #[serde(default)]
    discard: bool,
}

async fn stop(State(agent): State<Arc<Agent>>, id: IdPath, query: QueryOf<StopQuery>) -> Answer<JobStatus> {
    let (Path(id), Query(query)) = (id?, query?);
    agent.jobs().stop(id, query.now, query.discard).await.map(Json)
}

#[derive(Deserialize)]
struct LogQuery {
    #[serde(default)]
    from: u64,
    #[serde(default)]
    wait: bool,
}

async fn log(State(agent): State<Arc<Agent>>, id: IdPath, query: QueryOf<LogQuery>) -> ApiResult<Response> {
    let (Path(id), Query(query)) = (id?, query?);
    let chunk = agent.jobs().log(id, query.from, query.wait).await?;
    let head = [
        (LOG_OFFSET_HEADER, chunk.from.to_string()),
        (LOG_STREAM_HEADER, chunk.stream.name().to_owned()),
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
    ];
    Ok((head, chunk.bytes).into_response())
}
