//! How the services of the clouds are reached, and what a machine has of its own to be let in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::secret::Secret;

/// How Google Cloud Storage is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GcsAccess {
    /// The key of a service account, as the JSON that Google gives out.
    pub service_account: Option<Secret>,
    /// The file of the application default credentials. It is read by whoever opens the source.
    pub application_credentials: Option<PathBuf>,
    /// The service's URL, where it is not Google's.
    pub endpoint: Option<String>,
    /// The project that is billed for requests to a bucket whose requesters pay.
    pub project: Option<String>,
    /// Whether requests carry no token: public buckets.
    pub anonymous: bool,
}

/// How Azure Blob Storage is reached.
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
    /// The application's id; with a managed identity, which one of several.
    pub client_id: Option<String>,
    /// The application's secret.
    pub client_secret: Option<Secret>,
    /// The file of the token that stands for the secret (workload identity). It is read anew each time.
    pub federated_token_file: Option<PathBuf>,
    /// Where Entra ID is asked, where it is not the public one.
    pub authority: Option<String>,
    /// Where a managed identity is asked for its token, where it is not the metadata service.
    pub identity_endpoint: Option<String>,
    /// The service's URL with the account in it, where it is not `https://<account>.blob.core.windows.net`.
    pub endpoint: Option<String>,
    /// Whether requests are not authorised at all: public containers.
    pub anonymous: bool,
}

/// What a machine has of AWS's own, for a source that was given no access key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AwsMachine {
    /// The file of its web identity token. It is read anew each time.
    pub token_file: Option<PathBuf>,
    /// The ARN of the role that the token is for.
    pub role: Option<String>,
    /// What the role's session is called.
    pub session: Option<String>,
    /// The path of a container's credentials at ECS.
    pub container: Option<String>,
    /// The URL of a pod's credentials at EKS, and the file of the token for it.
    pub pod: Option<(String, PathBuf)>,
    /// The instance's metadata service, where it is not at its usual address.
    pub metadata: Option<String>,
}
