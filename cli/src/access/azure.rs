//! Credentials of Azure's.

use std::path::Path;

use anyhow::{Result, anyhow};
use bdnfs::source::AzureAccess;

use super::environment::Environment;

/// The secrets among the variables.
pub const KEYS: [&str; 2] = ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"];
pub const SAS: &str = "AZURE_STORAGE_SAS_TOKEN";
pub const PASSWORD: &str = "AZURE_CLIENT_SECRET";

/// Gathers what `file` or else the environment has.
pub fn gather(env: &Environment, file: Option<&Path>) -> Result<AzureAccess> {
    let endpoint = env.first(&["AZURE_STORAGE_ENDPOINT"]);
    let Some(file) = file else {
        return Ok(AzureAccess {
            account_key: env.secret(&KEYS),
            sas: env.secret(&[SAS]),
            tenant_id: env.first(&["AZURE_TENANT_ID"]),
            client_id: env.first(&["AZURE_CLIENT_ID"]),
            client_secret: env.secret(&[PASSWORD]),
            federated_token_file: env.first(&["AZURE_FEDERATED_TOKEN_FILE"]).map(Into::into),
            authority: env.first(&["AZURE_AUTHORITY_HOST"]),
            identity_endpoint: env.first(&["IDENTITY_ENDPOINT"]),
            endpoint,
            anonymous: false,
        });
    };
    // The parser's own message may quote what it read.
    let azure: AzureAccess = serde_json::from_str(&super::read(file)?).map_err(|_| {
        let form = r#"{"account_key": ..}, {"sas_token": ..} or {"tenant_id": .., "client_id": .., "client_secret": ..}"#;
        anyhow!("credentials file {}: expected {form}", file.display())
    })?;
    Ok(AzureAccess { endpoint: azure.endpoint.or(endpoint), ..azure })
}
