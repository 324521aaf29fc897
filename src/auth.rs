//! Credentials: from what a configuration names to the key that a request is authorised with.
//!
//! ```text
//!  Access ──> load ──────────────> resolve ────────────> refresh ─────────────> KeyCache ──> requests
//!             secrets by name,     which KeyProvider     STS, OIDC, metadata,   one key for all requests,
//!             files, AWS profiles  serves this source    expiry                 renewed before its end
//! ```
//!
//! [`load`] reads secrets where they are kept now, so that a rotated one is found without opening its source again.
//! `resolve` decides where the key of a source comes from: the secret itself, a token service, or this machine. `refresh`
//! asks those services. A `KeyCache` holds the key of one source: however many requests need a new one, it is asked for
//! once. What a configuration may say of all this is in [`crate::source`].

mod azure_signature;
pub(crate) mod key_cache;
pub mod load;
mod refresh;
mod resolve;
pub(crate) mod store_adapter;
pub(crate) mod store_connector;
pub(crate) mod store_keys;

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use object_store::aws::AwsCredential;
use object_store::azure::AzureCredential;
use reqwest::header::HeaderValue;

pub(crate) use self::key_cache::{IssuedKey, KeyCache};
use crate::error::{Error, Kind, Result};
use crate::source::Secret;

/// The credentials of a request.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum AuthKey {
    /// Nothing: the request is anonymous.
    Anonymous,
    /// An access key that requests are signed with (AWS signature version 4).
    Aws(Arc<AwsCredential>),
    /// An account key, a SAS or a token of Azure.
    Azure(Arc<AzureCredential>),
    /// A bearer token.
    Bearer(Secret),
    /// A user name and a password.
    Basic(Secret, Secret),
}

impl fmt::Debug for AuthKey {
    /// Writes the kind of key, never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Aws(_) => "Aws(***)",
            Self::Azure(_) => "Azure(***)",
            Self::Bearer(_) => "Bearer(***)",
            Self::Basic(..) => "Basic(***)",
        })
    }
}

impl AuthKey {
    /// The key of an AWS credential.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for characters that no request can be signed with.
    fn aws(credential: AwsCredential) -> Result<Self> {
        let AwsCredential { key_id, secret_key, token } = &credential;
        let plain = |text: &String| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        if ![Some(key_id), Some(secret_key), token.as_ref()].into_iter().flatten().all(plain) {
            let text = "the access key contains characters other than letters, digits and signs, perhaps a space or a \
                        second line";
            return Err(Error::new(Kind::Invalid, text));
        }
        Ok(Self::Aws(Arc::new(credential)))
    }

    /// The value of the `Authorization` header; `None` for an anonymous request.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for characters that no header may contain, and for a key that requests are signed with.
    pub(crate) fn authorization(&self) -> Result<Option<HeaderValue>> {
        let text = match self {
            Self::Anonymous => return Ok(None),
            Self::Bearer(token) => format!("Bearer {}", token.expose()),
            Self::Basic(user, password) => {
                let pair = format!("{}:{}", user.expose(), password.expose());
                format!("Basic {}", BASE64_STANDARD.encode(pair))
            }
            Self::Aws(_) | Self::Azure(_) => return Err(wrong_service()),
        };
        let invalid =
            |_| Error::new(Kind::Invalid, "the token contains characters that no HTTP header may contain");
        let mut value = HeaderValue::from_str(&text).map_err(invalid)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The error for credentials that the source's service does not take.
pub(crate) fn wrong_service() -> Error {
    Error::new(Kind::Invalid, "the credentials are for another service")
}
