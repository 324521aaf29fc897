//! Health, for supervisors and probes: whether the daemon lives, whether it is ready, and its metrics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bdnfs::error::Kind;

use super::Routes;
use crate::api::{Failure, Health};
use crate::mounts::host::Host;
use crate::telemetry;

/// The routes.
pub fn routes() -> Routes {
    Routes::default().get("/healthz", healthz).get("/readyz", readyz).get("/metrics", metrics)
}

async fn healthz() -> Json<Health> {
    Json(Health { ready: None })
}

async fn readyz(State(host): State<Arc<Host>>) -> (StatusCode, Json<Health>) {
    let ready = host.is_ready();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { ready: Some(ready) }))
}

async fn metrics(State(host): State<Arc<Host>>) -> Result<impl IntoResponse, Failure> {
    let page = telemetry::metrics(host.facts().await?);
    let page = page.map_err(|_| Failure::new(Kind::Unsupported, "the metrics can't be written"))?;
    Ok(([(CONTENT_TYPE, telemetry::CONTENT_TYPE)], page))
}
