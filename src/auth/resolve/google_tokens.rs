//! Tokens for Google Cloud Storage: of a service account's key, of a user, of another identity (workload identity
//! federation), or of this machine.

use std::path::PathBuf;
use std::sync::Arc;

use object_store::gcp::GoogleCloudStorageBuilder;

use crate::auth::refresh::metadata::{self, METADATA_URL};
use crate::auth::refresh::oidc::{FederatedTokens, UserTokens};
use crate::auth::refresh::{FixedKey, KeyOrigin, KeyProvider, StoreProvider};
use crate::auth::store_adapter::{TokenHttp, token_retry};
use crate::auth::{AuthKey, load, wrong_service};
use crate::error::{Error, Kind, Result};
use crate::http_client::HttpClient;
use crate::source::{
    Access, Credentials, ExternalAccount, GcsAccess, GoogleCredentials, Secret, SubjectToken, endpoint,
};
use crate::task::blocking;

/// Google's STS (<https://cloud.google.com/iam/docs/reference/sts/rest/v1/TopLevel/token>).
const STS_URL: &str = "https://sts.googleapis.com";
/// Issues tokens of service accounts (<https://cloud.google.com/iam/docs/reference/credentials/rest>).
const IAM_URL: &str = "https://iamcredentials.googleapis.com";
/// The type of a machine's own token, where nothing says otherwise.
const JWT_TOKEN_TYPE: &str = "urn:ietf:params:oauth:token-type:jwt";

/// The provider for credentials that a configuration names.
pub(super) async fn resolve(
    credentials: &GoogleCredentials,
    access: &Access,
    client: &HttpClient,
) -> Result<Arc<dyn KeyProvider>> {
    Ok(match credentials {
        GoogleCredentials::Key(key) => {
            let invalid = "the service account key is not the JSON that Google gives out, with \"client_email\", \
                           \"private_key\" and \"private_key_id\"";
            let builder = GoogleCloudStorageBuilder::new().with_service_account_key(key.expose());
            store_provider(builder, client, invalid).await?
        }
        GoogleCredentials::User { client_id, client_secret, refresh_token } => Arc::new(UserTokens {
            client_id: client_id.clone(),
            client_secret: client_secret.clone(),
            refresh_token: refresh_token.clone(),
            client: client.clone(),
        }),
        GoogleCredentials::External(account) => federated(account.clone(), access, client)?,
        GoogleCredentials::Workload { service_account, provider } => {
            federated(workload_identity(service_account, provider, access).await?, access, client)?
        }
        GoogleCredentials::GivenToken { token, provider, service_account, sts, iam } => {
            let services = (sts.as_deref(), iam.as_deref());
            let subject = SubjectToken::Given(token.clone());
            federated(federation(provider, service_account.as_deref(), services, subject), access, client)?
        }
    })
}

/// The provider where no credentials are named: of what was given for `gs://`, else of this machine.
pub(super) async fn ambient(access: &Access, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let given = access.gcs.clone().unwrap_or_default();
    if given.anonymous {
        return Ok(FixedKey::provider(AuthKey::Anonymous, None));
    }
    if let Some(key) = given.service_account {
        return resolve(&GoogleCredentials::Key(key), access, client).await;
    }
    if let Some(file) = given.application_credentials {
        return resolve(&application_default(file).await?, access, client).await;
    }
    metadata::probe(client, METADATA_URL).await.map_err(|why| {
        let text = format!(
            "no credentials found: no service account and no application default credentials are given, and this \
             machine has no metadata service ({why}); give the key of a service account, or ask for anonymous access"
        );
        Error::new(Kind::Refused, text)
    })?;
    // The files that it would look for were looked for before.
    let builder = GoogleCloudStorageBuilder::new();
    store_provider(builder, client, "the Google credentials of this machine are invalid").await
}

