//! Access to Google's and Azure's storage, and the AWS credentials that a machine has of its own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// Access to Google Cloud Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GcsAccess {
    /// The key of a service account, as the JSON that Google gives out.
    pub service_account: Option<Secret>,
    /// The file of the application default credentials. It is read anew each time.
    pub application_credentials: Option<PathBuf>,
    /// The file of this machine's own identity token, for [`AuthMethod::GcpOidc`](super::AuthMethod::GcpOidc). Without it, the
    /// application default credentials say where it is. It is read anew each time.
    pub token_file: Option<PathBuf>,
    /// Google's token service (STS), where it is not the public one.
    pub sts: Option<String>,
    /// The service that issues tokens of service accounts, where it is not the public one.
    pub iam: Option<String>,
    /// The service's URL, where it is not Google's.
    pub endpoint: Option<String>,
    /// The project that is billed for requests to a bucket whose requesters pay.
    pub project: Option<String>,
    /// Whether requests are anonymous: public buckets.
    pub anonymous: bool,
}

/// Access to Azure Blob Storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AzureAccess {
    /// A key of the storage account, in base64.
    pub account_key: Option<Secret>,
    /// A shared access signature: the query that goes with each request.
    #[serde(alias = "sas_token")]
    pub sas: Option<Secret>,
    /// The tenant of an application that Entra ID gives tokens to.
    pub tenant_id: Option<String>,
    /// The application's ID; with a managed identity, which one of several.
    pub client_id: Option<String>,
    /// The application's secret.
    pub client_secret: Option<Secret>,
    /// The file of the token that replaces the secret (workload identity). It is read anew each time.
    pub federated_token_file: Option<PathBuf>,
    /// The URL of Entra ID, where it is not the public one.
    pub authority: Option<String>,
    /// The URL that gives a managed identity its token, where it is not the metadata service.
    pub identity_endpoint: Option<String>,
    /// The service's URL with the account in it, where it is not `https://<account>.blob.core.windows.net`.
    pub endpoint: Option<String>,
    /// Whether requests are anonymous: public containers.
    pub anonymous: bool,
}

impl AzureAccess {
    pub(super) fn has_secrets(&self) -> bool {
        self.account_key.is_some() || self.sas.is_some() || self.client_secret.is_some()
    }

    /// Whether these are credentials by themselves: an account key, a SAS, or the secret of an application that is named.
    pub(crate) fn is_complete(&self) -> bool {
        self.account_key.is_some()
            || self.sas.is_some()
            || self.client_secret.is_some() && self.has_application()
    }

    /// Whether an application is named: its tenant and its ID.
    pub(crate) fn has_application(&self) -> bool {
        self.tenant_id.is_some() && self.client_id.is_some()
    }
}

/// The AWS credentials of a machine, for a source that was given no access key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwsAmbient {
    /// The file of its web identity token. It is read anew each time.
    pub token_file: Option<PathBuf>,
    /// The ARN of the role that the token is for.
    pub role: Option<String>,
    /// The name of the role's session.
    pub session: Option<String>,
    /// The profile of AWS's tools, and its files: those of `~/.aws`.
    pub profile: Option<AwsProfile>,
    /// AWS's token service (STS), where it is not the region's.
    pub sts: Option<String>,
    /// The path of a container's credentials at ECS.
    pub container: Option<String>,
    /// The URL of a pod's credentials at EKS, and the file of the token for it.
    pub pod: Option<(String, PathBuf)>,
    /// The instance's metadata service, where it is not at its usual address.
    pub metadata: Option<String>,
}

/// A profile of AWS's tools. Its files are read anew each time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwsProfile {
    /// The name of the profile; `None` is the one called `default`, which need not exist.
    pub name: Option<String>,
    /// The file of keys, whose sections are named like profiles.
    pub credentials: Option<PathBuf>,
    /// The file of settings, whose sections are named `profile NAME`.
    pub config: Option<PathBuf>,
}
