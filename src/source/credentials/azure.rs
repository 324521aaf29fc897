//! Azure Blob Storage: an account's key, a shared access signature, or a service principal.

use super::object::{Form, Object};
use crate::error::Result;
use crate::source::secret::Secret;

/// What Azure Blob Storage lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Azure {
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
}

const FORM: Form = Form {
    name: "the Azure credentials",
    form: r#"an account key, a SAS, or {"account_key": ..}, {"sas_token": ..}, {"tenant_id": .., "client_id": .., "client_secret": ..}"#,
};

/// The names of a service principal's three parts: ours first, then what Azure's command line prints.
const TENANT: [&str; 3] = ["tenant_id", "tenantId", "tenant"];
const CLIENT: [&str; 3] = ["client_id", "clientId", "appId"];
const PASSWORD: [&str; 3] = ["client_secret", "clientSecret", "password"];

pub(super) fn read(text: &str) -> Result<Azure> {
    if text.starts_with('{') { object(&Object::parse(text, FORM)?) } else { plain(text) }
}

fn object(object: &Object) -> Result<Azure> {
    let key = object.optional(&["account_key"])?;
    let sas = object.optional(&["sas_token"])?;
    let client = object.optional(&CLIENT)?;
    match (key, sas, client) {
        (Some(key), None, None) => account(&key),
        (None, Some(sas), None) => signature(&sas),
        (None, None, Some(client_id)) => Ok(Azure::Principal {
            tenant_id: object.required(&TENANT)?,
            client_id,
            client_secret: Secret::new(object.required(&PASSWORD)?),
        }),
        (None, None, None) => {
            Err(FORM.wrong("have none of \"account_key\", \"sas_token\" and \"client_id\""))
        }
        _ => Err(FORM.wrong("have several of \"account_key\", \"sas_token\" and \"client_id\"")),
    }
}

fn plain(text: &str) -> Result<Azure> {
    if text.contains("AccountKey=") || text.contains("SharedAccessSignature=") {
        return Err(FORM.wrong("are a connection string; only its key or signature is needed"));
    }
    // No key holds these, and every signature has several parts.
    if text.contains(['?', '&']) { signature(text) } else { account(text) }
}

fn account(text: &str) -> Result<Azure> {
    if text.is_empty() {
        return Err(FORM.wrong("are empty"));
    }
    let base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    if !text.len().is_multiple_of(4) || !text.chars().all(base64) {
        return Err(FORM.wrong("have an account key that is no base64"));
    }
    Ok(Azure::Key(Secret::new(text)))
}

fn signature(text: &str) -> Result<Azure> {
    let query = text.strip_prefix('?').unwrap_or(text);
    let signed = query.split('&').any(|part| part.starts_with("sig=") && part.len() > "sig=".len());
    if !signed || query.contains(char::is_whitespace) {
        return Err(FORM.wrong("have a SAS that is no query with \"sig=\" (sv=..&sig=..)"));
    }
    Ok(Azure::Sas(Secret::new(query)))
}