/// Reads application default credentials.
async fn application_default(file: PathBuf) -> Result<GoogleCredentials> {
    let context = format!("cannot use the application default credentials in {}", file.display());
    let read = blocking(move || Credentials::parse("gs", &load::secret_file(&file)?)).await;
    match read.map_err(|e| e.context(context))? {
        Credentials::Gcp(credentials) => Ok(credentials),
        _ => Err(wrong_service()),
    }
}

/// A provider of `object_store`. `invalid` is all that is said of wrong input, which may hold the key.
async fn store_provider(
    builder: GoogleCloudStorageBuilder,
    client: &HttpClient,
    invalid: &str,
) -> Result<Arc<dyn KeyProvider>> {
    let builder = builder.with_bucket_name("none").with_retry(token_retry());
    let builder = builder.with_http_connector(TokenHttp(client.clone()));
    // It reads files.
    let store = blocking(move || Ok(builder.build())).await?;
    let store = store.map_err(|_| Error::new(Kind::Invalid, invalid))?;
    Ok(Arc::new(StoreProvider {
        provider: store.credentials().clone(),
        into_key: |credential| match credential.bearer.as_str() {
            "" => AuthKey::Anonymous,
            token => AuthKey::Bearer(Secret::new(token)),
        },
        expires_at: None,
        origin: KeyOrigin::StoreProvider,
    }))
}

/// The federation that a service account and a workload identity provider stand for. The machine's own token is where the
/// configuration says, or its application default credentials.
async fn workload_identity(account: &str, provider: &str, access: &Access) -> Result<ExternalAccount> {
    let given = access.gcs.clone().unwrap_or_default();
    let GcsAccess { token_file, application_credentials, sts, iam, .. } = given;
    let (subject, field, token_type) = match (token_file, application_credentials) {
        (Some(file), _) => (SubjectToken::File(file), None, JWT_TOKEN_TYPE.to_owned()),
        (None, Some(file)) => match application_default(file).await? {
            GoogleCredentials::External(known) => (known.subject, known.field, known.token_type),
            _ => return Err(no_identity_token()),
        },
        (None, None) => return Err(no_identity_token()),
    };
    let services = (sts.as_deref(), iam.as_deref());
    Ok(ExternalAccount { token_type, field, ..federation(provider, Some(account), services, subject) })
}

/// The exchange of the token `subject` at a workload identity provider, and for a token of the service account `account` where one
/// is named. `services` are the URLs of STS and IAM, where they are not Google's.
fn federation(
    provider: &str,
    account: Option<&str>,
    services: (Option<&str>, Option<&str>),
    subject: SubjectToken,
) -> ExternalAccount {
    let url = |given: Option<&str>, public: &str| given.unwrap_or(public).trim_end_matches('/').to_owned();
    let (sts, iam) = (url(services.0, STS_URL), url(services.1, IAM_URL));
    let provider = provider.trim_start_matches("//iam.googleapis.com/").trim_matches('/');
    ExternalAccount {
        audience: format!("//iam.googleapis.com/{provider}"),
        token_type: JWT_TOKEN_TYPE.to_owned(),
        token_url: format!("{sts}/v1/token"),
        impersonation: account
            .map(|account| format!("{iam}/v1/projects/-/serviceAccounts/{account}:generateAccessToken")),
        subject,
        field: None,
    }
}

fn no_identity_token() -> Error {
    let text = "GCP_OIDC needs this machine's own identity token, and no file of one is named \
                (GOOGLE_WEB_IDENTITY_TOKEN_FILE, or GOOGLE_APPLICATION_CREDENTIALS of the type external_account)";
    Error::new(Kind::Refused, text)
}

fn federated(account: ExternalAccount, access: &Access, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let check =
        |text: &str| endpoint(text, access.allow_http).map_err(|e| e.context("Google's token service"));
    check(&account.token_url)?;
    account.impersonation.as_deref().map(check).transpose()?;
    Ok(Arc::new(FederatedTokens { account, client: client.clone() }))
}
