//! Credentials and options that origins are opened with. They are sent from the command line to the process that serves
//! the mount, and nowhere else.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::auth_method::AuthMethod;
use super::cloud_access::{AwsAmbient, AzureAccess, GcsAccess};
use super::secret::{Secret, SecretStore, SharedSecrets};
use super::uri::Uri;

/// Credentials and options that origins are opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// For `s3://`.
    pub s3: Option<S3Access>,
    /// For `hf://`.
    pub hub: Option<HubAccess>,
    /// Whether plain `http://` is allowed for hosts other than this machine.
    pub allow_http: bool,
    /// Hosts that redirects may lead to although their addresses are not public.
    pub redirect_hosts: Vec<String>,
    /// For `r2://`.
    pub r2: Option<S3Access>,
    /// For `cw://`.
    pub cw: Option<S3Access>,
    /// For `gs://`.
    pub gcs: Option<GcsAccess>,
    /// For `azure://`.
    pub azure: Option<AzureAccess>,
    /// The credentials that this machine has for `s3://`, where no key is given.
    pub aws: Option<AwsAmbient>,
    /// Whether buckets are named by host (`true`) or by path (`false`); `None`: as is usual for the service.
    pub virtual_host: Option<bool>,
    /// Whether the requester pays, which some buckets demand.
    pub requester_pays: bool,
    /// Certificates (PEM) of authorities that are trusted beside those of this machine.
    pub authorities: Option<String>,
    /// Whether keys that can't be paths are escaped instead of refused
    /// ([`Listing::escape`](crate::manifest::Listing::escape)).
    pub escape: bool,
    /// The patterns of files that may be executed although the service does not say so.
    pub executable: Vec<String>,
    /// Whether files are read of which a web server tells no version: a change meanwhile goes unnoticed.
    pub unpinned: bool,
    /// A file of credentials in the format of the source's scheme. It is read anew each time.
    pub credentials: Option<PathBuf>,
    /// The authorization of requests; without it and such a file, by the keys above and by what this machine has.
    pub auth: Option<AuthMethod>,
    /// The stores in which the secret that `auth` names is looked up, in this order, each time anew.
    pub secrets: Vec<SecretStore>,
    /// Whether only what is given here is used, and never what this machine has: no metadata service, no file, no role. It is for
    /// sources named by users that may not use the machine's identity.
    pub explicit_only: bool,
    /// The directories that a `file://` source must lie in, whatever links lead to it; empty: anywhere. It is looked at when the
    /// source is open, so that no link can be put in its way after that.
    pub beneath: Vec<PathBuf>,
}

/// The access to an S3 service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct S3Access {
    /// The access key's ID, which is no secret.
    pub access_key_id: Option<String>,
    /// The access key.
    pub secret_access_key: Option<Secret>,
    /// The token of a temporary access key.
    pub session_token: Option<Secret>,
    /// The key's expiry, where that is known.
    pub expires: Option<DateTime<Utc>>,
    /// The region, `us-east-1`.
    pub region: Option<String>,
    /// The service's URL, where it is not AWS.
    pub endpoint: Option<String>,
    /// Whether requests are not signed at all: public buckets.
    pub anonymous: bool,
}

/// The access to the Hugging Face Hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HubAccess {
    /// The URL, where it is not `https://huggingface.co`.
    pub endpoint: Option<String>,
    /// The token of an account, for what is private or gated.
    pub token: Option<Secret>,
}

impl S3Access {
    fn has_secrets(&self) -> bool {
        self.secret_access_key.is_some() || self.session_token.is_some()
    }
}

impl Access {
    /// The access for a source of a service that speaks S3.
    pub fn s3(&self, uri: &Uri) -> Option<&S3Access> {
        match uri {
            Uri::S3 { .. } => self.s3.as_ref(),
            Uri::R2 { .. } => self.r2.as_ref(),
            Uri::Cw { .. } => self.cw.as_ref(),
            _ => None,
        }
    }

    /// The mutable S3 access for `uri`; it is added where there is none.
    pub fn s3_mut(&mut self, uri: &Uri) -> Option<&mut S3Access> {
        let given = match uri {
            Uri::S3 { .. } => &mut self.s3,
            Uri::R2 { .. } => &mut self.r2,
            Uri::Cw { .. } => &mut self.cw,
            _ => return None,
        };
        Some(given.get_or_insert_default())
    }

    /// Whether requests to the service of `uri` are anonymous.
    pub(crate) fn is_anonymous(&self, uri: &Uri) -> bool {
        match uri {
            Uri::Gs { .. } => self.gcs.as_ref().is_some_and(|gcs| gcs.anonymous),
            Uri::Azure { .. } => self.azure.as_ref().is_some_and(|azure| azure.anonymous),
            _ => self.s3(uri).is_some_and(|s3| s3.anonymous),
        }
    }

