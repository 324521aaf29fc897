//! Health, for supervisors and probes: whether the daemon lives, and whether it is ready.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::Routes;
use crate::control::api::Health;
use crate::daemon::Host;

/// The routes.
pub fn routes() -> Routes {
    Routes::default().get("/healthz", healthz).get("/readyz", readyz)
}

async fn healthz() -> Json<Health> {
    Json(Health { ready: None })
}

async fn readyz(State(host): State<Arc<Host>>) -> (StatusCode, Json<Health>) {
    let ready = host.is_ready();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(Health { ready: Some(ready) }))
}
