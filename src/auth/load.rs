//! Loading credentials: secrets by name from the stores that an [`Access`] lists, a file of credentials, or the profiles
//! of AWS's tools ([`aws_profile`]).
//!
//! Credentials are read anew each time, so that a rotated secret is found without opening its source again.

pub mod aws_profile;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::error::{Error, Kind, Result};
use crate::source::{
    Access, AuthMethod, AwsRole, AzureCredentials, CredentialLoader, Credentials, GoogleCredentials,
    RoleIdentity, Secret, SecretStore, Uri,
};

/// The largest file of secrets that is read, in bytes: a key has a few thousand; what is larger is something else.
const MAX_SECRET_FILE_BYTES: u64 = 1 << 20;

/// The loader of the credentials that `access` names for `uri`.
pub fn loader(uri: &Uri, access: &Access) -> Arc<dyn CredentialLoader> {
    Arc::new(AccessLoader { scheme: uri.scheme().to_owned(), access: access.clone() })
}

#[derive(Debug)]
struct AccessLoader {
    scheme: String,
    access: Access,
}

impl CredentialLoader for AccessLoader {
    fn load(&self) -> Result<Credentials> {
        let parse = |secret: &Secret| {
            Credentials::parse(&self.scheme, secret).map_err(|e| e.context(self.name().unwrap_or_default()))
        };
        if let Some(path) = &self.access.credentials {
            return parse(&secret_file(path)?);
        }
        let Some(auth) = &self.access.auth else { return Ok(Credentials::Ambient) };
        if !auth.serves(&self.scheme) {
            let text = format!("{} gives no credentials for {}://", auth.method(), self.scheme);
            return Err(Error::new(Kind::Refused, text));
        }
        Ok(match auth.clone() {
            AuthMethod::Secret { auth_secret_name } => {
                parse(&find_secret(&self.access.secrets, &auth_secret_name)?)?
            }
            AuthMethod::AwsOidc { aws_oidc_role_arn: arn, aws_oidc_region: region } => {
                Credentials::AwsRole(AwsRole { arn, region, identity: RoleIdentity::MachineToken })
            }
            AuthMethod::AwsPodOidc {
                aws_pod_oidc_role_arn: arn,
                aws_pod_oidc_region: region,
                aws_pod_oidc_token: name,
                aws_pod_oidc_sts: sts,
            } => {
                let token = find_secret(&self.access.secrets, &name)?;
                Credentials::AwsRole(AwsRole {
                    arn,
                    region,
                    identity: RoleIdentity::GivenToken { token, sts },
                })
            }
            AuthMethod::AwsAssumeRole { aws_assume_role_arn: arn, aws_assume_role_region: region } => {
                Credentials::AwsRole(AwsRole { arn, region, identity: RoleIdentity::AccessKey })
            }
            AuthMethod::GcpOidc { gcp_oidc_service_account, gcp_oidc_workload_id_provider } => {
                Credentials::Gcp(GoogleCredentials::Workload {
                    service_account: gcp_oidc_service_account,
                    provider: gcp_oidc_workload_id_provider,
                })
            }
            AuthMethod::GcpPodOidc {
                gcp_pod_oidc_workload_id_provider: provider,
                gcp_pod_oidc_service_account: service_account,
                gcp_pod_oidc_token: name,
                gcp_pod_oidc_sts: sts,
                gcp_pod_oidc_iam: iam,
            } => {
                let token = find_secret(&self.access.secrets, &name)?;
                Credentials::Gcp(GoogleCredentials::GivenToken { token, provider, service_account, sts, iam })
            }
            AuthMethod::AzurePodOidc {
                azure_pod_oidc_tenant_id: tenant_id,
                azure_pod_oidc_client_id: client_id,
                azure_pod_oidc_token: name,
                azure_pod_oidc_authority: authority,
            } => {
                let token = find_secret(&self.access.secrets, &name)?;
                Credentials::Azure(AzureCredentials::GivenToken { token, tenant_id, client_id, authority })
            }
        })
    }

    fn name(&self) -> Option<String> {
        if let Some(path) = &self.access.credentials {
            return Some(format!("the credentials in {}", path.display()));
        }
        let auth = self.access.auth.as_ref()?;
        Some(match auth.secret() {
            Some(name) => format!("the secret {name:?}"),
            None => format!("the authorization by {}", auth.method()),
        })
    }
}