    /// The URL of the service of `uri`, where another than its own is given.
    pub fn endpoint(&self, uri: &Uri) -> Option<&str> {
        let endpoint = match uri {
            Uri::Gs { .. } => self.gcs.as_ref().map(|gcs| &gcs.endpoint),
            Uri::Azure { .. } => self.azure.as_ref().map(|azure| &azure.endpoint),
            Uri::Hf { .. } => self.hub.as_ref().map(|hub| &hub.endpoint),
            _ => self.s3(uri).map(|s3| &s3.endpoint),
        };
        endpoint?.as_deref()
    }

    /// Returns the name of the secret that authorizes requests, and the secrets that came with the request. `None` where those lack
    /// that secret, unless they [are lost](Self::add_lost_secrets).
    pub fn given_secret(&self) -> Option<(&str, &SharedSecrets)> {
        let name = self.secret_name()?;
        let given = || {
            self.secrets.iter().filter_map(|store| match store {
                SecretStore::Environment { secrets, .. } => Some(secrets),
                _ => None,
            })
        };
        let found = given().find(|secrets| secrets.get(name).is_some());
        found.or_else(|| given().find(|secrets| secrets.is_empty())).map(|secrets| (name, secrets))
    }

    /// Whether the secret that authorizes requests [is lost](Self::add_lost_secrets), with the store called `lost`. Another store
    /// without secrets is the environment of a command, whose secret is in a store of another kind.
    pub fn lacks_given_secret(&self, lost: &str) -> bool {
        let is_lost = |store: &SecretStore| match store {
            SecretStore::Environment { secrets, variable } => variable == lost && secrets.is_empty(),
            _ => false,
        };
        self.secret_name().is_some() && self.secrets.iter().any(is_lost)
    }

    /// Whether a secret that came with `other` may replace the one of this: both are credentials, or tokens for the same identity,
    /// and both are [explicit only](Self::explicit_only), or neither: others may name files of this machine, which go unchecked.
    pub fn has_same_identity(&self, other: &Self) -> bool {
        if self.explicit_only != other.explicit_only {
            return false;
        }
        match (&self.auth, &other.auth) {
            (Some(AuthMethod::Secret { .. }), Some(AuthMethod::Secret { .. })) => true,
            (own, other) => own == other,
        }
    }

    /// Adds an empty store for secrets that were lost with an agent, called `variable` in messages. Secrets that are sent again are
    /// put there.
    pub fn add_lost_secrets(&mut self, variable: &str) {
        let (secrets, variable) = (SharedSecrets::default(), variable.to_owned());
        self.secrets.insert(0, SecretStore::Environment { secrets, variable });
    }

    /// The name of the secret that authorizes requests: the credentials, or the token for a role or an identity.
    fn secret_name(&self) -> Option<&str> {
        self.auth.as_ref().and_then(|auth| auth.token().or_else(|| auth.secret()))
    }

