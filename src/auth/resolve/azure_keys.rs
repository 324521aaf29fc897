//! Credentials of Azure: an account's key, a shared access signature, an application of Entra ID, or this machine.

use std::sync::Arc;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use crate::auth::refresh::entra_tokens::EntraTokens;
use crate::auth::refresh::key_expiry::sas_expiry;
use crate::auth::refresh::metadata::{self, METADATA_URL};
use crate::auth::refresh::{FixedKey, KeyOrigin, KeyProvider, StoreProvider};
use crate::auth::store_adapter::{TokenHttp, token_retry};
use crate::auth::{AuthKey, wrong_service};
use crate::error::{Error, Kind, Result};
use crate::http_client::HttpClient;
use crate::source::{Access, AzureAccess, AzureCredentials, Secret, SubjectToken, Uri, endpoint};

/// Entra ID (<https://learn.microsoft.com/entra/identity-platform/authentication-national-cloud>).
const AUTHORITY_URL: &str = "https://login.microsoftonline.com";
/// All that is said of wrong credentials: more could quote a key.
const INVALID_CREDENTIALS: &str = "the Azure credentials are invalid: an account key is base64, a SAS is a query (sv=..&sig=..), and a client secret or \
     federated token needs a tenant ID and a client ID";

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
        AzureCredentials::GivenToken { token, tenant_id, client_id, authority } => {
            let given = AzureAccess {
                tenant_id: Some(tenant_id),
                client_id: Some(client_id),
                authority,
                ..AzureAccess::default()
            };
            return federated(&given, SubjectToken::Given(token), access, client);
        }
    };
    provider(&given, uri, client)
}

/// The provider where no credentials are named: of what was given for `azure://`, else of this machine.
pub(super) async fn ambient(uri: &Uri, access: &Access, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let given = access.azure.clone().unwrap_or_default();
    if given.anonymous {
        return Ok(FixedKey::provider(AuthKey::Anonymous, None));
    }
    if given.is_complete() {
        return provider(&given, uri, client);
    }
    // A secret that is of no use is a mistake, and not to be replaced by another identity in silence.
    if given.client_secret.is_some() {
        return Err(Error::new(Kind::Invalid, INVALID_CREDENTIALS));
    }
    if let (true, Some(file)) = (given.has_application(), &given.federated_token_file) {
        return federated(&given, SubjectToken::File(file.clone()), access, client);
    }
    if given.identity_endpoint.is_none() {
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

/// The provider of tokens of the application that `given` names, for the token `subject`.
fn federated(
    given: &AzureAccess,
    subject: SubjectToken,
    access: &Access,
    client: &HttpClient,
) -> Result<Arc<dyn KeyProvider>> {
    let (Some(tenant_id), Some(client_id)) = (given.tenant_id.clone(), given.client_id.clone()) else {
        return Err(Error::new(Kind::Invalid, INVALID_CREDENTIALS));
    };
    let authority = given.authority.as_deref().unwrap_or(AUTHORITY_URL);
    let authority = endpoint(authority, access.allow_http).map_err(|e| e.context("Entra ID"))?;
    Ok(Arc::new(EntraTokens { tenant_id, client_id, subject, authority, client: client.clone() }))
}

fn provider(given: &AzureAccess, uri: &Uri, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let Uri::Azure { account, .. } = uri else { return Err(wrong_service()) };
    let builder = MicrosoftAzureBuilder::new().with_account(account).with_container_name("none");
    let builder = builder.with_retry(token_retry()).with_http_connector(TokenHttp(client.clone()));
    let store =
        settings(given).into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
    let store = store.build().map_err(|_| Error::new(Kind::Invalid, INVALID_CREDENTIALS))?;
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
    [
        (K::AccessKey, secret(&given.account_key)),
        (K::SasKey, secret(&given.sas)),
        (K::AuthorityId, given.tenant_id.clone()),
        (K::ClientId, given.client_id.clone()),
        (K::ClientSecret, secret(&given.client_secret)),
        (K::AuthorityHost, given.authority.clone()),
        (K::MsiEndpoint, given.identity_endpoint.clone()),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}
