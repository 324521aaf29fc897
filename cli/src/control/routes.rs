//! Routes: who answers what. Each part of the API has a file below, or beside what it is about.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequest;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::Uri;
use bdnfs::error::Kind;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::api::Failure;
use crate::daemon::Host;

mod cache;
mod health;
mod mounts;

/// What a handler answers with.
pub type Answer<T> = Result<axum::Json<T>, Failure>;

/// All that the control socket serves.
pub fn all(host: &Arc<Host>) -> Router {
    finish(mounts::routes().merge(cache::routes()).merge(health::routes()), host)
}

/// What is served over TCP, to whoever is on this machine.
pub fn watched(host: &Arc<Host>) -> Router {
    finish(health::routes(), host)
}

fn finish(routes: Router<Arc<Host>>, host: &Arc<Host>) -> Router {
    routes.with_state(Arc::clone(host)).fallback(unknown).method_not_allowed_fallback(unknown)
}

async fn unknown(uri: Uri) -> Failure {
    Failure::new(Kind::NotFound, format!("{} is nothing that can be asked so", uri.path()))
}

/// A request's body, JSON whatever its type is said to be: curl says something else.
pub struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self, Failure> {
        let invalid = |what: String| Failure::new(Kind::Invalid, format!("the request's body: {what}"));
        let bytes = Bytes::from_request(request, state).await.map_err(|e| invalid(e.to_string()))?;
        serde_json::from_slice(&bytes).map(Self).map_err(|e| {
            let text = e.to_string();
            // Most other messages repeat a value, which may be a secret at the wrong place.
            let is_plain = text.starts_with("missing field");
            invalid(if is_plain {
                text
            } else {
                format!("line {} column {} is not as it should be", e.line(), e.column())
            })
        })
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Self::new(Kind::Invalid, rejection.to_string())
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(Kind::Invalid, rejection.to_string())
    }
}
