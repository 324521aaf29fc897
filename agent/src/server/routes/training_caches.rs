//! The training caches on this node: looked at.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use bdnfs::task::blocking;
use chrono::{TimeDelta, Utc};

use super::{Answer, Routes};
use crate::agent::Agent;
use crate::api::training_cache_list::{TrainingCacheList, TrainingCacheStatus};

/// The routes.
pub fn routes() -> Routes {
    Routes::default().get("/v1/training-caches", training_caches)
}

async fn training_caches(State(agent): State<Arc<Agent>>) -> Answer<TrainingCacheList> {
    let list = move || {
        let (volumes, now) = (agent.jobs().volumes(), Utc::now());
        // Homes that nodes share lie on none; what is left of earlier ones is not used.
        let homes = if volumes.shared_directory().is_some() { Vec::new() } else { volumes.own_homes() };
        let status = homes.into_iter().filter_map(|(tenant, home)| {
            let idle = TimeDelta::from_std(home.synced_ago()?).unwrap_or(TimeDelta::MAX);
            let used_at = now.checked_sub_signed(idle).unwrap_or_default().timestamp();
            Some(TrainingCacheStatus { tenant, source: home.source(), used_at })
        });
        Ok(TrainingCacheList { caches: status.collect() })
    };
    Ok(Json(blocking(list).await?))
}
