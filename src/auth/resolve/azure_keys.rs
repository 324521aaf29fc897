//! Credentials of Azure: an account's key, a shared access signature, an application of Entra ID, or this machine.

use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use crate::auth::refresh::key_expiry::sas_expiry;
use crate::auth::refresh::metadata::{self, METADATA_URL};
use crate::auth::refresh::{FixedKey, KeyOrigin, KeyProvider, StoreProvider};
use crate::auth::store_adapter::{TokenHttp, token_retry};
use crate::auth::{AuthKey, wrong_service};
use crate::error::{Error, Kind, Result};
use crate::http_client::HttpClient;
use crate::source::{Access, AzureAccess, AzureCredentials, Secret, Uri};

/// The provider for credentials that a configuration names.
pub(super) fn resolve(
    credentials: &AzureCredentials,
    uri: &Uri,
    access: &Access,
    client: &HttpClient,
) -> Result<Arc<dyn KeyProvider>> {
    let authority = access.azure.as_ref().and_then(|azure| azure.authority.clone());
    let given = match credentials.clone() {
        AzureCredentials::Key(key) => AzureAccess { account_key: Some(key), ..AzureAccess::default() },
        AzureCredentials::Sas(sas) => AzureAccess { sas: Some(sas), ..AzureAccess::default() },
        AzureCredentials::Principal { tenant_id, client_id, client_secret } => AzureAccess {
            tenant_id: Some(tenant_id),
            client_id: Some(client_id),
            client_secret: Some(client_secret),
            authority,
            ..AzureAccess::default()
        },
    };
    provider(&given, uri, client)
}

/// The provider where no credentials are named: of what was given for `azure://`, else of this machine.
pub(super) async fn ambient(uri: &Uri, access: &Access, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let given = access.azure.clone().unwrap_or_default();
    if given.anonymous {
        return Ok(FixedKey::provider(AuthKey::Anonymous, None));
    }
    let secrets = given.account_key.is_some() || given.sas.is_some() || given.client_secret.is_some();
    if !secrets && given.federated_token_file.is_none() && given.identity_endpoint.is_none() {
        metadata::probe(client, METADATA_URL).await.map_err(|why| {
            let text = format!(
                "no credentials found: no account key, SAS, client secret or federated token is given, and this \
                 machine has no metadata service ({why}); give one of them, or ask for anonymous access"
            );
            Error::new(Kind::Refused, text)
        })?;
    }
    provider(&given, uri, client)
}

fn provider(given: &AzureAccess, uri: &Uri, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let Uri::Azure { account, .. } = uri else { return Err(wrong_service()) };
    let builder = MicrosoftAzureBuilder::new().with_account(account).with_container_name("none");
    let builder = builder.with_retry(token_retry()).with_http_connector(TokenHttp(client.clone()));
    let store =
        settings(given).into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
    // The builder's own message may quote the key.
    let store = store.build().map_err(|_| {
        let text = "the Azure credentials are invalid: an account key is base64, a SAS is a query (sv=..&sig=..), and a \
                    client secret or federated token needs a tenant ID and a client ID";
        Error::new(Kind::Invalid, text)
    })?;
    let configured = given.account_key.is_some() || given.sas.is_some();
    Ok(Arc::new(StoreProvider {
        provider: store.credentials().clone(),
        into_key: AuthKey::Azure,
        expires_at: given.sas.as_ref().and_then(sas_expiry),
        origin: if configured { KeyOrigin::Configured } else { KeyOrigin::StoreProvider },
    }))
}

/// The access as settings of `object_store`.
fn settings(given: &AzureAccess) -> Vec<(AzureConfigKey, String)> {
    use AzureConfigKey as K;
    let secret = |secret: &Option<Secret>| secret.as_ref().map(|s| s.expose().to_owned());
    let file = given.federated_token_file.as_ref().map(|path| path.display().to_string());
    [
        (K::AccessKey, secret(&given.account_key)),
        (K::SasKey, secret(&given.sas)),
        (K::AuthorityId, given.tenant_id.clone()),
        (K::ClientId, given.client_id.clone()),
        (K::ClientSecret, secret(&given.client_secret)),
        (K::FederatedTokenFile, file),
        (K::AuthorityHost, given.authority.clone()),
        (K::MsiEndpoint, given.identity_endpoint.clone()),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}
