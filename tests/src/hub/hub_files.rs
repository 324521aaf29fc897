//! The content of files: sent by the Hub, or by the storage that it leads to.

use std::sync::Arc;

use axum::extract::{Request, State as Extract};
use axum::http::header::{AUTHORIZATION, ETAG, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::hub_routes::HubRequest;
use super::hub_state::{HubFile, HubState};
use crate::file;

/// Answers for a file of a commit. `cached`: by the Hub's own cache, which sends what is small.
pub(super) async fn resolve(
    state: &HubState,
    target: &HubRequest,
    commit: &str,
    file: &HubFile,
    cached: bool,
    request: &Parts,
) -> Response {
    let cached = cached || file.sha256.is_none() && state.change(|hub| hub.direct);
    let quoted = |text: &str| HeaderValue::from_str(&format!("\"{text}\"")).expect("an id");
    let other = state.change(|hub| hub.etag.clone()).filter(|_| file.sha256.is_none());
    let id = other.as_deref().unwrap_or(file.id());
    let mut response = match (&file.sha256, cached) {
        (None, true) => {
            let object = state.object(file.id());
            let sent = file::answer(&request.method, &request.headers, &object).await;
            let mut response = sent.unwrap_or_else(IntoResponse::into_response);
            response.headers_mut().insert(ETAG, quoted(id));
            response
        }
        (None, false) => {
            let rest = request.uri.path().split_once("/resolve/").map_or("", |(_, rest)| rest);
            let path = rest.split_once('/').map_or("", |(_, path)| path);
            let to = format!("/api/{}/resolve-cache/{commit}/{path}", target.repository);
            (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, to)], "Temporary Redirect").into_response()
        }
        (Some(sha256), _) => {
            let to = state.change(|hub| {
                let (storage, expires, epoch) = (&hub.storage, hub.expires, hub.epoch);
                format!("{storage}/repos/{sha256}?Expires={expires}&Signature=signed-{epoch}")
            });
            (StatusCode::FOUND, [(LOCATION, to)], "Found").into_response()
        }
    };
    let headers = response.headers_mut();
    headers.insert("X-Repo-Commit", HeaderValue::from_str(commit).expect("an id"));
    if !cached {
        // The redirect has a tag of its own; that of the content is this one.
        headers.insert(ETAG, HeaderValue::from_static("W/\"13-redirect\""));
        headers.insert("X-Linked-ETag", quoted(id));
        headers.insert("X-Linked-Size", file.size.into());
    }
    response
}

/// The storage: sends what a signed address names, and holds nothing of tokens.
pub(super) async fn stored(Extract(state): Extract<Arc<HubState>>, request: Request) -> Response {
    if request.headers().contains_key(AUTHORIZATION) {
        state.change(|hub| hub.leaks += 1);
        return StatusCode::BAD_REQUEST.into_response();
    }
    let (request, _) = request.into_parts();
    let signature = format!("Signature=signed-{}", state.change(|hub| hub.epoch));
    if !request.uri.query().is_some_and(|query| query.ends_with(&signature)) {
        return (StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code></Error>").into_response();
    }
    let id = request.uri.path().trim_start_matches("/repos/");
    let object = state.object(id);
    file::answer(&request.method, &request.headers, &object).await.unwrap_or_else(IntoResponse::into_response)
}
