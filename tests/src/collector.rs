//! A collector of traces, which speaks OTLP over HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use parking_lot::Mutex;
use prost::Message;

use crate::serve::HttpServer;

/// A collector on loopback.
#[derive(Debug)]
pub struct TraceCollector {
    /// To stop and start it.
    pub server: HttpServer,
    taken: Arc<Mutex<CollectorState>>,
}

/// The spans that it received.
#[derive(Debug, Default)]
struct CollectorState {
    spans: Vec<CollectedSpan>,
    bytes: Vec<u8>,
    authorized: Vec<String>,
}

/// A span.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    /// Its name.
    pub name: String,
    /// The trace that it belongs to.
    pub trace: Vec<u8>,
    /// Itself.
    pub id: Vec<u8>,
    /// The span that it is a part of; nothing for one that begins a trace.
    pub parent: Vec<u8>,
    /// Its attributes.
    pub attributes: BTreeMap<String, String>,
    /// The attributes of the process that it comes from.
    pub resource: BTreeMap<String, String>,
    /// How many events lie within it.
    pub events: usize,
}

impl TraceCollector {
    /// Starts one.
    pub fn start() -> Self {
        let taken = Arc::<Mutex<CollectorState>>::default();
        let app = Router::new().route("/v1/traces", post(take)).with_state(Arc::clone(&taken));
        Self { server: HttpServer::start(app, 0), taken }
    }

    /// All spans that were sent to it.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        self.taken.lock().spans.clone()
    }

    /// Whether `text` occurs anywhere in what was sent to it.
    pub fn contains(&self, text: &str) -> bool {
        let taken = self.taken.lock();
        taken.bytes.windows(text.len()).any(|bytes| bytes == text.as_bytes())
    }

    /// The values of `Authorization` that came with it.
    pub fn authorization_values(&self) -> Vec<String> {
        self.taken.lock().authorized.clone()
    }
}

async fn take(
    State(taken): State<Arc<Mutex<CollectorState>>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, Vec<u8>) {
    let Ok(sent) = ExportTraceServiceRequest::decode(body.clone()) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let mut taken = taken.lock();
    taken.bytes.extend_from_slice(&body);
    let authorized = headers.get("authorization").and_then(|value| value.to_str().ok());
    taken.authorized.extend(authorized.map(str::to_owned));
    for part in sent.resource_spans {
        let resource = part.resource.map(|resource| named(resource.attributes)).unwrap_or_default();
        for span in part.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            taken.spans.push(CollectedSpan {
                name: span.name,
                trace: span.trace_id,
                id: span.span_id,
                parent: span.parent_span_id,
                attributes: named(span.attributes),
                resource: resource.clone(),
                events: span.events.len(),
            });
        }
    }
    (StatusCode::OK, ExportTraceServiceResponse::default().encode_to_vec())
}

fn named(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Value| match value {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let value = |attribute: KeyValue| {
        (attribute.key, attribute.value.and_then(|any| any.value).map_or_else(String::new, text))
    };
    attributes.into_iter().map(value).collect()
}
