//! Secret stores: directories and files that options and the environment name. No secret is ever an argument.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::auth::load;
use bdnfs::source::{Secret, SecretStore};

/// The prefix of variables that hold secrets. An agent is started without them.
pub const SECRET_VARIABLE_PREFIX: &str = "BDNFS_SECRET_";
/// The variable that names a store, where no option does.
const STORE_VARIABLE: &str = "BDNFS_SECRETS";

/// The options that name secret stores.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct SecretsArgs {
    /// Secret store: a directory with a file per secret, or a TOML file with mode 0600; repeatable. The variable
    /// BDNFS_SECRET_<NAME> takes precedence
    #[arg(long, value_name = "PATH")]
    secrets: Vec<PathBuf>,
}

impl SecretsArgs {
    /// Stores that a configuration names.
    pub fn new(secrets: Vec<PathBuf>) -> Self {
        Self { secrets }
    }

    /// Returns the stores to search for the secret `name`, the environment first. The agent cannot see the environment of a
    /// command, so the secret that it has is sent along.
    pub fn stores_for(&self, name: &str, env: impl Fn(&str) -> Option<OsString>) -> Result<Vec<SecretStore>> {
        let variable = variable(name);
        let text = env(&variable).map(OsString::into_string).transpose();
        let Ok(text) = text else { bail!("environment variable {variable} is not valid UTF-8") };
        let secrets: BTreeMap<_, _> =
            text.map(|text| (name.to_owned(), Secret::new(text))).into_iter().collect();
        let mut stores = vec![SecretStore::Environment { secrets: secrets.into(), variable }];
        stores.extend(self.stores(env)?);
        Ok(stores)
    }

    /// The stores, in the order in which they are searched after the environment.
    pub fn stores(&self, env: impl Fn(&str) -> Option<OsString>) -> Result<Vec<SecretStore>> {
        let named = env(STORE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let paths = if self.secrets.is_empty() { named.into_iter().collect() } else { self.secrets.clone() };
        paths.into_iter().map(store).collect()
    }
}

#[cfg(test)]
impl SecretsArgs {
    /// One store.
    pub fn at(path: &std::path::Path) -> Self {
        Self { secrets: vec![path.to_owned()] }
    }
}

fn store(path: PathBuf) -> Result<SecretStore> {
    // The agent has another working directory.
    let path =
        std::path::absolute(&path).with_context(|| format!("cannot read secrets in {}", path.display()))?;
    let kind =
        std::fs::metadata(&path).with_context(|| format!("cannot read secrets in {}", path.display()))?;
    if kind.is_dir() {
        return Ok(SecretStore::Directory(path));
    }
    if !kind.is_file() {
        bail!("cannot read secrets in {}: neither a directory nor a file", path.display());
    }
    Ok(SecretStore::File(path))
}

/// The variable that holds the secret `name`: in capitals, `_` for all but letters and digits.
pub fn variable(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    SECRET_VARIABLE_PREFIX.chars().chain(name.chars().map(letter)).collect()
}

/// The location of the secret `name`, in words; `None` for a missing one. Reads no value.
pub fn locate(
    name: &str,
    stores: &[SecretStore],
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<String>> {
    let variable = variable(name);
    if env(&variable).is_some() {
        return Ok(Some(format!("environment variable {variable}")));
    }
    for store in stores {
        if load::has_secret(store, name)? {
            return Ok(Some(store.to_string()));
        }
    }
    Ok(None)
}

/// Whether the variables of two secrets have one name.
pub fn share_variable(a: &str, b: &str) -> bool {
    variable(a) == variable(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_of_a_name_is_capitals_and_underscores() {
        assert_eq!(variable("hf_access-token.1"), "BDNFS_SECRET_HF_ACCESS_TOKEN_1");
        assert_eq!(variable("schlüssel"), "BDNFS_SECRET_SCHL_SSEL");
        assert!(share_variable("a-b", "A_B") && !share_variable("a", "b"));
    }

    #[test]
    fn stores_with_an_option_ignore_the_variable() {
        let dir = tempfile::tempdir().expect("directory");
        let env = |name: &str| (name == STORE_VARIABLE).then(|| dir.path().into());
        let here = vec![SecretStore::Directory(dir.path().to_owned())];
        assert_eq!(SecretsArgs::default().stores(env).expect("variable"), here);
        let missing = SecretsArgs { secrets: vec![dir.path().join("none")] };
        assert!(format!("{:#}", missing.stores(env).expect_err("missing")).contains("none"));
    }
}
