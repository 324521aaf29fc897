//! The routes of the control API, a file for each part; `docs/openapi.json` describes all of them.

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, Path};
use axum::handler::Handler;
use axum::http::{Method, Uri};
use axum::routing::{MethodFilter, on};
use bdnfs::error::Kind;
use bdnfs::source::SecretJsonError;
use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::agent::Agent;
use crate::api::{ApiResult, Failure};

mod cache;
mod cluster;
mod health;
mod jobs;
mod mounts;
mod publications;
mod training_caches;
mod volumes;

/// The id in a path.
pub type IdPath = Result<Path<u64>, PathRejection>;

/// The answer of a handler.
pub type Answer<T> = ApiResult<axum::Json<T>>;

/// Routes that are also listed, so that a test can compare them with `docs/openapi.json`.
#[derive(Default)]
pub struct Routes {
    router: Router<Arc<Agent>>,
    listed: Vec<(Method, &'static str)>,
}

impl Routes {
    /// Routes GET of `path` to `handler`.
    pub fn get<H: Handler<T, Arc<Agent>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::GET, Method::GET), path, handler)
    }

    /// Routes POST to `path` to `handler`.
    pub fn post<H: Handler<T, Arc<Agent>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::POST, Method::POST), path, handler)
    }

    /// Routes PUT of `path` to `handler`.
    pub fn put<H: Handler<T, Arc<Agent>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::PUT, Method::PUT), path, handler)
    }

    /// Routes DELETE of `path` to `handler`.
    pub fn delete<H: Handler<T, Arc<Agent>>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.on((MethodFilter::DELETE, Method::DELETE), path, handler)
    }

    fn on<H: Handler<T, Arc<Agent>>, T: 'static>(
        mut self,
        (filter, method): (MethodFilter, Method),
        path: &'static str,
        handler: H,
    ) -> Self {
        self.listed.push((method, path));
        Self { router: self.router.route(path, on(filter, handler)), listed: self.listed }
    }

    /// Adds the routes of `others`.
    pub fn merge(mut self, others: Self) -> Self {
        self.listed.extend(others.listed);
        Self { router: self.router.merge(others.router), listed: self.listed }
    }
}

/// The control API.
fn control_routes() -> Routes {
    mounts::routes()
        .merge(jobs::routes())
        .merge(publications::routes())
        .merge(volumes::routes())
        .merge(training_caches::routes())
        .merge(cache::routes())
        .merge(cluster::routes())
        .merge(health::routes())
}

/// The control API, for its sockets.
pub fn control(agent: &Arc<Agent>) -> Router {
    finish(control_routes(), agent)
}

/// Health and metrics, which are served over TCP to all of this machine.
pub fn health_and_metrics(agent: &Arc<Agent>) -> Router {
    finish(health::routes(), agent)
}

fn finish(routes: Routes, agent: &Arc<Agent>) -> Router {
    routes.router.with_state(Arc::clone(agent)).fallback(unknown).method_not_allowed_fallback(unknown)
}

async fn unknown(uri: Uri) -> Failure {
    Failure::new(Kind::NotFound, format!("{}: no such route", uri.path()))
}

/// A request's body, JSON whatever its type is said to be: curl says something else. A key that is not known is refused: what it
/// asks for would not be done.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: axum::extract::Request, state: &S) -> ApiResult<Self> {
        let invalid = |what: String| Failure::new(Kind::Invalid, format!("the request's body: {what}"));
        let bytes = Bytes::from_request(request, state).await.map_err(|e| invalid(e.to_string()))?;
        let mut unknown = None;
        let mut parser = serde_json::Deserializer::from_slice(&bytes);
        let parsed = serde_ignored::deserialize(&mut parser, |path| {
            unknown.get_or_insert_with(|| path.to_string());
        });
        let parsed = parsed.and_then(|body| parser.end().map(|()| body));
        if let (Ok(_), Some(key)) = (&parsed, unknown) {
            return Err(invalid(format!("unknown key {key}")));
        }
        parsed.map(Self).map_err(|e| invalid(SecretJsonError::from(e).to_string()))
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

    /// The routes of the document: the suite `openapi` compares each of them with real answers.
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
    fn control_routes_match_the_openapi_document() {
        let listed = control_routes().listed;
        let served: BTreeSet<_> = listed
            .iter()
            .map(|(method, path)| format!("{} {path}", method.as_str().to_lowercase()))
            .collect();
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
