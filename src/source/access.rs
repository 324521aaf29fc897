//! What origins are opened with: credentials and options. They travel from the command line to the process that
//! serves the mount, and nowhere else.

use serde::{Deserialize, Serialize};

use super::auth::Auth;
use super::cloud::{AwsMachine, AzureAccess, GcsAccess};
use super::credentials::aws;
use super::secret::{Secret, SecretStore};
use crate::error::Result;

/// Credentials and options that origins are opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// For `s3://`.
    pub s3: Option<S3Access>,
    /// For `hf://`.
    pub hub: Option<HubAccess>,
    /// Whether plain `http://` is taken from hosts other than this machine.
    pub allow_http: bool,
    /// For `r2://`.
    pub r2: Option<S3Access>,
    /// For `cw://`.
    pub cw: Option<S3Access>,
    /// For `gs://`.
    pub gcs: Option<GcsAccess>,
    /// For `azure://`.
    pub azure: Option<AzureAccess>,
    /// What this machine has for `s3://` where no key is given.
    pub aws: Option<AwsMachine>,
    /// Whether buckets are named by host (`true`) or by path, where it is not as the service has it.
    pub virtual_host: Option<bool>,
    /// Whether whoever asks pays: buckets of `s3://` that are not read otherwise.
    pub requester_pays: bool,
    /// Certificates (PEM) of authorities that are trusted beside those of this machine.
    pub authorities: Option<String>,
    /// Whether keys that can't be paths are escaped instead of refused
    /// ([`Listing::escape`](crate::manifest::Listing::escape)).
    pub escape: bool,
    /// How the source is authorised; `None` goes by what the machine has of its own.
    pub auth: Option<Auth>,
    /// Where the secret that `auth` names is looked for, in this order, each time anew.
    pub secrets: Vec<SecretStore>,
}

/// How an S3 service is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct S3Access {
    /// The access key's id; no secret.
    pub access_key_id: Option<String>,
    /// The access key.
    pub secret_access_key: Option<Secret>,
    /// The token of a temporary access key.
    pub session_token: Option<Secret>,
    /// The region, `us-east-1`.
    pub region: Option<String>,
    /// The service's URL, where it is not AWS.
    pub endpoint: Option<String>,
    /// Whether requests are not signed at all: public buckets.
    pub anonymous: bool,
}

/// How the Hugging Face Hub is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HubAccess {
    /// Its URL, where it is not `https://huggingface.co`.
    pub endpoint: Option<String>,
    /// The token of an account, for what is private or gated.
    pub token: Option<Secret>,
}

impl S3Access {
    /// Reads credentials as they are kept in one JSON object: `aws_access_key_id`, `aws_secret_access_key`,
    /// `aws_region`, and where they are needed `aws_session_token` and `aws_endpoint`. Other keys are left alone.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid), which names the key at fault and never a value.
    pub fn from_json(text: &str) -> Result<Self> {
        aws::read(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn the_aws_format_is_read() {
        let text = r#"{"aws_access_key_id": "AK", "aws_secret_access_key": "hush", "aws_region": "eu-west-1",
            "aws_session_token": "quiet", "aws_endpoint": "http://127.0.0.1:9000", "more": 1}"#;
        let s3 = S3Access::from_json(text).expect("well-formed");
        assert_eq!(s3.access_key_id.as_deref(), Some("AK"));
        assert_eq!(s3.secret_access_key.as_ref().map(Secret::expose), Some("hush"));
        assert_eq!(s3.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        let hub = HubAccess { token: Some(Secret::new("hush")), ..HubAccess::default() };
        let access = Access { s3: Some(s3), hub: Some(hub), allow_http: true, ..Access::default() };
        let shown = format!("{access:?} {}", Secret::new("hush"));
        assert!(!shown.contains("hush") && !shown.contains("quiet"), "{shown}");
        let sent = serde_json::to_string(&access).expect("JSON");
        assert_eq!(serde_json::from_str::<Access>(&sent).expect("JSON"), access);
        assert_eq!(serde_json::from_str::<Access>("{}").expect("defaults"), Access::default());
    }

    #[test]
    fn errors_name_keys_and_never_values() {
        for (text, named) in [
            (r#"{"aws_access_key_id": "hush""#, "line 1"),
            (r#""hush""#, "object"),
            (r#"{"aws_access_key_id": "hush", "aws_region": "hush"}"#, "aws_secret_access_key"),
            (r#"{"aws_access_key_id": ["hush"]}"#, "aws_access_key_id"),
            (r#"{"aws_access_key_id": ""}"#, "aws_access_key_id"),
        ] {
            let error = S3Access::from_json(text).expect_err(text);
            assert!(error.to_string().contains(named), "{error}");
            assert!(!format!("{error} {error:?}").contains("hush"), "{error}");
            assert_eq!(error.kind(), Kind::Invalid);
        }
    }
}
