//! Traces: the way of each request that had to wait, from the kernel to the tier that was asked, sent to a collector that
//! speaks OTLP over HTTP.
//!
//! Nothing of this exists where no collector is named. Where one is, ended spans go into a queue that drops what it has no
//! room for, and a thread of its own sends them: no request ever waits for a collector. Only the engine's and the file
//! system's own spans are sent, and no events, for those may hold what somebody else wrote.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
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

use crate::text;

/// Where traces are taken, below a collector's URL.
const PATH: &str = "v1/traces";
/// How long a collector may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer may be, in bytes: a status and a sentence, which need a hundredth of it.
const ANSWER: usize = 64 << 10;
/// How long the last spans may take to be sent when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The environment's names for where traces go: exactly there, or below there.
const AMBIENT: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
/// The environment's name for what this program is called.
const SERVICE: &str = "OTEL_SERVICE_NAME";

/// Who takes traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector(Url);

impl Collector {
    /// The collector at a URL, such as `http://collector:4318`.
    pub fn at(url: &str) -> Result<Self> {
        let mut url = parse(url)?;
        let path = format!("{}/{PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
        Ok(Self(url))
    }

    /// The one that the environment names, as is usual for all that speaks OTLP.
    pub fn ambient() -> Result<Option<Self>> {
        Self::named(|name| std::env::var(name).ok())
    }

    fn named(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let [exact, base] = AMBIENT;
        let named = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(url) = named(exact) {
            return parse(&url).with_context(|| exact.to_owned()).map(|url| Some(Self(url)));
        }
        named(base).map(|url| Self::at(&url).with_context(|| base.to_owned())).transpose()
    }
}

fn parse(text: &str) -> Result<Url> {
    let Ok(url) = Url::parse(text) else {
        bail!("a collector is named by a URL such as http://collector:4318")
    };
    if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
        bail!("traces are sent over http:// or https://, such as http://collector:4318");
    }
    if !url.username().is_empty() || url.password().is_some() {
        bail!(
            "a collector's URL holds no password; what it wants to hear stands in OTEL_EXPORTER_OTLP_HEADERS"
        );
    }
    Ok(url)
}

/// Traces that are being sent. Dropping it sends what is left, for which there is a moment.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

impl Drop for Traces {
    fn drop(&mut self) {
        // Whoever was not reached then was told of before.
        let _ = self.0.shutdown_with_timeout(LAST_WORDS);
    }
}

/// Begins to send what the answer's second part traces to `collector`.
pub fn start(collector: &Collector) -> Result<(Traces, SdkTracer)> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Client::new()?)
        .with_endpoint(collector.0.as_str())
        // What comes later is worth as much as what is there.
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .context("cannot send traces")?;
    let exporter = Telling { exporter, to: collector.clone(), lost: AtomicBool::new(false) };
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let mut resource = Resource::builder().with_attribute(version);
    if std::env::var_os(SERVICE).is_none() {
        resource = resource.with_service_name("bdnfs");
    }
    let provider = SdkTracerProvider::builder()
        .with_span_processor(BatchSpanProcessor::builder(exporter).build())
        .with_resource(resource.build())
        .build();
    let tracer = provider.tracer("bdnfs");
    Ok((Traces(provider), tracer))
}

/// Whether what `metadata` describes is sent.
pub fn is_sent(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("bdnfs") && *metadata.level() <= Level::DEBUG
}

/// Sends spans, and tells once when they can't be sent, and when they can be again.
#[derive(Debug)]
struct Telling {
    exporter: SpanExporter,
    to: Collector,
    lost: AtomicBool,
}

impl opentelemetry_sdk::trace::SpanExporter for Telling {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let sent = self.exporter.export(batch).await;
        let was_lost = self.lost.swap(sent.is_err(), Relaxed);
        match &sent {
            Err(error) if !was_lost => {
                tracing::warn!(
                    "traces can't be sent to {}, and are dropped until they can be: {error}",
                    self.to.0
                );
            }
            Ok(()) if was_lost => tracing::info!("traces are sent to {} again", self.to.0),
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
struct Client {
    http: reqwest::Client,
    runtime: Runtime,
}

impl Client {
    fn new() -> Result<Self> {
        let runtime =
            Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
        let http = reqwest::Client::builder()
            .user_agent(concat!("bdnfs/", env!("CARGO_PKG_VERSION")))
            .timeout(TIMEOUT)
            // Nobody looks after a connection between two requests.
            .pool_max_idle_per_host(0)
            .no_proxy();
        Ok(Self { http: http.build().context("cannot set up an HTTP client")?, runtime })
    }

    async fn send(&self, request: Request<Bytes>) -> reqwest::Result<Response<Body>> {
        Ok(self.http.execute(request.try_into()?).await?.into())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.runtime.block_on(async {
            let sent = self.send(request).await;
            let answer = sent.map_err(|error| text::line(&error.without_url()))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER).collect().await;
            // Its own words may name the URL, which is nobody else's business.
            let body = body.map_err(|_| "the answer broke off, or is too long")?;
            Ok(Response::from_parts(head, body.to_bytes()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_found_where_it_is_named() {
        let at = |url: &str| Collector::at(url).map(|Collector(url)| url.to_string());
        assert_eq!(at("http://collector:4318").expect("a URL"), "http://collector:4318/v1/traces");
        assert_eq!(at("https://host/otlp/").expect("a URL"), "https://host/otlp/v1/traces");
        for (url, told) in
            [("collector:4318", "http://"), ("http://me:secret@host", "no password"), ("", "a URL")]
        {
            let error = text::line(at(url).expect_err(url).as_ref());
            assert!(error.contains(told) && !error.contains("me:secret"), "{error}");
        }
        let ambient = |pairs: &'static [(&str, &str)]| {
            let find =
                |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Collector::named(find).map(|found| found.map(|Collector(url)| url.to_string()))
        };
        assert_eq!(ambient(&[(AMBIENT[1], "")]).expect("nothing"), None);
        let both = ambient(&[(AMBIENT[1], "http://a"), (AMBIENT[0], "http://b/exact")]);
        assert_eq!(both.expect("a URL").as_deref(), Some("http://b/exact"));
        assert!(
            text::line(ambient(&[(AMBIENT[1], "a")]).expect_err("no URL").as_ref()).starts_with(AMBIENT[1])
        );
    }
}
