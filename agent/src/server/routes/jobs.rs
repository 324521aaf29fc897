//! Jobs: submitted, told of, stopped, and what they print.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{Answer, Body, Routes};
use crate::api::Failure;
use crate::api::job::{JobList, JobRequest, JobStatus, LOG_OFFSET};
use crate::mounts::host::Host;

type Id = Result<Path<u64>, PathRejection>;
type Asked<T> = Result<Query<T>, QueryRejection>;

/// The routes.
pub fn routes() -> Routes {
    Routes::default()
        .get("/v1/jobs", jobs)
        .post("/v1/jobs", submit)
        .get("/v1/jobs/{id}", job)
        .post("/v1/jobs/{id}/stop", stop)
        .get("/v1/jobs/{id}/log", log)
}

async fn jobs(State(host): State<Arc<Host>>) -> Answer<JobList> {
    Ok(Json(JobList { jobs: host.jobs_told() }))
}

async fn submit(State(host): State<Arc<Host>>, Body(request): Body<JobRequest>) -> Answer<JobStatus> {
    host.submit(request).await.map(Json)
}

#[derive(Deserialize)]
struct Seen {
    seen: Option<usize>,
}

async fn job(State(host): State<Arc<Host>>, id: Id, asked: Asked<Seen>) -> Answer<JobStatus> {
    let (Path(id), Query(asked)) = (id?, asked?);
    host.job(id, asked.seen).await.map(Json)
}

#[derive(Deserialize)]
struct Stop {
    #[serde(default)]
    now: bool,
}

async fn stop(State(host): State<Arc<Host>>, id: Id, how: Asked<Stop>) -> Answer<JobStatus> {
    let (Path(id), Query(how)) = (id?, how?);
    host.stop_job(id, how.now).await.map(Json)
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    from: u64,
    #[serde(default)]
    wait: bool,
}

async fn log(State(host): State<Arc<Host>>, id: Id, part: Asked<Part>) -> Result<Response, Failure> {
    let (Path(id), Query(part)) = (id?, part?);
    let piece = host.log_of_job(id, part.from, part.wait).await?;
    let head = [(LOG_OFFSET, piece.from.to_string()), (CONTENT_TYPE, "application/octet-stream".to_owned())];
    Ok((head, piece.bytes).into_response())
}
