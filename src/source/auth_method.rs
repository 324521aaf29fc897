//! The authorization of requests to a source: the `auth` of a configuration.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::diagnostic::Diagnostics;
use super::fields::Fields;

/// The authorization of requests to a source. It names secrets and roles and holds no secret itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "auth_method")]
pub enum AuthMethod {
    /// The credentials are a secret with this name.
    #[serde(rename = "CUSTOM_SECRET")]
    Secret {
        /// The secret's name.
        auth_secret_name: String,
    },
    /// An AWS role, assumed with the web identity token of this machine.
    #[serde(rename = "AWS_OIDC")]
    AwsOidc {
        /// The role's ARN.
        aws_oidc_role_arn: String,
        /// The region whose STS is asked.
        aws_oidc_region: String,
    },
    /// An AWS role, assumed with the web identity token that came with the request, as that of a pod. No configuration has it.
    #[serde(rename = "AWS_POD_OIDC")]
    AwsPodOidc {
        /// The role's ARN.
        aws_pod_oidc_role_arn: String,
        /// The region whose STS is asked.
        aws_pod_oidc_region: String,
        /// The name of the secret that is the token.
        aws_pod_oidc_token: String,
        /// The URL of another token service than that of AWS.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aws_pod_oidc_sts: Option<String>,
    },
    /// A Google service account, impersonated through workload identity federation.
    #[serde(rename = "GCP_OIDC")]
    GcpOidc {
        /// The service account's address.
        gcp_oidc_service_account: String,
        /// The full resource name of the workload identity provider.
        gcp_oidc_workload_id_provider: String,
    },
    /// An identity of Google's, by workload identity federation with the token that came with the request, as that of a pod. No
    /// configuration has it.
    #[serde(rename = "GCP_POD_OIDC")]
    GcpPodOidc {
        /// The full resource name of the workload identity provider.
        gcp_pod_oidc_workload_id_provider: String,
        /// The address of the service account that is impersonated; without it, the federated identity itself has access.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gcp_pod_oidc_service_account: Option<String>,
        /// The name of the secret that is the token.
        gcp_pod_oidc_token: String,
        /// The URL of another token service than that of Google.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gcp_pod_oidc_sts: Option<String>,
        /// The URL of another service for tokens of service accounts than that of Google.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gcp_pod_oidc_iam: Option<String>,
    },
    /// An application or a managed identity of Entra ID, with the token that came with the request, as that of a pod. No
    /// configuration has it.
    #[serde(rename = "AZURE_POD_OIDC")]
    AzurePodOidc {
        /// The tenant's ID.
        azure_pod_oidc_tenant_id: String,
        /// The ID of the application or the managed identity.
        azure_pod_oidc_client_id: String,
        /// The name of the secret that is the token.
        azure_pod_oidc_token: String,
        /// The URL of another Entra ID than the public one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        azure_pod_oidc_authority: Option<String>,
    },
    /// An AWS role, assumed with the AWS credentials of this machine.
    #[serde(rename = "AWS_ASSUME_ROLE")]
    AwsAssumeRole {
        /// The role's ARN.
        aws_assume_role_arn: String,
        /// The region whose STS is asked.
        aws_assume_role_region: String,
    },
}

/// The key of the method.
pub(crate) const METHOD_KEY: &str = "auth_method";
/// The key of a secret's name, in `auth` and beside it.
pub(crate) const SECRET_KEY: &str = "auth_secret_name";

/// All methods of a configuration, each with its keys, all of which are required.
const METHODS: [(&str, &[&str]); 4] = [
    ("CUSTOM_SECRET", &[SECRET_KEY]),
    ("AWS_OIDC", &["aws_oidc_role_arn", "aws_oidc_region"]),
    ("GCP_OIDC", &["gcp_oidc_service_account", "gcp_oidc_workload_id_provider"]),
    ("AWS_ASSUME_ROLE", &["aws_assume_role_arn", "aws_assume_role_region"]),
];

/// All keys that an `auth` may have, but that of the method.
pub(crate) fn keys() -> impl Iterator<Item = &'static str> {
    METHODS.iter().flat_map(|(_, keys)| *keys).copied()
}

impl AuthMethod {
    /// The method's name in a configuration.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Secret { .. } => "CUSTOM_SECRET",
            Self::AwsOidc { .. } => "AWS_OIDC",
            Self::AwsPodOidc { .. } => "AWS_POD_OIDC",
            Self::GcpOidc { .. } => "GCP_OIDC",
            Self::GcpPodOidc { .. } => "GCP_POD_OIDC",
            Self::AzurePodOidc { .. } => "AZURE_POD_OIDC",
            Self::AwsAssumeRole { .. } => "AWS_ASSUME_ROLE",
        }
    }

    /// The name of the method's secret, where that is the credentials.
    pub fn secret(&self) -> Option<&str> {
        match self {
            Self::Secret { auth_secret_name } => Some(auth_secret_name),
            _ => None,
        }
    }

    /// The name of the method's secret, where that is a token for an identity. Only a token for the same identity may replace it.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::AwsPodOidc { aws_pod_oidc_token: name, .. }
            | Self::GcpPodOidc { gcp_pod_oidc_token: name, .. }
            | Self::AzurePodOidc { azure_pod_oidc_token: name, .. } => Some(name),
            _ => None,
        }
    }

    /// Whether the method gives credentials for sources of `scheme`.
    pub fn serves(&self, scheme: &str) -> bool {
        match self {
            Self::Secret { .. } => scheme != "file",
            Self::AwsOidc { .. } | Self::AwsPodOidc { .. } | Self::AwsAssumeRole { .. } => scheme == "s3",
            Self::GcpOidc { .. } | Self::GcpPodOidc { .. } => scheme == "gs",
            Self::AzurePodOidc { .. } => scheme == "azure",
        }
    }

    /// Reads an `auth`. `None` where it is rejected.
    pub(crate) fn read(fields: &Fields<'_>, strict: bool, found: &mut Diagnostics) -> Option<Self> {
        let before = found.rejects();
        fields.unknown(&keys().chain([METHOD_KEY]).collect::<Vec<_>>(), strict, found);
        let mut given = Map::new();
        for key in keys() {
            if let Some(text) = fields.optional(key, found).filter(|text| !text.is_empty()) {
                given.insert(key.to_owned(), Value::from(text));
            }
        }
        let written = fields.required(METHOD_KEY, found)?.to_uppercase();
        let Some((method, needed)) = METHODS.into_iter().find(|(name, _)| *name == written) else {
            let known = METHODS.map(|(name, _)| name).join(", ");
            found.reject(&fields.place.key(METHOD_KEY), format!("is not a known method; use one of {known}"));
            return None;
        };
        for key in given.keys().filter(|key| !needed.contains(&key.as_str())) {
            found.reject(
                &fields.place.key(key),
                format!("cannot be used with {METHOD_KEY} {method}; leave it out"),
            );
        }
        let absent = |key| !given.contains_key(key) && fields.present(key).is_none_or(Value::is_string);
        let missing: Vec<_> = needed.iter().copied().filter(|key| absent(key)).collect();
        if !missing.is_empty() {
            found.reject(&fields.place, format!("{METHOD_KEY} {method} needs {}", missing.join(" and ")));
        }
        given.insert(METHOD_KEY.to_owned(), Value::from(method));
        let auth = serde_json::from_value(Value::Object(given)).ok();
        auth.filter(|_| found.rejects() == before)
    }
}
