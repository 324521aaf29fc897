//! The API server of the cluster, as far as the driver asks it anything.

use std::path::PathBuf;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::blocking;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::Value;

/// The timeout of a request.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of the API server, and the credentials for it.
#[derive(Clone, Debug)]
pub struct ApiServerConfig {
    /// The URL of the API server.
    pub url: String,
    /// The file with the CA certificates of the API server (PEM).
    pub authority: PathBuf,
    /// The file with the token of the service account. It is read anew each time.
    pub token: PathBuf,
}

/// A client of the API server.
pub struct ApiServer {
    config: ApiServerConfig,
    client: reqwest::Client,
}

impl ApiServer {
    /// The client that `config` describes.
    ///
    /// # Errors
    /// [`Kind::Disk`] or [`Kind::Invalid`] where there are no certificates.
    pub fn new(config: ApiServerConfig) -> Result<Self> {
        let path = &config.authority;
        let of_no_use = |kind, e: Box<dyn std::error::Error + Send + Sync>| {
            Error::with(
                kind,
                format!("cannot use the CA certificates of the API server, {}", path.display()),
                e,
            )
        };
        let pem = std::fs::read(path).map_err(|e| of_no_use(Kind::Disk, e.into()))?;
        let invalid = |e: reqwest::Error| of_no_use(Kind::Invalid, e.into());
        let authorities = reqwest::Certificate::from_pem_bundle(&pem).map_err(invalid)?;
        let client =
            reqwest::Client::builder().tls_certs_only(authorities).timeout(API_SERVER_TIMEOUT).build();
        Ok(Self { client: client.map_err(invalid)?, config })
    }

    /// The object at `path`.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where there is none, [`Kind::Unavailable`] where it does not give it.
    pub async fn get(&self, path: &str) -> Result<Value> {
        self.send(self.client.get(self.url(path))).await
    }

    /// Sends `body`, of the media type `media_type`, to `path`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] where it does not take it.
    pub async fn write(&self, method: Method, path: &str, media_type: &str, body: &Value) -> Result<Value> {
        let request = self.client.request(method, self.url(path)).header("content-type", media_type);
        self.send(request.body(body.to_string())).await
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.config.url)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Value> {
        let failed = |e: reqwest::Error| {
            let is_missing = e.status() == Some(StatusCode::NOT_FOUND);
            let kind = if is_missing { Kind::NotFound } else { Kind::Unavailable };
            Error::with(kind, "the request to the API server failed", e)
        };
        let path = self.config.token.clone();
        let token = blocking(move || {
            std::fs::read_to_string(path)
                .map_err(|e| Error::disk("cannot read the token of the service account", e))
        });
        let token = token.await?;
        let answer =
            request.bearer_auth(token.trim()).send().await.and_then(|answer| answer.error_for_status());
        let body = answer.map_err(failed)?.bytes().await.map_err(failed)?;
        let unread = |e| Error::with(Kind::Unavailable, "the API server's response is not JSON", e);
        if body.is_empty() { Ok(Value::Null) } else { serde_json::from_slice(&body).map_err(unread) }
    }
}
