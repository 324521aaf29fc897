//! Routes: who answers what. Each part of the API has a file below, or beside what it is about; `docs/openapi.json`
//! describes all of it.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequest;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::handler::Handler;
use axum::http::{Method, Uri};
use axum::routing::{MethodFilter, on};
use bdnfs::error::Kind;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::api::Failure;
use crate::mounts::host::Host;

mod cache;
mod cluster;
mod health;
mod jobs;
mod mounts;

/// What a handler answers with.
pub type Answer<T> = Result<axum::Json<T>, Failure>;

/// Routes that can be told: what is served is held against what is described.
#[derive(Default)]
pub struct Routes {
    router: Router<Arc<Host>>,
    known: Vec<(Method, &'static str)>,
}

impl Routes {
    /// Has `handler` answer GET of `path`.
    pub fn get<H: Handler<T, Arc<Host>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::GET, Method::GET), path, handler)
    }

    /// Has `handler` answer POST to `path`.
    pub fn post<H: Handler<T, Arc<Host>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::POST, Method::POST), path, handler)
    }

    /// Has `handler` answer DELETE of `path`.
    pub fn delete<H: Handler<T, Arc<Host>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::DELETE, Method::DELETE), path, handler)
    }

    fn on<H: Handler<T, Arc<Host>>, T: 'static>(
        mut self,
        (filter, method): (MethodFilter, Method),
        path: &'static str,
        handler: H,
    ) -> Self {
        self.known.push((method, path));
        Self { router: self.router.route(path, on(filter, handler)), known: self.known }
    }

    /// These, and those.
    pub fn merge(mut self, others: Self) -> Self {
        self.known.extend(others.known);
        Self { router: self.router.merge(others.router), known: self.known }
    }
}

/// What the control socket serves.
fn served() -> Routes {
    mounts::routes()
        .merge(jobs::routes())
        .merge(cache::routes())
        .merge(cluster::routes())
        .merge(health::routes())
}

/// All that the control socket serves.
pub fn all(host: &Arc<Host>) -> Router {
    finish(served(), host)
}

/// What is served over TCP, to whoever is on this machine.
pub fn watched(host: &Arc<Host>) -> Router {
    finish(health::routes(), host)
}

fn finish(routes: Routes, host: &Arc<Host>) -> Router {
    routes.router.with_state(Arc::clone(host)).fallback(unknown).method_not_allowed_fallback(unknown)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// What the document describes: the suite `openapi` holds each of them against real answers.
    fn described() -> BTreeSet<String> {
        let text = include_str!("../../../docs/openapi.json");
        let document: Value = serde_json::from_str(text).expect("docs/openapi.json is JSON");
        let paths = document["paths"].as_object().expect("paths");
        let operations = paths.iter().flat_map(|(path, operations)| {
            let methods = operations.as_object().expect("operations").keys();
            methods.filter(|key| *key != "parameters").map(move |method| format!("{method} {path}"))
        });
        operations.collect()
    }

    #[test]
    fn what_is_served_is_described_and_the_other_way_round() {
        let known = served().known;
        let served: BTreeSet<_> =
            known.iter().map(|(method, path)| format!("{} {path}", method.as_str().to_lowercase())).collect();
        let described = described();
        let missing: Vec<_> = served.difference(&described).collect();
        assert!(
            missing.is_empty(),
            "describe these routes in docs/openapi.json, and ask them in tests/tests/openapi.rs: {missing:?}"
        );
        let stale: Vec<_> = described.difference(&served).collect();
        assert!(stale.is_empty(), "docs/openapi.json describes what is not served: {stale:?}");
    }
}
