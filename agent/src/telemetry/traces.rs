//! Traces: the way of each request that had to wait, from the kernel to the tier that was asked, sent to a collector that
//! speaks OTLP over HTTP.
//!
//! Nothing of this exists where no collector is named. Where one is, ended spans go into a queue that drops what it
//! has no room for, and a thread of its own sends them: no request ever waits for a collector. Only the engine's and
//! the file system's own spans are sent, and no events, for those may hold what other services wrote.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bdnfs::error::{Error, Kind, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracer, SdkTracerProvider, SpanData};
use reqwest::{Body, Url};
use tokio::runtime::{Builder, Runtime};
use tracing::{Level, Metadata};

use crate::context::Context;
use crate::text;

/// The path of traces below a collector's URL.
const TRACES_PATH: &str = "v1/traces";
/// The time in which a collector must answer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of an answer, in bytes: a status and a sentence, which need a hundredth of it.
const MAX_COLLECTOR_ANSWER_BYTES: usize = 64 << 10;
/// The time that the last spans may take to be sent when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// The environment's names for where traces go: exactly there, or below there.
const ENDPOINT_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The environment's name for what this program is called.
const SERVICE_VARIABLE: &str = "OTEL_SERVICE_NAME";

/// The URL of an OTLP collector for traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(Url);

impl fmt::Display for OtlpEndpoint {
    /// Writes the URL without its query, which may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().split('?').next().unwrap_or_default())
    }
}

impl OtlpEndpoint {
    /// The collector at a URL, such as `http://collector:4318`.
    pub fn at(url: &str) -> Result<Self> {
        let mut url = parse(url)?;
        let path = format!("{}/{TRACES_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        Ok(Self(url))
    }

    /// The collector that the environment variables of OpenTelemetry name, if any.
    pub fn from_environment() -> Result<Option<Self>> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let [exact, base] = ENDPOINT_VARIABLES;
        let named = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(url) = named(exact) {
            return parse(&url).map(|url| Some(Self(url))).map_err(|e| e.context(exact));
        }
        named(base).map(|url| Self::at(&url).map_err(|e| e.context(base))).transpose()
    }
}

fn parse(text: &str) -> Result<Url> {
    let invalid = |text: &str| Err(Error::new(Kind::Invalid, text));
    let Ok(url) = Url::parse(text) else {
        return invalid("a collector is named by a URL such as http://collector:4318");
    };
    if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
        return invalid("traces are sent over http:// or https://, such as http://collector:4318");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return invalid(
            "a collector's URL must not contain a user name or password; set headers with OTEL_EXPORTER_OTLP_HEADERS",
        );
    }
    Ok(url)
}

/// Guards the export of traces. Dropping it sends what is left, for which there is a moment.
#[derive(Debug)]
pub struct TraceGuard(SdkTracerProvider);

impl Drop for TraceGuard {
    fn drop(&mut self) {
        // A collector that is not reached now was reported before.
        let _ = self.0.shutdown_with_timeout(FLUSH_TIMEOUT);
    }
}

/// Starts to send the spans of the returned tracer to `collector`.
pub fn start(collector: &OtlpEndpoint) -> Result<(TraceGuard, SdkTracer)> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(HttpSender::new()?)
        .with_endpoint(collector.0.as_str())
        // A retry would delay newer spans, which are worth as much.
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .map_err(|e| Error::with(Kind::Invalid, "cannot send traces", e))?;
    let exporter = ReportingExporter { exporter, to: collector.clone(), lost: AtomicBool::new(false) };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let mut resource = Resource::builder().with_attribute(version);
    if std::env::var_os(SERVICE_VARIABLE).is_none() {
        resource = resource.with_service_name("bdnfs");
    }
    let provider = SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).build())
        .with_resource(resource.build())
        .build();
    let tracer = provider.tracer("bdnfs");
    Ok((TraceGuard(provider), tracer))
}

/// Whether what `metadata` describes is sent.
pub fn is_sent(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("bdnfs") && *metadata.level() <= Level::DEBUG
}

/// Sends spans, and logs once when they can't be sent, and when they can be again.
#[derive(Debug)]
struct ReportingExporter {
    exporter: SpanExporter,
    to: OtlpEndpoint,
    lost: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for ReportingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        let was_lost = self.lost.swap(sent.is_err(), Relaxed);
        match &sent {
            Err(error) if !was_lost => {
                tracing::warn!(
                    "traces cannot be sent to {}, and are dropped until they can be: {error}",
                    self.to
                );
            }
            Ok(()) if was_lost => tracing::info!("traces are sent to {} again", self.to),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends requests, each on the thread that waits for its answer: one that sends spans and does nothing else.
#[derive(Debug)]
struct HttpSender {
    http: reqwest::Client,
    runtime: Runtime,
}

impl HttpSender {
    fn new() -> Result<Self> {
        let runtime =
            Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
        let http = reqwest::Client::builder()
            .user_agent(concat!("bdnfs/", env!("CARGO_PKG_VERSION")))
            .timeout(EXPORT_TIMEOUT)
            // Nothing reads a connection between two requests.
            .pool_max_idle_per_host(0)
            .no_proxy();
        let http =
            http.build().map_err(|e| Error::with(Kind::Unsupported, "cannot make an HTTP client", e))?;
        Ok(Self { http, runtime })
    }

    async fn send(&self, request: Request<Bytes>) -> reqwest::Result<Response<Body>> {
        Ok(self.http.execute(request.try_into()?).await?.into())
    }
}

#[async_trait]
impl HttpClient for HttpSender {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        self.runtime.block_on(async {
            let sent = self.send(request).await;
            let answer = sent.map_err(|error| text::line(&error.without_url()))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_COLLECTOR_ANSWER_BYTES).collect().await;
            // Its message may name the URL, which may be secret.
            let body = body.map_err(|_| "the response broke off, or is too long")?;
            Ok(Response::from_parts(head, body.to_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn otlp_endpoint_is_read_from_a_url_or_the_environment() {
        let at = |url: &str| OtlpEndpoint::at(url).map(|OtlpEndpoint(url)| url.to_string());
        assert_eq!(at("http://collector:4318").expect("a URL"), "http://collector:4318/v1/traces");
        assert_eq!(at("https://host/otlp/").expect("a URL"), "https://host/otlp/v1/traces");
        for (url, told) in [
            ("collector:4318", "http://"),
            ("http://me:secret@host", "a user name or password"),
            ("", "a URL"),
        ] {
            let error = at(url).expect_err(url).to_string();
            assert!(error.contains(told) && !error.contains("me:secret"), "{error}");
        }
        let from_environment = |pairs: &'static [(&str, &str)]| {
            let find =
                |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            OtlpEndpoint::from_variables(find).map(|found| found.map(|OtlpEndpoint(url)| url.to_string()))
        };
        assert_eq!(from_environment(&[(ENDPOINT_VARIABLES[1], "")]).expect("nothing"), None);
        let both = from_environment(&[
            (ENDPOINT_VARIABLES[1], "http://a"),
            (ENDPOINT_VARIABLES[0], "http://b/exact"),
        ]);
        assert_eq!(both.expect("a URL").as_deref(), Some("http://b/exact"));
        assert!(
            from_environment(&[(ENDPOINT_VARIABLES[1], "a")])
                .expect_err("no URL")
                .to_string()
                .starts_with(ENDPOINT_VARIABLES[1])
        );
    }
}
