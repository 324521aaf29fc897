//! Credentials of Azure: an account's key, a shared access signature, an application of Entra ID, or the machine.

use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use object_store::azure::{AzureConfigKey, AzureCredentialProvider, MicrosoftAzureBuilder};
use percent_encoding::percent_decode_str;

use super::connector::{Service, no_credentials, retry};
use super::issue::{Found, Got, How, Source};
use super::{Key, machine};
use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::source::{Access, Azure, AzureAccess, Secret, Uri};

/// What is named.
pub(super) fn open(azure: &Azure, uri: &Uri, access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    let authority = access.azure.as_ref().and_then(|azure| azure.authority.clone());
    let given = match azure.clone() {
        Azure::Key(key) => AzureAccess { account_key: Some(key), ..AzureAccess::default() },
        Azure::Sas(sas) => AzureAccess { sas: Some(sas), ..AzureAccess::default() },
        Azure::Principal { tenant_id, client_id, client_secret } => AzureAccess {
            tenant_id: Some(tenant_id),
            client_id: Some(client_id),
            client_secret: Some(client_secret),
            authority,
            ..AzureAccess::default()
        },
    };
    source(&given, uri, client)
}

/// What was given, else what the machine has.
pub(super) async fn ambient(uri: &Uri, access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    let given = access.azure.clone().unwrap_or_default();
    if given.anonymous {
        return Ok(Arc::new(Found(Got::found(Key::Nobody, None))));
    }
    let secrets = given.account_key.is_some() || given.sas.is_some() || given.client_secret.is_some();
    if !secrets && given.federated_token_file.is_none() && given.identity_endpoint.is_none() {
        machine::probe(client, machine::METADATA).await.map_err(|why| {
            let text = format!(
                "there are no credentials for it: no account key, SAS, client secret or federated token is given, and \
                 this machine has no metadata service ({why}); give one of them, or ask for anonymous access"
            );
            Error::new(Kind::Refused, text)
        })?;
    }
    source(&given, uri, client)
}

fn source(given: &AzureAccess, uri: &Uri, client: &Client) -> Result<Arc<dyn Source>> {
    let Uri::Azure { account, .. } = uri else { return Err(super::foreign()) };
    let builder = MicrosoftAzureBuilder::new().with_account(account).with_container_name("none");
    let builder = builder.with_retry(retry()).with_http_connector(Service(client.clone()));
    let store =
        settings(given).into_iter().fold(builder, |builder, (key, value)| builder.with_config(key, value));
    // What is at fault is never quoted: it may be the key.
    let store = store.build().map_err(|_| {
        let text = "the Azure credentials can't be used: an account key is base64, a SAS is a query (sv=..&sig=..), and \
                    a client secret or federated token has a tenant's id and a client's id beside it";
        Error::new(Kind::Invalid, text)
    })?;
    let fixed = given.account_key.is_some() || given.sas.is_some();
    let expiry = given.sas.as_ref().and_then(until);
    Ok(Arc::new(Kept { provider: store.credentials().clone(), expiry, fixed }))
}

/// What was given, in `object_store`'s words.
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

/// What `object_store` has, or gets and keeps.
struct Kept {
    provider: AzureCredentialProvider,
    expiry: Option<SystemTime>,
    /// Whether nobody has to be asked for it.
    fixed: bool,
}

#[async_trait]
impl Source for Kept {
    async fn key(&self) -> Result<Got> {
        let credential = self.provider.get_credential().await.map_err(no_credentials)?;
        let how = if self.fixed { How::Found } else { How::Kept };
        Ok(Got { key: Key::Azure(credential), expiry: self.expiry, how })
    }
}

/// Until when a shared access signature is good: its `se`, a time or a day.
fn until(sas: &Secret) -> Option<SystemTime> {
    let end = sas.expose().trim_start_matches('?').split('&').find_map(|part| part.strip_prefix("se="))?;
    let end = percent_decode_str(end).decode_utf8().ok()?;
    let day = || format!("{end}T00:00:00Z").parse::<DateTime<Utc>>();
    end.parse::<DateTime<Utc>>().or_else(|_| day()).ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_tells_its_end() {
        let end = |text: &str| until(&Secret::new(text)).map(|end| DateTime::<Utc>::from(end).to_rfc3339());
        let expected = Some("2026-01-02T03:04:05+00:00".to_owned());
        assert_eq!(end("?sv=1&se=2026-01-02T03%3A04%3A05Z&sig=hush"), expected);
        assert_eq!(end("se=2026-01-02&sig=hush").as_deref(), Some("2026-01-02T00:00:00+00:00"));
        assert_eq!(end("sv=1&sig=hush"), None);
    }
}
