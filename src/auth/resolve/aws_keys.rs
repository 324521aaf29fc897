//! Keys of AWS, and of the services that speak its protocol: given, of a role, or of this machine.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};

use crate::auth::AuthKey;
use crate::auth::load::aws_profile::{self, ProfileKeys, ProfileRole, ProfileRoleWith};
use crate::auth::refresh::metadata::{self, METADATA_URL};
use crate::auth::refresh::sts::{AssumeRole, AssumeRoleWith, sts_endpoint};
use crate::auth::refresh::{FixedKey, KeyOrigin, KeyProvider, StoreProvider};
use crate::auth::store_adapter::{TokenHttp, token_retry};
use crate::error::{Error, Kind, Result};
use crate::http_client::HttpClient;
use crate::source::{Access, AwsAmbient, AwsRole, RoleIdentity, S3Access, Uri};
use crate::task::blocking;

/// The region where none is given.
const DEFAULT_REGION: &str = "us-east-1";
/// The advice for when there is no key.
const NO_KEY_ADVICE: &str = "give an access key ID and a secret access key, or ask for anonymous access";

/// The provider of an access key that was given.
pub(super) fn access_key(given: &S3Access) -> Result<Arc<dyn KeyProvider>> {
    let (Some(id), Some(secret)) = (&given.access_key_id, &given.secret_access_key) else {
        return Err(Error::new(Kind::Refused, "the access key has no ID or no secret"));
    };
    let token = given.session_token.as_ref().map(|token| token.expose().to_owned());
    let credential = AwsCredential { key_id: id.clone(), secret_key: secret.expose().to_owned(), token };
    Ok(FixedKey::provider(AuthKey::aws(credential)?, given.expires.map(Into::into)))
}

/// The provider for a role that is named: assumed with the web identity token that was given, or of the machine, or with
/// the machine's AWS key.
pub(super) async fn named_role(
    role: &AwsRole,
    access: &Access,
    client: &HttpClient,
) -> Result<Arc<dyn KeyProvider>> {
    let ambient = match &role.identity {
        RoleIdentity::GivenToken { sts, .. } => AwsAmbient { sts: sts.clone(), ..AwsAmbient::default() },
        _ => access.aws.clone().unwrap_or_default(),
    };
    let with = match &role.identity {
        RoleIdentity::GivenToken { token, .. } => AssumeRoleWith::GivenToken(token.clone()),
        RoleIdentity::MachineToken => {
            let file = ambient.token_file.clone().ok_or_else(|| {
                let text = "AWS_OIDC needs this machine's web identity token, and no file of one is named \
                            (AWS_WEB_IDENTITY_TOKEN_FILE)";
                Error::new(Kind::Refused, text)
            })?;
            AssumeRoleWith::WebIdentity(file)
        }
        RoleIdentity::AccessKey => {
            let s3 = access.s3.clone().unwrap_or_default();
            AssumeRoleWith::AccessKey(default_chain(&s3, &ambient, access, client).await?)
        }
    };
    let endpoint = sts_endpoint(&role.region, &ambient, access.allow_http)?;
    Ok(Arc::new(AssumeRole {
        arn: role.arn.clone(),
        region: role.region.clone(),
        session: ambient.session,
        external_id: None,
        with,
        endpoint,
        client: client.clone(),
    }))
}

/// The provider where no credentials are named: of the key that was given, else of this machine. A machine's AWS
/// credentials are for AWS only.
pub(super) async fn ambient(uri: &Uri, access: &Access, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    let s3 = access.s3(uri).cloned().unwrap_or_default();
    if s3.anonymous {
        return Ok(FixedKey::provider(AuthKey::Anonymous, None));
    }
    match uri {
        Uri::S3 { .. } => default_chain(&s3, &access.aws.clone().unwrap_or_default(), access, client).await,
        _ if s3.access_key_id.is_some() && s3.secret_access_key.is_some() => access_key(&s3),
        _ => Err(Error::new(Kind::Refused, format!("no credentials found; {NO_KEY_ADVICE}"))),
    }
}

