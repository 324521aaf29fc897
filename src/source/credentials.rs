//! Credentials: secrets whose format has been read, for the scheme that they are meant for.
//!
//! Errors name the part of a secret that is at fault and never a value.

mod access_key;
mod azure_secret;
mod bearer;
mod google_secret;
mod secret_json;

use std::fmt;

use super::access::S3Access;
use super::secret::Secret;
use crate::error::{Error, Kind, Result};

pub use azure_secret::AzureCredentials;
pub use google_secret::{ExternalAccount, GoogleCredentials, SubjectToken};

/// The credentials of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// None are named: those that [`Access`](super::Access) has for the scheme are used, then those that the cloud's own
    /// tools would find on this machine.
    Ambient,
    /// An access key of AWS, or of a service that speaks S3 (`s3://`, `r2://`, `cw://`).
    Aws(S3Access),
    /// A role of AWS (`s3://`); STS has to be asked for a key.
    AwsRole(AwsRole),
    /// For `gs://`.
    Gcp(GoogleCredentials),
    /// For `azure://`.
    Azure(AzureCredentials),
    /// A bearer token (`hf://`, `https://`).
    Bearer(Secret),
    /// A user name and password (`https://`). The name may be a token as well, so it isn't shown either.
    Basic {
        /// The user name.
        username: Secret,
        /// The password.
        password: Secret,
    },
}

/// A role of AWS that is to be assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsRole {
    /// The role's ARN.
    pub arn: String,
    /// The region whose STS is asked.
    pub region: String,
    /// The identity that assumes it.
    pub identity: RoleIdentity,
}

/// The identity that assumes a role of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleIdentity {
    /// The machine's web identity token.
    MachineToken,
    /// This web identity token, and nothing of the machine.
    GivenToken {
        /// The token.
        token: Secret,
        /// The URL of another token service than that of AWS.
        sts: Option<String>,
    },
    /// The AWS credentials of the machine.
    AccessKey,
}

/// Loads the credentials of a source.
///
/// They are loaded when an origin is opened, and again when the service answers 401 or 403: if they are still the same,
/// they are refused for good; if not, they were rotated and the request is sent again.
pub trait CredentialLoader: fmt::Debug + Send + Sync {
    /// Reads them where they are kept now. May block on the local disk, never on the network.
    ///
    /// # Errors
    /// [`Kind::Refused`] where there are none by that name or they may not be read, [`Kind::Invalid`] for a format that
    /// is wrong; both name the secret and never a value.
    fn load(&self) -> Result<Credentials>;

    /// The credentials' name in messages: `the secret "hf_token"`. `None` where none are named.
    fn name(&self) -> Option<String>;
}

impl Credentials {
    /// Reads `secret` as credentials for sources of `scheme`. White space around it is ignored.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a wrong format, which says what a right one looks like; [`Kind::Unsupported`] for a scheme
    /// that takes none.
    pub fn parse(scheme: &str, secret: &Secret) -> Result<Self> {
        let text = secret.expose().trim();
        match scheme {
            "hf" => bearer::hub(text).map(Self::Bearer),
            "s3" => access_key::read(text).map(Self::Aws),
            "r2" | "cw" => access_key::compatible(scheme, text).map(Self::Aws),
            "gs" => google_secret::read(text).map(Self::Gcp),
            "azure" => azure_secret::read(text).map(Self::Azure),
            "https" | "http" => bearer::web(text),
            _ => Err(Error::new(Kind::Unsupported, format!("{scheme}:// takes no credentials"))),
        }
    }
}

#[cfg(test)]
mod tests;
