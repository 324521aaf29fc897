//! Tokens of Entra ID for another identity, which an application or a managed identity trusts (federated credentials).

use std::sync::Arc;

use async_trait::async_trait;
use object_store::azure::AzureCredential;

use super::subject_token::SubjectTokenText;
use super::token_request::{OauthToken, advise_refused, ask, form_request, host};
use super::{KeyProvider, ResolvedKey};
use crate::auth::AuthKey;
use crate::error::Result;
use crate::http_client::HttpClient;
use crate::source::SubjectToken;

/// The scope of a token of Entra ID: all storage accounts, as far as the application's rights go.
const AZURE_STORAGE_SCOPE: &str = "https://storage.azure.com/.default";
/// The type of the token that an application proves its identity with (RFC 7523).
const JWT_ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// Provides tokens of Entra ID for another identity, which an application or a managed identity trusts.
/// <https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow>
pub(in crate::auth) struct EntraTokens {
    pub tenant_id: String,
    pub client_id: String,
    pub subject: SubjectToken,
    /// The service's URL, without a slash at its end.
    pub authority: String,
    pub client: HttpClient,
}

#[async_trait]
impl KeyProvider for EntraTokens {
    async fn key(&self) -> Result<ResolvedKey> {
        let Self { tenant_id, client_id, authority, .. } = self;
        let subject = SubjectTokenText::load(&self.subject, None, &self.client).await?;
        let form = [
            ("grant_type", "client_credentials"),
            ("client_id", client_id),
            ("client_assertion_type", JWT_ASSERTION_TYPE),
            ("client_assertion", subject.token.expose()),
            ("scope", AZURE_STORAGE_SCOPE),
        ];
        let url = format!("{authority}/{tenant_id}/oauth2/v2.0/token");
        let token: OauthToken = ask(&self.client, || form_request(&url, &form)).await.map_err(|e| {
            let failed =
                e.context(format!("{} gives no token for {client_id} of {tenant_id}", host(authority)));
            advise_refused(failed, || subject.advice("the application"))
        })?;
        let credential = AzureCredential::BearerToken(token.access_token.expose().to_owned());
        Ok(ResolvedKey { key: AuthKey::Azure(Arc::new(credential)), ..token.resolved()? })
    }
}
