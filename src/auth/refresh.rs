//! Getting a key from the service that issues it: AWS's STS ([`sts`]), Google ([`oidc`]), Entra ID ([`entra_tokens`]), the
//! metadata service of a machine ([`metadata`]); and when a key expires ([`key_expiry`]).

pub(super) mod entra_tokens;
pub(super) mod key_expiry;
pub(super) mod metadata;
pub(super) mod oidc;
pub(super) mod sts;
mod subject_token;
mod token_request;

use std::time::SystemTime;

use async_trait::async_trait;
use object_store::CredentialProvider;
use std::sync::Arc;

use super::AuthKey;
use super::store_adapter::engine_error;
use crate::error::{Error, Kind, Result};

/// The largest response of a token service that is read, in bytes. A token has a few thousand.
const MAX_TOKEN_RESPONSE_BYTES: usize = 1 << 20;

/// A key, its expiry and where it came from.
#[derive(Clone, Debug)]
pub(super) struct ResolvedKey {
    pub key: AuthKey,
    /// The end of its validity, where that is known.
    pub expires_at: Option<SystemTime>,
    pub origin: KeyOrigin,
}

/// The origin of a key, which decides when it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOrigin {
    /// A configured key, which stays until it expires or is refused.
    Configured,
    /// A token service issued it.
    Issued,
    /// A provider of `object_store` holds it and renews it shortly before it expires.
    StoreProvider,
}

impl ResolvedKey {
    /// A key that was configured.
    pub(super) fn configured(key: AuthKey, expires_at: Option<SystemTime>) -> Self {
        Self { key, expires_at, origin: KeyOrigin::Configured }
    }

    /// A key that a token service issued.
    pub(super) fn issued(key: AuthKey, expires_at: Option<SystemTime>) -> Self {
        Self { key, expires_at, origin: KeyOrigin::Issued }
    }
}

/// The provider of a source's key, as it was resolved.
#[async_trait]
pub(super) trait KeyProvider: Send + Sync {
    /// Gets the current key.
    async fn key(&self) -> Result<ResolvedKey>;
}

/// Provides a key that was configured.
pub(super) struct FixedKey(pub ResolvedKey);

impl FixedKey {
    /// The provider of `key`, which is valid until `expires_at`, where that is known.
    pub(super) fn provider(key: AuthKey, expires_at: Option<SystemTime>) -> Arc<dyn KeyProvider> {
        Arc::new(Self(ResolvedKey::configured(key, expires_at)))
    }
}

#[async_trait]
impl KeyProvider for FixedKey {
    async fn key(&self) -> Result<ResolvedKey> {
        Ok(self.0.clone())
    }
}

/// Provides the keys that a provider of `object_store` gets and holds.
pub(super) struct StoreProvider<C> {
    pub provider: Arc<dyn CredentialProvider<Credential = C>>,
    pub into_key: fn(Arc<C>) -> AuthKey,
    pub expires_at: Option<SystemTime>,
    pub origin: KeyOrigin,
}

#[async_trait]
impl<C: std::fmt::Debug + Send + Sync + 'static> KeyProvider for StoreProvider<C> {
    async fn key(&self) -> Result<ResolvedKey> {
        let failed = |error| {
            let error = as_refusal(engine_error(error));
            Error::new(error.kind(), format!("cannot get the credentials: {error}"))
        };
        let credential = self.provider.get_credential().await.map_err(failed)?;
        Ok(ResolvedKey { key: (self.into_key)(credential), expires_at: self.expires_at, origin: self.origin })
    }
}

/// Makes any failure of a token service a refusal, whatever its status, but for a passing one.
fn as_refusal(error: Error) -> Error {
    match error.kind() {
        Kind::Unavailable | Kind::Timeout | Kind::Refused => error,
        _ => Error::new(Kind::Refused, error.to_string()),
    }
}
