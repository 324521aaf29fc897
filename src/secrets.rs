//! Secrets on this machine: by name in the stores that an [`Access`] lists, in a file of their own, or in the profiles of
//! AWS's tools ([`profile`]). They are looked for anew each time, so that a rotated secret is found without opening its
//! source again.

pub mod profile;

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use toml::de::{DeTable, DeValue};

use crate::error::{Error, Kind, Result};
use crate::source::{Access, Auth, AwsRole, Credentials, Gcp, Provider, Secret, SecretStore, Uri};

/// The largest file of secrets that is read, in bytes: a key has a few thousand; what is larger is something else.
const LARGEST: u64 = 1 << 20;

/// What `access` gives to an origin of `uri`.
pub fn provider(uri: &Uri, access: &Access) -> Arc<dyn Provider> {
    Arc::new(Keeper { scheme: uri.scheme().to_owned(), access: access.clone() })
}

#[derive(Debug)]
struct Keeper {
    scheme: String,
    access: Access,
}

impl Provider for Keeper {
    fn get(&self) -> Result<Credentials> {
        let parse = |secret: &Secret| {
            Credentials::parse(&self.scheme, secret).map_err(|e| e.within(self.name().unwrap_or_default()))
        };
        if let Some(path) = &self.access.credentials {
            return parse(&read(path)?);
        }
        let Some(auth) = &self.access.auth else { return Ok(Credentials::Ambient) };
        if !auth.serves(&self.scheme) {
            let text = format!("{} gives no credentials for {}://", auth.method(), self.scheme);
            return Err(Error::new(Kind::Refused, text));
        }
        Ok(match auth.clone() {
            Auth::Secret { auth_secret_name } => parse(&find(&self.access.secrets, &auth_secret_name)?)?,
            Auth::AwsOidc { aws_oidc_role_arn: arn, aws_oidc_region: region } => {
                Credentials::AwsRole(AwsRole { arn, region, web_identity: true })
            }
            Auth::AwsAssumeRole { aws_assume_role_arn: arn, aws_assume_role_region: region } => {
                Credentials::AwsRole(AwsRole { arn, region, web_identity: false })
            }
            Auth::GcpOidc { gcp_oidc_service_account, gcp_oidc_workload_id_provider } => {
                Credentials::Gcp(Gcp::Workload {
                    service_account: gcp_oidc_service_account,
                    provider: gcp_oidc_workload_id_provider,
                })
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
            None => format!("the authorisation by {}", auth.method()),
        })
    }
}

/// `access` with the region and the endpoint that belong to its credentials, where it says nothing of them itself. They
/// are part of what tells one source from another, so they are looked up before anything else, and once.
///
/// # Errors
/// As [`Provider::get`].
pub fn place(uri: &Uri, mut access: Access) -> Result<Access> {
    if access.credentials.is_none() && access.auth.as_ref().is_none_or(|auth| auth.secret().is_none()) {
        return Ok(access);
    }
    if let (Credentials::Aws(key), Some(given)) = (provider(uri, &access).get()?, access.s3_mut(uri)) {
        given.region = given.region.take().or(key.region);
        given.endpoint = given.endpoint.take().or(key.endpoint);
    }
    Ok(access)
}

/// The secret `name`, from the first of `stores` that has it.
///
/// # Errors
/// [`Kind::Refused`] where none has it or one can't be read; the message names the secret and the stores.
pub fn find(stores: &[SecretStore], name: &str) -> Result<Secret> {
    for store in stores {
        if let Some(secret) = get(store, name).map_err(|e| e.within(format!("the secret {name:?}")))? {
            return Ok(secret);
        }
    }
    let places: Vec<_> = stores.iter().map(|store| format!("not in {store}")).collect();
    let places = if places.is_empty() { "no store of secrets was named".into() } else { places.join(", ") };
    Err(Error::new(Kind::Refused, format!("there is no secret {name:?}: {places}")))
}

/// Whether `store` has the secret `name`. The value of a secret in a directory is not read for it.
///
/// # Errors
/// As [`find`].
pub fn has(store: &SecretStore, name: &str) -> Result<bool> {
    match store {
        SecretStore::Directory(directory) => Ok(file(directory, name)?.is_some()),
        _ => Ok(get(store, name)?.is_some()),
    }
}

/// The secret that is all there is in a file.
///
/// # Errors
/// [`Kind::Refused`] where it can't be read.
pub(crate) fn read(path: &Path) -> Result<Secret> {
    Ok(Secret::new(text(open(path)?, path)?))
}

fn get(store: &SecretStore, name: &str) -> Result<Option<Secret>> {
    match store {
        SecretStore::Environment { secrets, .. } => Ok(secrets.get(name).cloned()),
        SecretStore::Directory(directory) => match file(directory, name)? {
            Some(file) => text(file, &directory.join(name)).map(|text| Some(Secret::new(text))),
            None => Ok(None),
        },
        SecretStore::File(path) => table(path, name),
    }
}

/// Opens the file of the secret `name`. Kubernetes keeps what it mounts behind links that begin with a dot, and replaces
/// all of it at once by a new link, so a path is followed anew each time.
fn file(directory: &Path, name: &str) -> Result<Option<File>> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Ok(None);
    }
    let path = directory.join(name);
    match fs::metadata(&path) {
        // Opening a pipe would wait for whoever writes it.
        Ok(meta) if meta.is_file() => open(&path).map(Some),
        Ok(_) => Err(Error::new(Kind::Refused, format!("{} is no file", path.display()))),
        Err(e) if e.kind() == ErrorKind::NotFound && directory.is_dir() => Ok(None),
        Err(e) => Err(unreadable(&path, e)),
    }
}

/// Reads a text out of a TOML file.
fn table(path: &Path, name: &str) -> Result<Option<Secret>> {
    let file = open(path)?;
    let mode = file.metadata().map_err(|e| unreadable(path, e))?.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let text = format!(
            "{0} has the mode {mode:04o}, and others than its owner must have no access to secrets: chmod 600 {0}",
            path.display()
        );
        return Err(Error::new(Kind::Refused, text));
    }
    let text = text(file, path)?;
    let wrong = |what: String| Error::new(Kind::Invalid, format!("{}: {what}", path.display()));
    // The parser's own message quotes the line at fault, so only its number is told.
    let table = DeTable::parse(&text).map_err(|e| {
        let line = e.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        wrong(format!("line {line} is no TOML"))
    })?;
    match table.get_ref().get(name).map(|value| value.get_ref()) {
        None => Ok(None),
        Some(DeValue::String(text)) => Ok(Some(Secret::new(text.clone()))),
        Some(_) => Err(wrong(format!("{name:?} must be a text; quote it, or put JSON between '''"))),
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|e| unreadable(path, e))
}

fn text(file: File, path: &Path) -> Result<String> {
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|e| unreadable(path, e))?;
    if text.len() as u64 > LARGEST {
        let text = format!("{} has more than {LARGEST} bytes, so it is something else", path.display());
        return Err(Error::new(Kind::Refused, text));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::with(Kind::Refused, format!("{} can't be read", path.display()), error)
}

#[cfg(test)]
mod tests;