    /// A copy without secrets, which may be written to a disk, and whether there were any. The names of secrets and of
    /// their stores stay.
    pub fn without_secrets(&self) -> (Self, bool) {
        // All fields by name, so that a new one is thought of here.
        let Self {
            s3,
            hub,
            allow_http,
            redirect_hosts,
            r2,
            cw,
            gcs,
            azure,
            aws,
            virtual_host,
            requester_pays,
            authorities,
            escape,
            executable,
            unpinned,
            credentials,
            auth,
            secrets,
            explicit_only,
            beneath,
        } = self.clone();
        let is_place = |store: &SecretStore| !matches!(store, SecretStore::Environment { .. });
        let had = [&s3, &r2, &cw].into_iter().flatten().any(S3Access::has_secrets)
            || hub.as_ref().is_some_and(|hub| hub.token.is_some())
            || gcs.as_ref().is_some_and(|gcs| gcs.service_account.is_some())
            || azure.as_ref().is_some_and(AzureAccess::has_secrets)
            || secrets.iter().any(SecretStore::holds_secrets);
        let bare = |s3: S3Access| S3Access { secret_access_key: None, session_token: None, ..s3 };
        let stripped = Self {
            s3: s3.map(bare),
            hub: hub.map(|hub| HubAccess { token: None, ..hub }),
            allow_http,
            redirect_hosts,
            r2: r2.map(bare),
            cw: cw.map(bare),
            gcs: gcs.map(|gcs| GcsAccess { service_account: None, ..gcs }),
            azure: azure.map(|azure| AzureAccess {
                account_key: None,
                sas: None,
                client_secret: None,
                ..azure
            }),
            aws,
            virtual_host,
            requester_pays,
            authorities,
            escape,
            executable,
            unpinned,
            credentials,
            auth,
            secrets: secrets.into_iter().filter(is_place).collect(),
            explicit_only,
            beneath,
        };
        (stripped, had)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn access_is_serialized_whole_and_shown_without_secrets() {
        let s3 = S3Access { secret_access_key: Some(Secret::new("hush")), ..S3Access::default() };
        let hub = HubAccess { token: Some(Secret::new("hush")), ..HubAccess::default() };
        let access = Access { s3: Some(s3), hub: Some(hub), allow_http: true, ..Access::default() };
        let shown = format!("{access:?} {}", Secret::new("hush"));
        assert!(!shown.contains("hush"), "{shown}");
        let sent = serde_json::to_string(&access).expect("JSON");
        assert_eq!(serde_json::from_str::<Access>(&sent).expect("JSON"), access);
        assert_eq!(serde_json::from_str::<Access>("{}").expect("defaults"), Access::default());
    }

    fn access_by(auth: &str) -> Access {
        serde_json::from_str(&format!(r#"{{"auth": {auth}}}"#)).expect("an access")
    }

    #[test]
    fn access_by_another_identity_has_not_the_same() {
        let secret =
            |name| access_by(&format!(r#"{{"auth_method": "CUSTOM_SECRET", "auth_secret_name": "{name}"}}"#));
        let role = |arn, sts| {
            access_by(&format!(
                r#"{{"auth_method": "AWS_POD_OIDC", "aws_pod_oidc_role_arn": "{arn}", "aws_pod_oidc_region": "r",
                    "aws_pod_oidc_token": "t", "aws_pod_oidc_sts": {sts}}}"#
            ))
        };
        assert!(secret("a").has_same_identity(&secret("b")));
        assert!(role("a", "null").has_same_identity(&role("a", "null")));
        for other in [secret("t"), role("b", "null"), role("a", "\"https://h\""), Access::default()] {
            assert!(!role("a", "null").has_same_identity(&other), "{other:?}");
            assert!(!other.has_same_identity(&role("a", "null")), "{other:?}");
        }
        let of_a_pod = Access { explicit_only: true, ..secret("a") };
        assert!(of_a_pod.has_same_identity(&of_a_pod));
        assert!(!secret("a").has_same_identity(&of_a_pod) && !of_a_pod.has_same_identity(&secret("a")));
    }

    #[test]
    fn access_whose_secret_was_lost_takes_it_when_it_comes_again() {
        const LOST: &str = "the request";
        let mut access = access_by(r#"{"auth_method": "CUSTOM_SECRET", "auth_secret_name": "a"}"#);
        assert!(access.given_secret().is_none() && !access.lacks_given_secret(LOST));
        // As of a command whose secret is in a directory.
        access.secrets.push(SecretStore::Environment {
            secrets: SharedSecrets::default(),
            variable: "the environment".to_owned(),
        });
        assert!(!access.lacks_given_secret(LOST));
        access.add_lost_secrets(LOST);
        assert!(access.lacks_given_secret(LOST) && !access.without_secrets().1);
        let (name, secrets) = access.given_secret().expect("a store");
        assert!(secrets.replace(name, Secret::new("hush")) && !secrets.replace(name, Secret::new("hush")));
        assert!(!access.lacks_given_secret(LOST) && access.without_secrets().1);
    }

    #[test]
    fn access_without_secrets_holds_none() {
        let key = |text: &str| Some(Secret::new(text));
        let s3 =
            S3Access { secret_access_key: key("hush"), session_token: key("hush"), ..S3Access::default() };
        let azure = AzureAccess {
            account_key: key("hush"),
            sas: key("hush"),
            client_secret: key("hush"),
            ..AzureAccess::default()
        };
        let environment = SecretStore::Environment {
            secrets: BTreeMap::from([("name".into(), Secret::new("hush"))]).into(),
            variable: "V".into(),
        };
        let access = Access {
            s3: Some(S3Access { region: Some("eu".into()), ..s3.clone() }),
            r2: Some(s3.clone()),
            cw: Some(s3),
            hub: Some(HubAccess { token: key("hush"), endpoint: None }),
            gcs: Some(GcsAccess { service_account: key("hush"), ..GcsAccess::default() }),
            azure: Some(azure),
            secrets: vec![environment, SecretStore::Directory("/run/secrets".into())],
            ..Access::default()
        };
        let (kept, had) = access.without_secrets();
        let text = serde_json::to_string(&kept).expect("JSON");
        assert!(
            had && !text.contains("hush") && text.contains("eu") && text.contains("/run/secrets"),
            "{text}"
        );
        assert_eq!(kept.without_secrets(), (kept, false));
    }
}
