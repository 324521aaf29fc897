//! Access keys of AWS, and of services that speak its protocol.

use chrono::{DateTime, Utc};

use super::secret_json::{CredentialFormat, SecretJson};
use crate::error::Result;
use crate::source::access::S3Access;
use crate::source::secret::Secret;

const AWS_FORMAT: CredentialFormat = CredentialFormat {
    name: "the AWS credentials",
    expected: r#"{"aws_access_key_id": .., "aws_secret_access_key": .., "aws_region": ..}"#,
};
const R2_FORMAT: CredentialFormat = CredentialFormat {
    name: "the R2 credentials",
    expected: r#"{"aws_access_key_id": .., "aws_secret_access_key": ..}"#,
};
const CW_FORMAT: CredentialFormat = CredentialFormat { name: "the CoreWeave credentials", ..R2_FORMAT };

/// Reads a key of AWS, which has a region.
pub(super) fn read(text: &str) -> Result<S3Access> {
    let object = SecretJson::parse(text, AWS_FORMAT)?;
    object.required(&["aws_access_key_id"])?;
    object.required(&["aws_secret_access_key"])?;
    object.required(&["aws_region"])?;
    key(&object)
}

/// Reads a key for `r2://` or `cw://`, which need no region. Cloudflare's own names of the two parts are accepted as well.
pub(super) fn compatible(scheme: &str, text: &str) -> Result<S3Access> {
    key(&SecretJson::parse(text, if scheme == "r2" { R2_FORMAT } else { CW_FORMAT })?)
}

fn key(object: &SecretJson) -> Result<S3Access> {
    Ok(S3Access {
        access_key_id: Some(object.required(&["aws_access_key_id", "access_key_id"])?),
        secret_access_key: Some(Secret::new(
            object.required(&["aws_secret_access_key", "secret_access_key"])?,
        )),
        session_token: object.optional(&["aws_session_token", "session_token"])?.map(Secret::new),
        expires: object
            .optional(&["aws_expiration", "expiration"])?
            .map(|at| expiry(object, &at))
            .transpose()?,
        region: object.optional(&["aws_region", "region"])?,
        endpoint: object.optional(&["aws_endpoint", "endpoint"])?,
        anonymous: false,
    })
}

/// The expiry of a temporary key, as AWS writes it.
fn expiry(object: &SecretJson, at: &str) -> Result<DateTime<Utc>> {
    at.parse()
        .map_err(|_| object.invalid("are wrong: \"aws_expiration\" is not a time (2026-01-02T03:04:05Z)"))
}
