//! The protocol of volume plugins, version 1: calls are POSTs with JSON, and a failure is the status 500 with `Err`. podman does
//! not look for `Err` in any other answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bdnfs::error::Kind;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{DockerVolume, DockerVolumes, VolumeContent, VolumeRuntime};
use crate::api::publication::PublicationState;
use crate::api::{ApiResult, Failure};

/// The type of answers.
const MEDIA_TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// The arguments of all calls; each has some.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct CallArguments {
    name: String,
    #[serde(rename = "ID")]
    id: String,
    opts: Option<BTreeMap<String, String>>,
}

/// The plugin, for its socket.
pub fn routes(volumes: &Arc<DockerVolumes>) -> Router {
    Router::new().route("/{call}", post(answer)).with_state(Arc::clone(volumes))
}

async fn answer(
    State(volumes): State<Arc<DockerVolumes>>,
    Path(call): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (code, answer) = match run(&volumes, &call, runtime(&headers), &body).await {
        Ok(answer) => (StatusCode::OK, answer),
        Err(failure) => (StatusCode::INTERNAL_SERVER_ERROR, json!({"Err": failure.message})),
    };
    (code, [(CONTENT_TYPE, MEDIA_TYPE)], answer.to_string()).into_response()
}

/// The client: podman does not say which answers it takes.
fn runtime(headers: &HeaderMap) -> VolumeRuntime {
    let accepts = headers.get(ACCEPT).is_some_and(|types| types.as_bytes() == MEDIA_TYPE.as_bytes());
    if accepts { VolumeRuntime::Docker } else { VolumeRuntime::Podman }
}

async fn run(volumes: &Arc<DockerVolumes>, call: &str, by: VolumeRuntime, body: &[u8]) -> ApiResult<Value> {
    let invalid = |_| Failure::new(Kind::Invalid, "the call is not JSON of the volume plugin protocol");
    // Some calls have no body at all.
    let CallArguments { name, id, opts } = if body.is_empty() {
        CallArguments::default()
    } else {
        serde_json::from_slice(body).map_err(invalid)?
    };
    match call {
        "Plugin.Activate" => {
            if by == VolumeRuntime::Docker {
                volumes.forget_mounts_of_docker().await;
            }
            return Ok(json!({"Implements": ["VolumeDriver"]}));
        }
        "VolumeDriver.Create" => volumes.create(name, opts.unwrap_or_default(), by).await?,
        "VolumeDriver.Remove" => volumes.remove(&name).await?,
        "VolumeDriver.Mount" => return Ok(json!({"Mountpoint": volumes.mount(&name, &id, by).await?})),
        "VolumeDriver.Unmount" => volumes.unmount(&name, &id).await,
        "VolumeDriver.Path" => {
            let path = describe(volumes, &volumes.find(&name)?)["Mountpoint"].take();
            return Ok(json!({"Mountpoint": path}));
        }
        "VolumeDriver.Get" => return Ok(json!({"Volume": describe(volumes, &volumes.find(&name)?)})),
        "VolumeDriver.List" => {
            let all: Vec<_> = volumes.all().iter().map(|volume| describe(volumes, volume)).collect();
            return Ok(json!({"Volumes": all}));
        }
        "VolumeDriver.Capabilities" => return Ok(json!({"Capabilities": {"Scope": "local"}})),
        _ => return Err(Failure::new(Kind::Unsupported, format!("a volume plugin has no call {call}"))),
    }
    Ok(json!({"Err": ""}))
}

/// A volume, from memory.
fn describe(volumes: &DockerVolumes, volume: &DockerVolume) -> Value {
    if let VolumeContent::Written(written) = &volume.content {
        let (path, status) = volumes.describe_written(&volume.name, written);
        return json!({"Name": volume.name, "Mountpoint": path, "Status": status});
    }
    let status = volumes.status(&volume.name);
    let path = status.as_ref().and_then(|status| status.path.clone()).unwrap_or_default();
    let status = match status {
        Some(status) => json!({
            "source": status.source,
            "snapshot": status.snapshot,
            "state": status.state,
            "message": status.message,
            "damaged": status.abnormal,
        }),
        None => {
            json!({"state": PublicationState::Failed, "message": "it is not published; it is tried again when it is mounted"})
        }
    };
    json!({"Name": volume.name, "Mountpoint": path, "Status": status})
}
