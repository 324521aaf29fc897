//! Azure credentials of the environment.

use bdnfs::source::AzureAccess;

use super::environment::Environment;

/// The variables with an account key.
pub const ACCOUNT_KEY_VARIABLES: [&str; 2] = ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"];
/// The variable with a shared access signature.
pub const SAS_VARIABLE: &str = "AZURE_STORAGE_SAS_TOKEN";
/// The variable with the password of a service principal.
pub const CLIENT_SECRET_VARIABLE: &str = "AZURE_CLIENT_SECRET";

/// Loads the credentials.
pub fn load(env: &Environment) -> AzureAccess {
    AzureAccess {
        account_key: env.secret(&ACCOUNT_KEY_VARIABLES),
        sas: env.secret(&[SAS_VARIABLE]),
        tenant_id: env.first(&["AZURE_TENANT_ID"]),
        client_id: env.first(&["AZURE_CLIENT_ID"]),
        client_secret: env.secret(&[CLIENT_SECRET_VARIABLE]),
        federated_token_file: env.first(&["AZURE_FEDERATED_TOKEN_FILE"]).map(Into::into),
        authority: env.first(&["AZURE_AUTHORITY_HOST"]),
        identity_endpoint: env.first(&["IDENTITY_ENDPOINT"]),
        endpoint: env.first(&["AZURE_STORAGE_ENDPOINT"]),
        anonymous: false,
    }
}
