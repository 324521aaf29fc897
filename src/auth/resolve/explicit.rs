//! Explicit credentials: those allowed where the machine's own are not to be used: nothing that reads its
//! files, asks its metadata service, assumes its roles or leads to another service.

use serde_json::Value;

use crate::error::{Error, Kind, Result};
use crate::source::{
    Access, AwsRole, AzureAccess, AzureCredentials, Credentials, GoogleCredentials, RoleIdentity, Secret, Uri,
};

/// Google's token service, as keys of service accounts name it.
const GOOGLE_TOKEN_URIS: [&str; 2] =
    ["https://oauth2.googleapis.com/token", "https://accounts.google.com/o/oauth2/token"];

/// The refusal of a token service that is not the cloud's own.
const OTHER_SERVICE: &str = "another token service than the cloud's own may only be set by an administrator";

/// Makes sure that `loaded` needs nothing of this machine.
///
/// # Errors
/// [`Kind::Refused`] with what it needs.
pub(super) fn check(loaded: &Credentials, uri: &Uri, access: &Access) -> Result<()> {
    let refused = |text: &str| Err(Error::new(Kind::Refused, text));
    match loaded {
        Credentials::Bearer(_) | Credentials::Basic { .. } => Ok(()),
        // A token is the author's own, and goes to the cloud: another token service is an administrator's.
        Credentials::Azure(AzureCredentials::GivenToken { authority: Some(_), .. }) => refused(OTHER_SERVICE),
        Credentials::Azure(_) => Ok(()),
        Credentials::Aws(key) if key.endpoint.is_some() => {
            refused("endpoint: only an administrator may set it; leave it out of the secret")
        }
        // It becomes part of a host's name.
        Credentials::Aws(key) if !key.region.as_deref().is_none_or(is_region) => {
            refused("region: the one in the secret is no region")
        }
        Credentials::Aws(_) => Ok(()),
        Credentials::AwsRole(AwsRole { identity: RoleIdentity::GivenToken { sts: None, .. }, .. }) => Ok(()),
        Credentials::AwsRole(AwsRole { identity: RoleIdentity::GivenToken { .. }, .. }) => {
            refused(OTHER_SERVICE)
        }
        Credentials::Gcp(
            GoogleCredentials::User { .. } | GoogleCredentials::GivenToken { sts: None, iam: None, .. },
        ) => Ok(()),
        Credentials::Gcp(GoogleCredentials::GivenToken { .. }) => refused(OTHER_SERVICE),
        Credentials::Gcp(GoogleCredentials::Key(key)) if has_google_token_uri(key) => Ok(()),
        Credentials::Gcp(GoogleCredentials::Key(_)) => {
            refused("the service account key in the secret names another token service than Google's")
        }
        Credentials::AwsRole(_) | Credentials::Gcp(_) => {
            refused("the identity of this machine is not for this source; name a secret")
        }
        Credentials::Ambient if is_given(uri, access) => Ok(()),
        Credentials::Ambient => refused(
            "no credentials are given, and those of this machine are not for this source; name a secret, or ask for \
             anonymous access",
        ),
    }
}

/// Whether `access` itself has the credentials for `uri`, or needs none.
fn is_given(uri: &Uri, access: &Access) -> bool {
    access.is_anonymous(uri)
        || match uri {
            // Without a token they are anonymous.
            Uri::Hf { .. } | Uri::Http(_) | Uri::File(_) | Uri::Bt(_) => true,
            Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. } => {
                access.s3(uri).is_some_and(|s3| s3.access_key_id.is_some() && s3.secret_access_key.is_some())
            }
            Uri::Gs { .. } => access
                .gcs
                .as_ref()
                .and_then(|gcs| gcs.service_account.as_ref())
                .is_some_and(has_google_token_uri),
            Uri::Azure { .. } => access.azure.as_ref().is_some_and(AzureAccess::is_complete),
        }
}