/// Fills in the region and the endpoint that belong to the credentials of `access`, where it names none itself. They are
/// part of a source's identity, so they are looked up before anything else.
///
/// # Errors
/// As [`CredentialLoader::load`].
pub fn complete_access(uri: &Uri, mut access: Access) -> Result<Access> {
    if access.credentials.is_none() && access.auth.as_ref().is_none_or(|auth| auth.secret().is_none()) {
        return Ok(access);
    }
    if let (Credentials::Aws(key), Some(given)) = (loader(uri, &access).load()?, access.s3_mut(uri)) {
        given.region = given.region.take().or(key.region);
        given.endpoint = given.endpoint.take().or(key.endpoint);
    }
    Ok(access)
}

/// Reads the secret `name` from the first of `stores` that has it.
///
/// # Errors
/// [`Kind::Refused`] where none has it or one can't be read; the message names the secret and the stores.
pub fn find_secret(stores: &[SecretStore], name: &str) -> Result<Secret> {
    for store in stores {
        if let Some(secret) = read(store, name).map_err(|e| e.context(format!("the secret {name:?}")))? {
            return Ok(secret);
        }
    }
    let searched: Vec<_> = stores.iter().map(|store| format!("not in {store}")).collect();
    let searched = if searched.is_empty() { "no secret store is named".into() } else { searched.join(", ") };
    Err(Error::new(Kind::Refused, format!("no such secret: {name:?} ({searched})")))
}

/// Whether `store` has the secret `name`. The value of a secret in a directory is not read for it.
///
/// # Errors
/// As [`find_secret`].
pub fn has_secret(store: &SecretStore, name: &str) -> Result<bool> {
    match store {
        SecretStore::Directory(directory) => Ok(open_in(directory, name)?.is_some()),
        _ => Ok(read(store, name)?.is_some()),
    }
}

/// Reads a file that holds one secret and nothing else.
///
/// # Errors
/// [`Kind::Refused`] where it can't be read.
pub(crate) fn secret_file(path: &Path) -> Result<Secret> {
    Ok(Secret::new(read_text(open(path)?, path)?))
}

fn read(store: &SecretStore, name: &str) -> Result<Option<Secret>> {
    match store {
        SecretStore::Environment { secrets, .. } => Ok(secrets.get(name)),
        SecretStore::Directory(directory) => match open_in(directory, name)? {
            Some(file) => read_text(file, &directory.join(name)).map(|text| Some(Secret::new(text))),
            None => Ok(None),
        },
        SecretStore::File(path) => read_toml(path, name),
    }
}

/// Opens the file of the secret `name` in a directory. Kubernetes keeps what it mounts behind links that begin with a
/// dot, and replaces all of it at once by a new link, so a path is followed anew each time.
fn open_in(directory: &Path, name: &str) -> Result<Option<File>> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Ok(None);
    }
    let path = directory.join(name);
    match fs::metadata(&path) {
        // Opening a pipe would wait for its writer.
        Ok(meta) if meta.is_file() => open(&path).map(Some),
        Ok(_) => Err(Error::new(Kind::Refused, format!("{} is not a file", path.display()))),
        Err(e) if e.kind() == ErrorKind::NotFound && directory.is_dir() => Ok(None),
        Err(e) => Err(unreadable(&path, e)),
    }
}

/// Reads the secret `name` out of a TOML file, which only its owner may access.
fn read_toml(path: &Path, name: &str) -> Result<Option<Secret>> {
    let file = open(path)?;
    let mode = file.metadata().map_err(|e| unreadable(path, e))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let text = format!(
            "{0} has mode {mode:04o}, but only its owner may have access to a file of secrets; run chmod 600 {0}",
            path.display()
        );
        return Err(Error::new(Kind::Refused, text));
    }
    let text = read_text(file, path)?;
    let invalid = |what: String| Error::new(Kind::Invalid, format!("{}: {what}", path.display()));
    // The parser's own message quotes the line at fault, so only the line's number is shown.
    let table = DeTable::parse(&text).map_err(|e| {
        let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        invalid(format!("line {line} is not TOML"))
    })?;
    match table.get_ref().get(name).map(|value| value.get_ref()) {
        None => Ok(None),
        Some(DeValue::String(text)) => Ok(Some(Secret::new(text.clone()))),
        Some(_) => Err(invalid(format!("{name:?} must be a string; quote it, or put JSON between '''"))),
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| unreadable(path, e))
}

fn read_text(file: File, path: &Path) -> Result<String> {
    let mut text = String::new();
    file.take(MAX_SECRET_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| unreadable(path, e))?;
    if text.len() as u64 > MAX_SECRET_FILE_BYTES {
        let text = format!(
            "{} is larger than {MAX_SECRET_FILE_BYTES} bytes, too large for a secret",
            path.display()
        );
        return Err(Error::new(Kind::Refused, text));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::with(Kind::Refused, format!("cannot read {}", path.display()), error)
}

#[cfg(test)]
mod tests;
