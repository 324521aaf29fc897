//! Keys of AWS, and of the services that speak its protocol: given, of a role, or of the machine.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};

use super::connector::{Service, no_credentials, retry};
use super::issue::{Found, Got, How, Source};
use super::sts::{self, By, Role};
use super::{Key, machine};
use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::secrets::profile;
use crate::source::{Access, AwsMachine, AwsRole, S3Access, Uri};
use crate::task::blocking;

/// AWS's region where nobody names another.
const REGION: &str = "us-east-1";

/// `credential` as a key. What can't be sent is refused here: whoever signs would fail at it.
pub(super) fn key(credential: AwsCredential) -> Result<Key> {
    let AwsCredential { key_id, secret_key, token } = &credential;
    let plain = |text: &String| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    if ![Some(key_id), Some(secret_key), token.as_ref()].into_iter().flatten().all(plain) {
        let text = "the access key holds something else than letters, digits and signs, perhaps a space or a second line";
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(Key::Aws(Arc::new(credential)))
}

/// The key that was given.
pub(super) fn given(given: &S3Access) -> Result<Arc<dyn Source>> {
    let (Some(id), Some(secret)) = (&given.access_key_id, &given.secret_access_key) else {
        return Err(Error::new(Kind::Refused, "the access key has no id or no secret"));
    };
    let token = given.session_token.as_ref().map(|token| token.expose().to_owned());
    let credential = AwsCredential { key_id: id.clone(), secret_key: secret.expose().to_owned(), token };
    Ok(Arc::new(Found(Got::found(key(credential)?, given.expires.map(Into::into)))))
}

/// A role that is named: taken on with the machine's web identity token, or with the AWS key that there is.
pub(super) async fn role(role: &AwsRole, access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    let machine = access.aws.clone().unwrap_or_default();
    let by = if role.web_identity {
        let file = machine.token_file.clone().ok_or_else(|| {
            let text = "AWS_OIDC shows this machine's web identity token, and no file of one is named \
                        (AWS_WEB_IDENTITY_TOKEN_FILE)";
            Error::new(Kind::Refused, text)
        })?;
        By::Token(file)
    } else {
        By::Key(base(&access.s3.clone().unwrap_or_default(), &machine, access, client).await?)
    };
    let endpoint = sts::address(&role.region, &machine, access.allow_http)?;
    Ok(Arc::new(Role {
        arn: role.arn.clone(),
        region: role.region.clone(),
        session: machine.session,
        external_id: None,
        by,
        endpoint,
        client: client.clone(),
    }))
}

/// The key for `uri` where no secret is named: the one that was given, else what the machine has. What a machine has of
/// AWS's opens nothing elsewhere.
pub(super) async fn ambient(uri: &Uri, access: &Access, client: &Client) -> Result<Arc<dyn Source>> {
    let s3 = access.s3(uri).cloned().unwrap_or_default();
    if s3.anonymous {
        return Ok(Arc::new(Found(Got::found(Key::Nobody, None))));
    }
    match uri {
        Uri::S3 { .. } => base(&s3, &access.aws.clone().unwrap_or_default(), access, client).await,
        _ if s3.access_key_id.is_some() && s3.secret_access_key.is_some() => given(&s3),
        _ => Err(Error::new(Kind::Refused, format!("there are no credentials for it; {ADVICE}"))),
    }
}

const ADVICE: &str = "give an access key's id and secret, or ask for anonymous access";

/// The AWS key that there is, looked for in the order of AWS's own tools.
async fn base(
    s3: &S3Access,
    machine: &AwsMachine,
    access: &Access,
    client: &Client,
) -> Result<Arc<dyn Source>> {
    if s3.access_key_id.is_some() && s3.secret_access_key.is_some() {
        return given(s3);
    }
    let region = s3.region.as_deref().unwrap_or(REGION);
    if let (Some(file), Some(arn)) = (&machine.token_file, &machine.role) {
        let (arn, session) = (arn.clone(), machine.session.clone());
        let role = profile::Role { arn, session, external_id: None, by: profile::By::Token(file.clone()) };
        return taken(role, region, machine, access, client).await;
    }
    if let Some(named) = machine.profile.clone()
        && let Some(found) = blocking(move || profile::read(&named)).await?
    {
        let region = s3.region.clone().or(found.region).unwrap_or_else(|| REGION.into());
        match found.keys {
            profile::Keys::None => {}
            profile::Keys::Given(key) => return given(&key),
            profile::Keys::Role(role) => return taken(role, &region, machine, access, client).await,
        }
    }
    of_machine(machine, client).await
}

/// A role of a profile, or of the environment.
async fn taken(
    role: profile::Role,
    region: &str,
    machine: &AwsMachine,
    access: &Access,
    client: &Client,
) -> Result<Arc<dyn Source>> {
    let by = match role.by {
        profile::By::Token(file) => By::Token(file),
        profile::By::Machine => By::Key(of_machine(machine, client).await?),
        profile::By::Keys(keys) => match *keys {
            profile::Keys::Given(key) => By::Key(given(&key)?),
            profile::Keys::Role(inner) => {
                By::Key(Box::pin(taken(inner, region, machine, access, client)).await?)
            }
            profile::Keys::None => By::Key(of_machine(machine, client).await?),
        },
    };
    let endpoint = sts::address(region, machine, access.allow_http)?;
    let (region, client) = (region.to_owned(), client.clone());
    let profile::Role { arn, session, external_id, .. } = role;
    Ok(Arc::new(Role { arn, region, session, external_id, by, endpoint, client }))
}

/// What the container or the instance has.
async fn of_machine(machine: &AwsMachine, client: &Client) -> Result<Arc<dyn Source>> {
    use AmazonS3ConfigKey as K;
    let builder = AmazonS3Builder::new();
    let builder = if let Some(path) = &machine.container {
        builder.with_config(K::ContainerCredentialsRelativeUri, path)
    } else if let Some((url, file)) = &machine.pod {
        let builder = builder.with_config(K::ContainerCredentialsFullUri, url);
        builder.with_config(K::ContainerAuthorizationTokenFile, file.display().to_string())
    } else {
        let address = machine.metadata.as_deref().unwrap_or(machine::METADATA);
        machine::probe(client, address).await.map_err(|why| {
            let text = format!(
                "there are no credentials for it: no access key is given, and this machine has no web identity token \
                 with a role, no AWS profile with a key, no container's credentials, and no metadata service ({why}); \
                 {ADVICE}"
            );
            Error::new(Kind::Refused, text)
        })?;
        builder.with_metadata_endpoint(address)
    };
    // What else the builder wants matters to nothing that is asked of it.
    let builder = builder.with_bucket_name("none").with_region(REGION).with_retry(retry());
    let store = builder.with_http_connector(Service(client.clone())).build();
    let store =
        store.map_err(|_| Error::new(Kind::Invalid, "this machine's AWS credentials can't be used"))?;
    Ok(Arc::new(Kept(store.credentials().clone())))
}

/// Keys that `object_store` gets and keeps.
struct Kept(AwsCredentialProvider);

#[async_trait]
impl Source for Kept {
    async fn key(&self) -> Result<Got> {
        let credential = self.0.get_credential().await.map_err(no_credentials)?;
        Ok(Got { key: Key::Aws(credential), expiry: None, how: How::Kept })
    }
}