/// The AWS key that there is, looked for in the order of AWS's own tools.
async fn default_chain(
    s3: &S3Access,
    ambient: &AwsAmbient,
    access: &Access,
    client: &HttpClient,
) -> Result<Arc<dyn KeyProvider>> {
    if s3.access_key_id.is_some() && s3.secret_access_key.is_some() {
        return access_key(s3);
    }
    let region = s3.region.as_deref().unwrap_or(DEFAULT_REGION);
    if let (Some(file), Some(arn)) = (&ambient.token_file, &ambient.role) {
        let (arn, session) = (arn.clone(), ambient.session.clone());
        let with = ProfileRoleWith::WebIdentity(file.clone());
        let role = ProfileRole { arn, session, external_id: None, with };
        return profile_role(role, region, ambient, access, client).await;
    }
    if let Some(named) = ambient.profile.clone()
        && let Some(profile) = blocking(move || aws_profile::read(&named)).await?
    {
        let region = s3.region.clone().or(profile.region).unwrap_or_else(|| DEFAULT_REGION.into());
        match profile.keys? {
            ProfileKeys::None => {}
            ProfileKeys::Given(key) => return access_key(&key),
            ProfileKeys::Role(role) => return profile_role(role, &region, ambient, access, client).await,
        }
    }
    machine_keys(ambient, client).await
}

/// The provider for a role of a profile, or of the environment.
async fn profile_role(
    role: ProfileRole,
    region: &str,
    ambient: &AwsAmbient,
    access: &Access,
    client: &HttpClient,
) -> Result<Arc<dyn KeyProvider>> {
    let with = match role.with {
        ProfileRoleWith::WebIdentity(file) => AssumeRoleWith::WebIdentity(file),
        ProfileRoleWith::Machine => AssumeRoleWith::AccessKey(machine_keys(ambient, client).await?),
        ProfileRoleWith::Profile(keys) => AssumeRoleWith::AccessKey(match *keys {
            ProfileKeys::Given(key) => access_key(&key)?,
            ProfileKeys::Role(inner) => {
                Box::pin(profile_role(inner, region, ambient, access, client)).await?
            }
            ProfileKeys::None => machine_keys(ambient, client).await?,
        }),
    };
    let endpoint = sts_endpoint(region, ambient, access.allow_http)?;
    let (region, client) = (region.to_owned(), client.clone());
    let ProfileRole { arn, session, external_id, .. } = role;
    Ok(Arc::new(AssumeRole { arn, region, session, external_id, with, endpoint, client }))
}

/// The provider for the credentials of the container or the instance.
async fn machine_keys(ambient: &AwsAmbient, client: &HttpClient) -> Result<Arc<dyn KeyProvider>> {
    use AmazonS3ConfigKey as K;
    let builder = AmazonS3Builder::new();
    let builder = if let Some(path) = &ambient.container {
        builder.with_config(K::ContainerCredentialsRelativeUri, path)
    } else if let Some((url, file)) = &ambient.pod {
        let builder = builder.with_config(K::ContainerCredentialsFullUri, url);
        builder.with_config(K::ContainerAuthorizationTokenFile, file.display().to_string())
    } else {
        let address = ambient.metadata.as_deref().unwrap_or(METADATA_URL);
        metadata::probe(client, address).await.map_err(|why| {
            let text = format!(
                "no credentials found: no access key is given, and this machine has no web identity token with a role, \
                 no AWS profile with a key, no container credentials, and no metadata service ({why}); {NO_KEY_ADVICE}"
            );
            Error::new(Kind::Refused, text)
        })?;
        builder.with_metadata_endpoint(address)
    };
    // The builder wants a bucket and a region, of which credentials need neither.
    let builder = builder.with_bucket_name("none").with_region(DEFAULT_REGION).with_retry(token_retry());
    let store = builder.with_http_connector(TokenHttp(client.clone())).build();
    let store =
        store.map_err(|_| Error::new(Kind::Invalid, "the AWS credentials of this machine are invalid"))?;
    Ok(Arc::new(StoreProvider {
        provider: store.credentials().clone(),
        into_key: AuthKey::Aws,
        expires_at: None,
        origin: KeyOrigin::StoreProvider,
    }))
}
