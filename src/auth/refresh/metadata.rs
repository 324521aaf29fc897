//! The metadata service of a cloud, which gives credentials to the machines in it.

use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::{Method, Request, StatusCode};
use url::Url;

use crate::error::Kind;
use crate::http_client::HttpClient;

/// The URL of the metadata service, at AWS, Google and Azure alike.
pub(in crate::auth) const METADATA_URL: &str = "http://169.254.169.254";
/// The time in which the metadata service must answer. It is on the same host; where there is none, packets to it may vanish.
const METADATA_TIMEOUT: Duration = Duration::from_secs(1);

/// Checks that there is a metadata service at `address`; the error says why not.
pub(in crate::auth) async fn probe(client: &HttpClient, address: &str) -> Result<(), String> {
    let url = Url::parse(address).map_err(|_| format!("{address} is not a URL"))?;
    let mut request = Request::new(Method::GET, url);
    *request.timeout_mut() = Some(METADATA_TIMEOUT);
    // Google's server requires it; the others ignore it.
    request.headers_mut().insert("metadata-flavor", HeaderValue::from_static("Google"));
    match client.execute(request).await {
        // AWS's would be 401 without a token, Azure's 400: a firewall forbids it.
        Ok(answer) if answer.status() == StatusCode::FORBIDDEN => Err(format!("{address} is forbidden")),
        Ok(_) => Ok(()),
        Err(error) if error.kind() != Kind::Timeout => Err(format!("{address}: {error}")),
        Err(_) => Err(format!("{address} did not respond within {} s", METADATA_TIMEOUT.as_secs())),
    }
}
