//! The answers of a Hub.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State as Extract};
use axum::http::header::{AUTHORIZATION, HOST, LINK, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::hub_files;
use super::hub_state::{HubContents, HubFile, HubFiles, HubState, RepositoryAccess};

/// How many entries a page of a tree has: few, so that there are several.
const PAGE_ENTRIES: usize = 3;

/// What stands between the name of a repository and a revision.
const VIEWS: [&str; 5] = ["revision", "tree", "paths-info", "resolve", "resolve-cache"];

/// How long a list of paths may be.
const BODY_LIMIT: usize = 1 << 20;

/// Why a request is not answered.
#[derive(Debug)]
enum HubError {
    /// An error: status, code and message.
    Error(StatusCode, &'static str, &'static str),
    /// A limit is used up; the header says which.
    Limited(String),
    /// The repository has another name now.
    Moved(String),
}

impl IntoResponse for HubError {
    fn into_response(self) -> Response {
        match self {
            Self::Limited(limit) => (StatusCode::TOO_MANY_REQUESTS, [("RateLimit", limit)]).into_response(),
            Self::Moved(to) => (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, to)]).into_response(),
            Self::Error(status, code, message) => {
                let mut response = (status, Json(json!({ "error": message }))).into_response();
                if !code.is_empty() {
                    response.headers_mut().insert("X-Error-Code", HeaderValue::from_static(code));
                }
                response.headers_mut().insert("X-Error-Message", HeaderValue::from_static(message));
                response
            }
        }
    }
}

const NO_PAGE: HubError = HubError::Error(StatusCode::NOT_FOUND, "", "no such page");
const NO_REVISION: HubError = HubError::Error(StatusCode::NOT_FOUND, "RevisionNotFound", "Invalid rev id");
const NO_ENTRY: HubError = HubError::Error(StatusCode::NOT_FOUND, "EntryNotFound", "Entry not found");
const BAD_TOKEN: HubError =
    HubError::Error(StatusCode::UNAUTHORIZED, "", "Invalid credentials in Authorization header");
const DISABLED: HubError = HubError::Error(StatusCode::FORBIDDEN, "", "Access to this resource is disabled.");

/// The subject of a request.
#[derive(Debug)]
pub(super) struct HubRequest {
    /// `models/owner/name`.
    pub repository: String,
    view: String,
    revision: String,
    /// The path in the repository; empty for all of it.
    pub path: String,
}

impl HubRequest {
    fn parse(path: &str) -> Option<Self> {
        let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let parts: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let (api, parts) = match parts.split_first()? {
            (first, rest) if first == "api" => (true, rest),
            _ => (false, &parts[..]),
        };
        let kinds = ["models", "datasets", "spaces"];
        let kind = kinds.iter().find(|kind| parts.first().is_some_and(|part| part == *kind));
        let parts = &parts[usize::from(kind.is_some())..];
        // A repository by itself is its main revision.
        let whole = ["revision".to_owned(), "main".to_owned()];
        let (id, rest) = match parts.iter().position(|part| VIEWS.contains(&part.as_str())) {
            Some(at) => parts.split_at(at),
            None if api => (parts, &whole[..]),
            None => return None,
        };
        let (view, rest) = rest.split_first()?;
        let (revision, path) = rest.split_first()?;
        let right = !id.is_empty() && api == (view != "resolve");
        right.then(|| Self {
            repository: format!("{}/{}", kind.unwrap_or(&"models"), id.join("/")),
            view: view.clone(),
            revision: revision.clone(),
            path: path.join("/"),
        })
    }
}

pub(super) async fn answer(Extract(state): Extract<Arc<HubState>>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    route(&state, &request, body).await.unwrap_or_else(IntoResponse::into_response)
}

async fn route(state: &HubState, request: &Parts, body: Body) -> Result<Response, HubError> {
    let target = HubRequest::parse(request.uri.path()).ok_or(NO_PAGE)?;
    let (commit, files) = state.change(|hub| look(hub, &target, request))?;
    match target.view.as_str() {
        "revision" => Ok(Json(describe(state, &target, &commit, &files)).into_response()),
        "tree" => tree(&target, &files, &request.uri, &request.headers),
        "paths-info" => {
            let body = axum::body::to_bytes(body, BODY_LIMIT).await.map_err(|_| NO_PAGE)?;
            Ok(infos(&files, &String::from_utf8_lossy(&body)).into_response())
        }
        view => {
            let file = files.get(&target.path).ok_or(NO_ENTRY)?;
            Ok(hub_files::resolve(state, &target, &commit, file, view == "resolve-cache", request).await)
        }
    }
}

