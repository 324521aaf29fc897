//! The keys of a source for the `object_store` crate, which makes the requests of a mirror.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use object_store::gcp::GcpCredential;

use super::store_adapter::store_error;
use super::{AuthKey, KeyCache, wrong_service};

/// Provides the keys of a [`KeyCache`] to an `object_store` whose credentials are a `C`.
pub(crate) struct StoreKeys<C> {
    keys: Arc<KeyCache>,
    convert: fn(&AuthKey) -> Option<Arc<C>>,
}

impl<C> fmt::Debug for StoreKeys<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKeys")
    }
}

impl StoreKeys<AwsCredential> {
    /// The keys of AWS, and of services that speak S3.
    pub(crate) fn aws(keys: &Arc<KeyCache>) -> Arc<Self> {
        let convert = |key: &AuthKey| match key {
            AuthKey::Aws(key) => Some(key.clone()),
            _ => None,
        };
        Arc::new(Self { keys: keys.clone(), convert })
    }
}

impl StoreKeys<AzureCredential> {
    /// The keys of Azure.
    pub(crate) fn azure(keys: &Arc<KeyCache>) -> Arc<Self> {
        let convert = |key: &AuthKey| match key {
            AuthKey::Azure(key) => Some(key.clone()),
            _ => None,
        };
        Arc::new(Self { keys: keys.clone(), convert })
    }
}

impl StoreKeys<GcpCredential> {
    /// The tokens of Google.
    pub(crate) fn google(keys: &Arc<KeyCache>) -> Arc<Self> {
        let convert = |key: &AuthKey| match key {
            AuthKey::Bearer(token) => Some(Arc::new(GcpCredential { bearer: token.expose().to_owned() })),
            // `object_store` wants a token for writes even where none is needed; `StoreHttp` removes the empty one.
            AuthKey::Anonymous => Some(Arc::new(GcpCredential { bearer: String::new() })),
            _ => None,
        };
        Arc::new(Self { keys: keys.clone(), convert })
    }
}

#[async_trait]
impl<C: fmt::Debug + Send + Sync + 'static> CredentialProvider for StoreKeys<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        let issued = self.keys.get().await.map_err(store_error)?;
        (self.convert)(&issued.key).ok_or_else(|| store_error(wrong_service()))
    }
}
