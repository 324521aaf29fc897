//! Health, for supervisors and probes: whether the daemon lives, and whether it is ready.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;

use crate::control::api::Health;
use crate::daemon::Host;

/// The routes.
pub fn routes() -> Router<Arc<Host>> {
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

async fn healthz() -> Json<Health> {
    Json(Health { ready: None })
}

async fn readyz(State(host): State<Arc<Host>>) -> (StatusCode, Json<Health>) {
    let ready = host.is_ready();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { ready: Some(ready) }))
}
