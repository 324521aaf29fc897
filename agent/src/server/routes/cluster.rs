//! The cluster: who is in it.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::{Answer, Routes};
use crate::api::cluster::ClusterStatus;
use crate::mounts::host::Host;

/// The routes.
pub fn routes() -> Routes {
    Routes::default().get("/v1/cluster", cluster)
}

async fn cluster(State(host): State<Arc<Host>>) -> Answer<ClusterStatus> {
    host.cluster().map(Json)
}
