//! Credentials: what a secret is once its format has been read, for the scheme that it is meant for.
//!
//! Errors name the part of a secret that is at fault and never a value.

mod aws;
mod azure;
mod gcp;
mod object;
mod token;

use std::fmt;

use super::access::S3Access;
use super::secret::Secret;
use crate::error::{Error, Kind, Result};

pub use azure::Azure;
pub use gcp::{External, Gcp, Subject};

/// What an origin shows to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// None were named: the origin goes by what [`Access`](super::Access) has for its scheme, then by what its cloud's
    /// tools would find on this machine.
    Ambient,
    /// An access key of AWS, or of a service that speaks S3 (`s3://`, `r2://`, `cw://`).
    Aws(S3Access),
    /// A role of AWS (`s3://`); STS has to be asked for a key.
    AwsRole(AwsRole),
    /// For `gs://`.
    Gcp(Gcp),
    /// For `azure://`.
    Azure(Azure),
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

/// A role of AWS that is to be taken on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsRole {
    /// The role's ARN.
    pub arn: String,
    /// The region whose STS is asked.
    pub region: String,
    /// Whether the machine's web identity token is shown for it, and not its AWS credentials.
    pub web_identity: bool,
}

/// Gives an origin its credentials.
///
/// An origin asks when it is opened, and once more when the service answers 401 or 403: if what it gets then is no
/// other, they are refused for good; if it is, they were rotated and the request goes out again.
pub trait Provider: fmt::Debug + Send + Sync {
    /// Reads them where they are kept now. May wait for the local disk, never for the network.
    ///
    /// # Errors
    /// [`Kind::Refused`] where there are none by that name or they may not be read, [`Kind::Invalid`] for a format that
    /// is wrong; both name the secret and never a value.
    fn get(&self) -> Result<Credentials>;

    /// What they are, for messages: `the secret "hf_token"`. `None` where none were named.
    fn name(&self) -> Option<String>;
}

impl Credentials {
    /// Reads `secret` as credentials for sources of `scheme`. White space around it is dropped.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a wrong format, which says what a right one looks like; [`Kind::Unsupported`] for a scheme
    /// that takes none.
    pub fn parse(scheme: &str, secret: &Secret) -> Result<Self> {
        let text = secret.expose().trim();
        match scheme {
            "hf" => token::hub(text).map(Self::Bearer),
            "s3" => aws::read(text).map(Self::Aws),
            "r2" | "cw" => aws::compatible(scheme, text).map(Self::Aws),
            "gs" => gcp::read(text).map(Self::Gcp),
            "azure" => azure::read(text).map(Self::Azure),
            "https" | "http" => token::web(text),
            _ => Err(Error::new(Kind::Unsupported, format!("{scheme}:// takes no credentials"))),
        }
    }
}

#[cfg(test)]
mod tests;
