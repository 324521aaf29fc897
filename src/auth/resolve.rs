//! Resolves the key of a source: from what [`super::load`] finds, else from what was given for the scheme and from this
//! machine.

mod aws_keys;
mod azure_keys;
mod explicit;
mod google_tokens;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::key_cache::{IssuedKey, KeyCache, KeyIssuer};
use super::refresh::key_expiry::jwt_expiry;
use super::refresh::{FixedKey, KeyOrigin, KeyProvider, ResolvedKey};
use super::{AuthKey, load};
use crate::error::{Kind, Result};
use crate::http_client::HttpClient;
use crate::source::{Access, CredentialLoader, Credentials, Uri};
use crate::task::blocking;

/// The longest before its expiry that a key is renewed. One of a short life is renewed in the last tenth of it.
const MAX_RENEWAL_MARGIN: Duration = Duration::from_secs(300);
/// The interval at which a provider of `object_store`, which renews its tokens itself, is asked for the current one.
const STORE_PROVIDER_POLL_INTERVAL: Duration = Duration::from_secs(30);
/// The least time between two attempts to renew a key that has expired.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// Resolves the keys of one source.
struct CredentialResolver {
    uri: Uri,
    access: Access,
    client: HttpClient,
    loader: Arc<dyn CredentialLoader>,
    /// The credentials that were loaded last, and the provider that they resolved to.
    last: Mutex<Option<(Credentials, Arc<dyn KeyProvider>)>>,
}

impl std::fmt::Debug for CredentialResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CredentialResolver({:?})", self.loader.name())
    }
}

impl CredentialResolver {
    /// The resolver for `uri`; `client` asks token services.
    fn new(uri: &Uri, access: &Access, client: &HttpClient) -> Self {
        let loader = load::loader(uri, access);
        let (uri, access, client) = (uri.clone(), access.clone(), client.clone());
        Self { uri, access, client, loader, last: Mutex::default() }
    }

    /// The provider for the credentials as they are now, and whether it is the last one. After a refusal that is not used again.
    async fn provider(&self, refused: bool) -> Result<(Arc<dyn KeyProvider>, bool)> {
        let loader = self.loader.clone();
        let loaded = blocking(move || loader.load()).await?;
        if !refused && let Some(provider) = self.last_provider(&loaded) {
            return Ok((provider, true));
        }
        let provider = self.resolve(&loaded).await?;
        *self.last.lock() = Some((loaded, provider.clone()));
        Ok((provider, false))
    }

    /// The last provider, if it was for the same credentials.
    fn last_provider(&self, loaded: &Credentials) -> Option<Arc<dyn KeyProvider>> {
        let last = self.last.lock();
        last.as_ref().filter(|(known, _)| known == loaded).map(|(_, provider)| provider.clone())
    }

    async fn resolve(&self, loaded: &Credentials) -> Result<Arc<dyn KeyProvider>> {
        let (uri, access, client) = (&self.uri, &self.access, &self.client);
        if access.explicit_only {
            explicit::check(loaded, uri, access)?;
        }
        match loaded {
            Credentials::Aws(key) => aws_keys::access_key(key),
            Credentials::AwsRole(role) => aws_keys::named_role(role, access, client).await,
            Credentials::Gcp(gcp) => google_tokens::resolve(gcp, access, client).await,
            Credentials::Azure(azure) => azure_keys::resolve(azure, uri, access, client),
            Credentials::Bearer(token) => {
                Ok(FixedKey::provider(AuthKey::Bearer(token.clone()), jwt_expiry(token)))
            }
            Credentials::Basic { username, password } => {
                Ok(FixedKey::provider(AuthKey::Basic(username.clone(), password.clone()), None))
            }
            Credentials::Ambient => match uri {
                Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } => {
                    aws_keys::ambient(uri, access, client).await
                }
                Uri::Gs { .. } => google_tokens::ambient(access, client).await,
                Uri::Azure { .. } => azure_keys::ambient(uri, access, client).await,
                Uri::Hf { .. } => {
                    let token = access.hub.as_ref().and_then(|hub| hub.token.clone());
                    Ok(FixedKey::provider(token.map_or(AuthKey::Anonymous, AuthKey::Bearer), None))
                }
                Uri::Http(_) | Uri::File(_) | Uri::Bt(_) => Ok(FixedKey::provider(AuthKey::Anonymous, None)),
            },
        }
    }
}

impl KeyCache {
    /// Opens the cache for `uri` and gets its first key, so that missing credentials are reported at once. `client` asks
    /// token services.
    ///
    /// # Errors
    /// `Refused` for missing, malformed or wrong credentials, `Unavailable` and `Timeout` of a token service.
    pub(crate) async fn open(uri: &Uri, access: &Access, client: &HttpClient) -> Result<Self> {
        let keys = Self::lazy(uri, access, client);
        keys.get().await?;
        Ok(keys)
    }

    /// Makes a cache that gets its first key when it is needed.
    pub(crate) fn lazy(uri: &Uri, access: &Access, client: &HttpClient) -> Self {
        Self::with_issuer(Box::new(CredentialResolver::new(uri, access, client)))
    }
}

#[async_trait]
impl KeyIssuer for CredentialResolver {
    async fn issue(&self, refused: bool) -> Result<IssuedKey> {
        let (provider, is_last) = self.provider(refused).await?;
        let resolved = match provider.key().await {
            // What it shows the token service was read when it was resolved, and may have been replaced since.
            Err(error) if is_last && error.kind() == Kind::Refused => {
                self.provider(true).await?.0.key().await?
            }
            resolved => resolved?,
        };
        Ok(schedule_renewal(resolved, self.loader.name()))
    }
}

/// `resolved` with the times at which it is renewed and may be replaced.
fn schedule_renewal(resolved: ResolvedKey, name: Option<String>) -> IssuedKey {
    let ResolvedKey { key, expires_at, origin } = resolved;
    let (now, clock) = (Instant::now(), SystemTime::now());
    let before_expiry = expires_at.map(|end| {
        let left = end.duration_since(clock).unwrap_or_default();
        now + (left - MAX_RENEWAL_MARGIN.min(left / 10)).max(MIN_RENEWAL_INTERVAL)
    });
    let renew_at = match origin {
        KeyOrigin::StoreProvider => Some(now + STORE_PROVIDER_POLL_INTERVAL),
        KeyOrigin::Configured | KeyOrigin::Issued => before_expiry,
    };
    let issued_at = (origin != KeyOrigin::Configured).then_some(now);
    IssuedKey { key, name, expires_at, renew_at, issued_at }
}
