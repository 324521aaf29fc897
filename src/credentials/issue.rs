//! Getting a key: out of what [`crate::secrets`] finds, or else of what was given for the scheme and of the machine.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::{Issued, Issuer, Key, MARGIN, aws, azure, google};
use crate::client::Client;
use crate::error::Result;
use crate::secrets;
use crate::source::{Access, Credentials, Provider, Secret, Uri};
use crate::task::blocking;

/// How often a service that keeps its own tokens fresh is asked for the one that it has now.
const GLANCE: Duration = Duration::from_secs(30);
/// The least time between two looks for a key that has expired.
const LEAST: Duration = Duration::from_secs(1);

/// A key, as it was got.
#[derive(Clone, Debug)]
pub(super) struct Got {
    pub key: Key,
    /// Until when it is good, where that is known.
    pub expiry: Option<SystemTime>,
    /// How it was come by.
    pub how: How,
}

/// How a key was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It was there.
    Found,
    /// By asking a service for it.
    Asked,
    /// From one of `object_store`'s providers, which keeps it until shortly before it expires.
    Kept,
}

impl Got {
    /// A key that was there, and stays until it is refused.
    pub(super) fn found(key: Key, expiry: Option<SystemTime>) -> Self {
        Self { key, expiry, how: How::Found }
    }

    fn issued(self, name: Option<String>) -> Issued {
        let (now, clock) = (Instant::now(), SystemTime::now());
        let by_expiry = self.expiry.map(|end| {
            let left = end.duration_since(clock).unwrap_or_default();
            now + (left - MARGIN.min(left / 10)).max(LEAST)
        });
        let renew = if self.how == How::Kept { Some(now + GLANCE) } else { by_expiry };
        let asked = (self.how != How::Found).then_some(now);
        Issued { key: self.key, name, expiry: self.expiry, renew, asked }
    }
}

/// Where a key comes from, once that is known.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// Gets it.
    async fn key(&self) -> Result<Got>;
}

/// A key that was there.
pub(super) struct Found(pub Got);

#[async_trait]
impl Source for Found {
    async fn key(&self) -> Result<Got> {
        Ok(self.0.clone())
    }
}

/// Gets the keys of one source.
pub(super) struct Desk {
    uri: Uri,
    access: Access,
    client: Client,
    provider: Arc<dyn Provider>,
    /// What was found the last time, and where it led.
    last: Mutex<Option<(Credentials, Arc<dyn Source>)>>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Desk({:?})", self.provider.name())
    }
}

impl Desk {
    pub(super) fn new(uri: &Uri, access: &Access, client: &Client) -> Self {
        let provider = secrets::provider(uri, access);
        let (uri, access, client) = (uri.clone(), access.clone(), client.clone());
        Self { uri, access, client, provider, last: Mutex::default() }
    }

    /// Where keys come from as things are now. After a refusal nothing that is remembered counts.
    async fn source(&self, refused: bool) -> Result<Arc<dyn Source>> {
        let provider = self.provider.clone();
        let found = blocking(move || provider.get()).await?;
        if !refused && let Some(source) = self.known(&found) {
            return Ok(source);
        }
        let source = self.open(&found).await?;
        *self.last.lock() = Some((found, source.clone()));
        Ok(source)
    }

    /// Where `found` led the last time.
    fn known(&self, found: &Credentials) -> Option<Arc<dyn Source>> {
        let last = self.last.lock();
        last.as_ref().filter(|(known, _)| known == found).map(|(_, source)| source.clone())
    }

    async fn open(&self, found: &Credentials) -> Result<Arc<dyn Source>> {
        let (uri, access, client) = (&self.uri, &self.access, &self.client);
        let fixed = |key, expiry| Ok(Arc::new(Found(Got::found(key, expiry))) as Arc<dyn Source>);
        match found {
            Credentials::Aws(key) => aws::given(key),
            Credentials::AwsRole(role) => aws::role(role, access, client).await,
            Credentials::Gcp(gcp) => google::open(gcp, access, client).await,
            Credentials::Azure(given) => azure::open(given, uri, access, client),
            Credentials::Bearer(token) => fixed(Key::Bearer(token.clone()), told(token)),
            Credentials::Basic { username, password } => {
                fixed(Key::Basic(username.clone(), password.clone()), None)
            }
            Credentials::Ambient => match uri {
                Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } => aws::ambient(uri, access, client).await,
                Uri::Gs { .. } => google::ambient(access, client).await,
                Uri::Azure { .. } => azure::ambient(uri, access, client).await,
                Uri::Hf { .. } => {
                    let token = access.hub.as_ref().and_then(|hub| hub.token.clone());
                    fixed(token.map_or(Key::Nobody, Key::Bearer), None)
                }
                Uri::Http(_) | Uri::File(_) => fixed(Key::Nobody, None),
            },
        }
    }
}

#[async_trait]
impl Issuer for Desk {
    async fn issue(&self, refused: bool) -> Result<Issued> {
        let name = self.provider.name();
        let got = async { self.source(refused).await?.key().await }.await?;
        Ok(got.issued(name))
    }
}

/// Until when a token is good that says so itself: one in three parts, a JWT (RFC 7519, section 4.1.4).
pub(super) fn told(token: &Secret) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let mut parts = token.expose().trim().split('.');
    let (claims, _) = (parts.nth(1)?, parts.next()?);
    let claims: Claims = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_tell_its_end() {
        let epoch = SystemTime::UNIX_EPOCH;
        let end = |text: &str| told(&Secret::new(text))?.duration_since(epoch).ok();
        let claims = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub": "x", "exp": 1767323045}"#);
        assert_eq!(end(&format!("e30.{claims}.c2ln\n")), Some(Duration::from_secs(1_767_323_045)));
        let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"sub": "x"}"#);
        for text in ["hf_token", "a.b.c", &format!("e30.{none}.c2ln"), &format!("e30.{claims}")] {
            assert_eq!(end(text), None, "{text}");
        }
    }
}
