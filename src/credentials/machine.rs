//! The metadata service of a cloud, which tells a machine who it is.

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Method, Request, StatusCode};
use url::Url;

use crate::client::Client;

/// Where it is, at AWS, Google and Azure alike.
pub(super) const METADATA: &str = "http://169.254.169.254";
/// How long it may take to answer. It is next door; where there is none, packets to it may vanish.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether there is a metadata service at `address`; else why not.
pub(super) async fn probe(client: &Client, address: &str) -> Result<(), String> {
    let url = Url::parse(address).map_err(|_| format!("{address} is no URL"))?;
    let mut request = Request::new(Method::GET, url);
    *request.timeout_mut() = Some(PATIENCE);
    // Google's answers nobody without; the others don't mind.
    request.headers_mut().insert("metadata-flavor", HeaderValue::from_static("Google"));
    match client.execute(request).await {
        // Not AWS's (401 without a token), not Azure's (400): something on the way forbids it.
        Ok(answer) if answer.status() == StatusCode::FORBIDDEN => Err(format!("{address} is forbidden")),
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{address} gave no answer within {} s", PATIENCE.as_secs())),
    }
}