/// Finds the commit that is asked for, if the request may see it.
fn look(hub: &mut HubContents, target: &HubRequest, request: &Parts) -> Result<(String, HubFiles), HubError> {
    if hub.limit.0 > 0 {
        hub.limit.0 -= 1;
        return Err(HubError::Limited(hub.limit.1.clone()));
    }
    if let Some(new) = hub.renamed.get(&target.repository) {
        let page = |name: &str| name.strip_prefix("models/").unwrap_or(name).to_owned();
        let to = request.uri.to_string().replacen(&page(&target.repository), &page(new), 1);
        return Err(HubError::Moved(to));
    }
    admit(hub, target, &request.headers)?;
    let repository = hub.repository(&target.repository);
    let commit = repository.commit(&target.revision).ok_or(NO_REVISION)?.to_owned();
    let files = repository.files(&commit).ok_or(NO_REVISION)?.clone();
    Ok((commit, files))
}

/// Whether the request may see what it asks for.
fn admit(hub: &HubContents, target: &HubRequest, headers: &HeaderMap) -> Result<(), HubError> {
    let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let rights = token.map(|token| hub.tokens.get(token).ok_or(BAD_TOKEN)).transpose()?;
    let may = rights.is_some_and(|rights| rights.contains(&target.repository));
    let stranger = |known| if token.is_some() { known } else { StatusCode::UNAUTHORIZED };
    let gated = HubError::Error(stranger(StatusCode::FORBIDDEN), "GatedRepo", "Access to it is restricted.");
    match hub.repositories.get(&target.repository).map(|repository| repository.guard) {
        Some(RepositoryAccess::Disabled) => Err(DISABLED),
        Some(RepositoryAccess::Gated) if !may => Err(gated),
        Some(RepositoryAccess::GatedContent) if !may && target.view.starts_with("resolve") => Err(gated),
        Some(guard) if may || guard != RepositoryAccess::Private => Ok(()),
        _ => Err(HubError::Error(stranger(StatusCode::NOT_FOUND), "RepoNotFound", "Repository not found")),
    }
}

/// The description of a revision.
fn describe(state: &HubState, target: &HubRequest, commit: &str, files: &HubFiles) -> Value {
    let (date, guard) = state.change(|hub| {
        let repository = hub.repository(&target.repository);
        (repository.date(), repository.guard)
    });
    let id = target.repository.split_once('/').map_or("", |(_, id)| id);
    let gated = if matches!(guard, RepositoryAccess::Gated | RepositoryAccess::GatedContent) {
        json!("auto")
    } else {
        json!(false)
    };
    let siblings: Vec<_> = files.keys().map(|path| json!({ "rfilename": path })).collect();
    json!({
        "_id": "0123456789abcdef01234567", "id": id, "modelId": id, "sha": commit, "lastModified": date,
        "private": guard == RepositoryAccess::Private, "gated": gated, "disabled": false, "downloads": 0, "likes": 0,
        "tags": [], "siblings": siblings,
    })
}

/// The entries of the files that a form asks for, each by a field `paths`.
fn infos(files: &HubFiles, form: &str) -> Json<Vec<Value>> {
    let paths = form.split('&').filter_map(|field| field.strip_prefix("paths="));
    let paths =
        paths.map(|path| percent_decode_str(&path.replace('+', " ")).decode_utf8_lossy().into_owned());
    Json(paths.filter_map(|path| Some(entry(&path, files.get(&path)?))).collect())
}

/// A file, as an entry of a tree.
fn entry(path: &str, file: &HubFile) -> Value {
    let mut entry = json!({ "type": "file", "path": path, "oid": file.oid, "size": file.size });
    if let Some(sha256) = &file.sha256 {
        entry["lfs"] = json!({ "oid": sha256, "size": file.size, "pointerSize": 134 });
    }
    entry
}

/// One page of a tree.
fn tree(target: &HubRequest, files: &HubFiles, uri: &Uri, headers: &HeaderMap) -> Result<Response, HubError> {
    let query = uri.query().unwrap_or_default();
    let below = if target.path.is_empty() { String::new() } else { format!("{}/", target.path) };
    let mut entries = std::collections::BTreeMap::new();
    for (path, file) in files.iter().filter(|(path, _)| path.starts_with(&below)) {
        entries.insert(path.clone(), entry(path, file));
        for (slash, _) in path.match_indices('/').filter(|(slash, _)| *slash >= below.len()) {
            let path = path[..slash].to_owned();
            let entry = json!({ "type": "directory", "path": path, "oid": "0".repeat(40), "size": 0 });
            entries.insert(path, entry);
        }
    }
    if entries.is_empty() && !below.is_empty() {
        return Err(NO_ENTRY);
    }
    if !query.contains("recursive=true") {
        entries.retain(|path, _| !path[below.len()..].contains('/'));
    }
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor=")?.parse().ok()).unwrap_or(0);
    let page: Vec<_> = entries.values().skip(cursor).take(PAGE_ENTRIES).collect();
    let mut response = Json(&page).into_response();
    if cursor + PAGE_ENTRIES < entries.len() {
        let first = query.split("&cursor=").next().unwrap_or_default();
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let next =
            format!("<http://{host}{}?{first}&cursor={}>; rel=\"next\"", uri.path(), cursor + PAGE_ENTRIES);
        response.headers_mut().insert(LINK, next.parse().expect("a link"));
    }
    Ok(response)
}
