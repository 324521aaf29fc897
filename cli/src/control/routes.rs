//! Routes: who answers what. Each part of the API has a file below, or beside what it is about.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequest;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::handler::Handler;
use axum::http::Uri;
use axum::routing::{MethodRouter, delete, get, post};
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

/// Routes, and the list of them, which the description of the API is held against.
pub struct Routes<S> {
    router: Router<S>,
    list: Vec<(&'static str, &'static str)>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// None.
    pub fn new() -> Self {
        Self { router: Router::new(), list: Vec::new() }
    }

    /// These and GET of `path`.
    pub fn get<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("get", path, get(handler))
    }

    /// These and POST to `path`.
    pub fn post<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("post", path, post(handler))
    }

    /// These and DELETE of `path`.
    pub fn delete<H: Handler<T, S>, T: 'static>(self, path: &'static str, handler: H) -> Self {
        self.add("delete", path, delete(handler))
    }

    fn add(mut self, method: &'static str, path: &'static str, route: MethodRouter<S>) -> Self {
        self.list.push((method, path));
        Self { router: self.router.route(path, route), list: self.list }
    }

    /// These and `others`.
    pub fn merge(mut self, others: Self) -> Self {
        self.list.extend(others.list);
        Self { router: self.router.merge(others.router), list: self.list }
    }

    /// These, served with `state`.
    pub fn with_state(self, state: S) -> Routes<()> {
        Routes { router: self.router.with_state(state), list: self.list }
    }

    /// All that there are: the method in lower case, and the path.
    #[cfg(test)]
    pub fn list(&self) -> &[(&'static str, &'static str)] {
        &self.list
    }
}

impl Routes<()> {
    fn into_router(self) -> Router {
        self.router.fallback(unknown).method_not_allowed_fallback(unknown)
    }
}

/// All that the control socket serves.
pub fn all(host: &Arc<Host>) -> Router {
    let routes = Routes::new().merge(mounts::routes()).merge(cache::routes()).merge(health::routes());
    routes.with_state(Arc::clone(host)).into_router()
}

/// What is served over TCP, to whoever is on this machine.
pub fn watched(host: &Arc<Host>) -> Router {
    health::routes().with_state(Arc::clone(host)).into_router()
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
