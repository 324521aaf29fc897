//! The cluster and its members.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use super::{Answer, Routes};
use crate::agent::Agent;
use crate::api::cluster::ClusterStatus;

/// The routes.
pub fn routes() -> Routes {
    Routes::default().get("/v1/cluster", cluster)
}

async fn cluster(State(agent): State<Arc<Agent>>) -> Answer<ClusterStatus> {
    agent.cluster().map(Json)
}
