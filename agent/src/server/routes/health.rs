//! Health, for supervisors and probes: whether the agent lives, whether it is ready, and its metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bdnfs::error::Kind;

use super::Routes;
use crate::agent::Agent;
use crate::api::{ApiResult, Failure, Health};
use crate::telemetry;

/// The routes.
pub fn routes() -> Routes {
    Routes::default().get("/healthz", healthz).get("/readyz", readyz).get("/metrics", metrics)
}

async fn healthz() -> Json<Health> {
    Json(Health { ready: None })
}

async fn readyz(State(agent): State<Arc<Agent>>) -> (StatusCode, Json<Health>) {
    let ready = agent.lifecycle().is_ready();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { ready: Some(ready) }))
}

async fn metrics(State(agent): State<Arc<Agent>>) -> ApiResult<impl IntoResponse> {
    let page = telemetry::metrics(agent.scrape().await?);
    let page = page.map_err(|_| Failure::new(Kind::Unsupported, "cannot write the metrics"))?;
    Ok(([(CONTENT_TYPE, telemetry::CONTENT_TYPE)], page))
}
