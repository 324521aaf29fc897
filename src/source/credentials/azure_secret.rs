//! Azure Blob Storage: an account's key, a shared access signature, or a service principal.

use super::secret_json::{CredentialFormat, SecretJson};
use crate::error::Result;
use crate::source::secret::Secret;

/// The credentials of Azure Blob Storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AzureCredentials {
    /// A key of the storage account, in base64.
    Key(Secret),
    /// A shared access signature: the query that goes with each request, without its `?`.
    Sas(Secret),
    /// An application that Entra ID gives tokens to.
    Principal {
        /// The tenant's id.
        tenant_id: String,
        /// The application's id.
        client_id: String,
        /// The application's secret.
        client_secret: Secret,
    },
    /// An application or a managed identity that Entra ID gives tokens to for one that came with a request.
    GivenToken {
        /// The token.
        token: Secret,
        /// The tenant's id.
        tenant_id: String,
        /// The id of the application or the managed identity.
        client_id: String,
        /// The URL of another Entra ID than the public one.
        authority: Option<String>,
    },
}

const AZURE_FORMAT: CredentialFormat = CredentialFormat {
    name: "the Azure credentials",
    expected: r#"an account key, a SAS, or {"account_key": ..}, {"sas_token": ..}, {"tenant_id": .., "client_id": .., "client_secret": ..}"#,
};

/// The names of a service principal's three parts: ours first, then what Azure's command line prints.
const TENANT_KEYS: [&str; 3] = ["tenant_id", "tenantId", "tenant"];
const CLIENT_KEYS: [&str; 3] = ["client_id", "clientId", "appId"];
const PASSWORD_KEYS: [&str; 3] = ["client_secret", "clientSecret", "password"];

pub(super) fn read(text: &str) -> Result<AzureCredentials> {
    if text.starts_with('{') { object(&SecretJson::parse(text, AZURE_FORMAT)?) } else { plain(text) }
}

fn object(object: &SecretJson) -> Result<AzureCredentials> {
    let key = object.optional(&["account_key"])?;
    let sas = object.optional(&["sas_token"])?;
    let client = object.optional(&CLIENT_KEYS)?;
    match (key, sas, client) {
        (Some(key), None, None) => account(&key),
        (None, Some(sas), None) => signature(&sas),
        (None, None, Some(client_id)) => Ok(AzureCredentials::Principal {
            tenant_id: object.required(&TENANT_KEYS)?,
            client_id,
            client_secret: Secret::new(object.required(&PASSWORD_KEYS)?),
        }),
        (None, None, None) => {
            Err(AZURE_FORMAT.invalid("have none of \"account_key\", \"sas_token\" and \"client_id\""))
        }
        _ => Err(AZURE_FORMAT.invalid("have several of \"account_key\", \"sas_token\" and \"client_id\"")),
    }
}

fn plain(text: &str) -> Result<AzureCredentials> {
    if text.contains("AccountKey=") || text.contains("SharedAccessSignature=") {
        return Err(AZURE_FORMAT.invalid("are a connection string; only its key or signature is needed"));
    }
    // No key contains these, and every signature has several parts.
    if text.contains(['?', '&']) { signature(text) } else { account(text) }
}

fn account(text: &str) -> Result<AzureCredentials> {
    if text.is_empty() {
        return Err(AZURE_FORMAT.invalid("are empty"));
    }
    let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    if !text.len().is_multiple_of(4) || !text.chars().all(base64) {
        return Err(AZURE_FORMAT.invalid("have an account key that is not base64"));
    }
    Ok(AzureCredentials::Key(Secret::new(text)))
}

fn signature(text: &str) -> Result<AzureCredentials> {
    let query = text.strip_prefix('?').unwrap_or(text);
    let signed = query.split('&').any(|part| part.starts_with("sig=") && part.len() > "sig=".len());
    if !signed || query.contains(char::is_whitespace) {
        return Err(AZURE_FORMAT.invalid("have a SAS that is not a query with \"sig=\" (sv=..&sig=..)"));
    }
    Ok(AzureCredentials::Sas(Secret::new(query)))
}
