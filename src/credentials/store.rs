//! [`Keys`] as `object_store` wants them, for whoever has it make the requests.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use object_store::client::{
    ClientOptions, HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::gcp::GcpCredential;
use reqwest::StatusCode;
use reqwest::header::AUTHORIZATION;

use super::connector::wrapped;
use super::{Key, Keys, foreign};

/// Keys, shared with what requests are made by.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub Arc<Keys>);

impl Shared {
    async fn key(&self) -> object_store::Result<Key> {
        Ok(self.0.get().await.map_err(wrapped)?.key.clone())
    }
}

/// The keys of AWS and its like.
#[derive(Debug)]
pub(crate) struct Aws(pub Shared);
/// The keys of Azure.
#[derive(Debug)]
pub(crate) struct Azure(pub Shared);
/// The tokens of Google.
#[derive(Debug)]
pub(crate) struct Gcp(pub Shared);

#[async_trait]
impl CredentialProvider for Aws {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        match self.0.key().await? {
            Key::Aws(key) => Ok(key),
            _ => Err(wrapped(foreign())),
        }
    }
}

#[async_trait]
impl CredentialProvider for Azure {
    type Credential = AzureCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AzureCredential>> {
        match self.0.key().await? {
            Key::Azure(key) => Ok(key),
            _ => Err(wrapped(foreign())),
        }
    }
}

#[async_trait]
impl CredentialProvider for Gcp {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        match self.0.key().await? {
            Key::Bearer(token) => Ok(Arc::new(GcpCredential { bearer: token.expose().to_owned() })),
            // What writes asks for one all the same; `Watched` takes it off again.
            Key::Nobody => Ok(Arc::new(GcpCredential { bearer: String::new() })),
            _ => Err(wrapped(foreign())),
        }
    }
}

/// Watches for refusals: the request after one gets another key, if there is one.
impl HttpConnector for Shared {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Watched { client, keys: self.0.clone() }))
    }
}

#[derive(Debug)]
struct Watched {
    client: HttpClient,
    keys: Arc<Keys>,
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if request
            .headers()
            .get(AUTHORIZATION)
            .is_some_and(|value| value.as_bytes().trim_ascii() == b"Bearer")
        {
            request.headers_mut().remove(AUTHORIZATION);
        }
        let mut answer = self.client.execute(request).await?;
        if answer.status() == StatusCode::NOT_IMPLEMENTED {
            // `object_store` would take it for a passing failure, and try for minutes.
            *answer.status_mut() = StatusCode::BAD_REQUEST;
        }
        if matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
            && let Ok(issued) = self.keys.get().await
        {
            self.keys.doubt(&issued);
        }
        Ok(answer)
    }
}