/// Whether `region` is a single part of a host's name. CoreWeave's are in capitals: `US-EAST-04A`.
fn is_region(region: &str) -> bool {
    region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Whether the key of a service account is exchanged for a token at Google.
fn has_google_token_uri(key: &Secret) -> bool {
    let Ok(key) = serde_json::from_str::<Value>(key.expose()) else { return false };
    let is_known = |uri: &Value| uri.as_str().is_some_and(|uri| GOOGLE_TOKEN_URIS.contains(&uri));
    key.get("token_uri").is_none_or(is_known) && key.get("gcs_base_url").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::S3Access;

    fn check_of(source: &str, loaded: &Credentials, access: &Access) -> Result<()> {
        check(loaded, &source.parse().expect("a URI"), access)
    }

    fn parsed(scheme: &str, secret: &str) -> Credentials {
        Credentials::parse(scheme, &Secret::new(secret)).expect("credentials")
    }

    #[test]
    fn explicit_access_without_a_key_is_refused_before_the_machine_is_asked() {
        for source in ["s3://bucket", "r2://account.bucket", "gs://bucket", "azure://account/container"] {
            let error = check_of(source, &Credentials::Ambient, &Access::default()).expect_err(source);
            assert_eq!(error.kind(), Kind::Refused);
        }
        let azure = |tenant_id: Option<&str>| {
            let (tenant_id, client_id) = (tenant_id.map(str::to_owned), Some("c".into()));
            let client_secret = Some(Secret::new("s"));
            let azure = AzureAccess { tenant_id, client_id, client_secret, ..AzureAccess::default() };
            let access = Access { azure: Some(azure), ..Access::default() };
            check_of("azure://account/container", &Credentials::Ambient, &access)
        };
        azure(None).expect_err("the secret of an application that is not named");
        azure(Some("t")).expect("an application");
        check_of("hf://o/m", &Credentials::Ambient, &Access::default()).expect("anonymous");
        let anonymous = S3Access { anonymous: true, ..S3Access::default() };
        let access = Access { s3: Some(anonymous), ..Access::default() };
        check_of("s3://bucket", &Credentials::Ambient, &access).expect("anonymous");
    }

    #[test]
    fn explicit_access_with_a_secret_that_leads_elsewhere_is_refused() {
        let role = |identity| Credentials::AwsRole(AwsRole { arn: "a".into(), region: "r".into(), identity });
        let file = r#"{"type": "external_account", "audience": "a", "subject_token_type": "t",
            "token_url": "https://sts.googleapis.com/v1/token", "credential_source": {"file": "/etc/shadow"}}"#;
        let key = r#"{"type": "service_account", "client_email": "a@b", "private_key": "-----BEGIN x",
            "token_uri": "http://169.254.169.254/"}"#;
        for loaded in [
            role(RoleIdentity::MachineToken),
            role(RoleIdentity::AccessKey),
            parsed("gs", file),
            parsed("gs", key),
            parsed(
                "r2",
                r#"{"access_key_id": "a", "secret_access_key": "b", "endpoint": "http://169.254.169.254"}"#,
            ),
            parsed("r2", r#"{"access_key_id": "a", "secret_access_key": "b", "region": "evil.com/"}"#),
        ] {
            let error = check_of("s3://bucket", &loaded, &Access::default()).expect_err("it leads elsewhere");
            assert_eq!(error.kind(), Kind::Refused);
        }
        let key = parsed(
            "s3",
            r#"{"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "eu-west-1"}"#,
        );
        check_of("s3://bucket", &key, &Access::default()).expect("a key");
        let key =
            parsed("cw", r#"{"access_key_id": "a", "secret_access_key": "b", "region": "US-EAST-04A"}"#);
        check_of("cw://bucket", &key, &Access::default()).expect("a region of CoreWeave");
        let token = |sts| role(RoleIdentity::GivenToken { token: Secret::new("t"), sts });
        check_of("s3://bucket", &token(None), &Access::default()).expect("a token of its own");
        let google = |sts, iam| {
            Credentials::Gcp(GoogleCredentials::GivenToken {
                token: Secret::new("t"),
                provider: "p".into(),
                service_account: None,
                sts,
                iam,
            })
        };
        let azure = |authority| {
            Credentials::Azure(AzureCredentials::GivenToken {
                token: Secret::new("t"),
                tenant_id: "t".into(),
                client_id: "c".into(),
                authority,
            })
        };
        for own in [google(None, None), azure(None)] {
            check_of("gs://bucket", &own, &Access::default()).expect("a token of its own");
        }
        let url = || Some("http://169.254.169.254".to_owned());
        for elsewhere in [token(url()), google(url(), None), google(None, url()), azure(url())] {
            let error = check_of("gs://bucket", &elsewhere, &Access::default()).expect_err("elsewhere");
            assert_eq!(error.to_string(), OTHER_SERVICE);
        }
    }
}
