//! Where secrets are kept, as the command line and the environment say. No secret is ever an argument, only its place.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::auth::load;
use bdnfs::source::{Secret, SecretStore};

/// What the variables that hold secrets begin with. A daemon is started without them.
pub const PREFIX: &str = "BDNFS_SECRET_";
/// The variable that names a store, where no option does.
const STORE: &str = "BDNFS_SECRETS";

/// Where secrets are kept.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Directory with a file for each secret, or a TOML file that only you may read; may be repeated. Before them, the
    /// secret NAME is looked for in BDNFS_SECRET_<NAME>
    #[arg(long, value_name = "PATH")]
    secrets: Vec<PathBuf>,
}

impl Args {
    /// Places that were found elsewhere.
    pub fn new(secrets: Vec<PathBuf>) -> Self {
        Self { secrets }
    }

    /// Where the secret `name` is looked for: in the environment, which nobody else can see and whose secret is therefore
    /// taken along, then in the stores behind it.
    pub fn holding(&self, name: &str, env: impl Fn(&str) -> Option<OsString>) -> Result<Vec<SecretStore>> {
        let variable = variable(name);
        let text = env(&variable).map(OsString::into_string).transpose();
        let Ok(text) = text else { bail!("the variable {variable} is no UTF-8") };
        let secrets = text.map(|text| (name.to_owned(), Secret::new(text))).into_iter().collect();
        let mut stores = vec![SecretStore::Environment { secrets, variable }];
        stores.extend(self.stores(env)?);
        Ok(stores)
    }

    /// The stores behind the environment, in the order in which they are asked.
    pub fn stores(&self, env: impl Fn(&str) -> Option<OsString>) -> Result<Vec<SecretStore>> {
        let named = env(STORE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let paths = if self.secrets.is_empty() { named.into_iter().collect() } else { self.secrets.clone() };
        paths.into_iter().map(store).collect()
    }
}

#[cfg(test)]
impl Args {
    /// One store.
    pub fn of(path: &std::path::Path) -> Self {
        Self { secrets: vec![path.to_owned()] }
    }
}

fn store(path: PathBuf) -> Result<SecretStore> {
    // A daemon has another working directory.
    let path = std::path::absolute(&path).with_context(|| format!("secrets {}", path.display()))?;
    let kind = std::fs::metadata(&path).with_context(|| format!("secrets {}", path.display()))?;
    if kind.is_dir() {
        return Ok(SecretStore::Directory(path));
    }
    if !kind.is_file() {
        bail!("secrets {}: neither a directory nor a file", path.display());
    }
    Ok(SecretStore::File(path))
}

/// The variable that holds the secret `name`: in capitals, `_` for all but letters and digits.
pub fn variable(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    PREFIX.chars().chain(name.chars().map(letter)).collect()
}

/// Where the secret `name` is, for a person; `None` where it is nowhere. No value is looked at.
pub fn whereabouts(
    name: &str,
    stores: &[SecretStore],
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<String>> {
    let variable = variable(name);
    if env(&variable).is_some() {
        return Ok(Some(format!("the variable {variable}")));
    }
    for store in stores {
        if load::has_secret(store, name)? {
            return Ok(Some(store.to_string()));
        }
    }
    Ok(None)
}

/// Whether two names share a variable: whoever sets it sets it for both.
pub fn alike(a: &str, b: &str) -> bool {
    variable(a) == variable(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_made_of_names() {
        assert_eq!(variable("hf_access-token.1"), "BDNFS_SECRET_HF_ACCESS_TOKEN_1");
        assert_eq!(variable("schlüssel"), "BDNFS_SECRET_SCHL_SSEL");
        assert!(alike("a-b", "A_B") && !alike("a", "b"));
    }

    #[test]
    fn an_option_goes_before_the_variable() {
        let dir = tempfile::tempdir().expect("directory");
        let env = |name: &str| (name == STORE).then(|| dir.path().into());
        let here = vec![SecretStore::Directory(dir.path().to_owned())];
        assert_eq!(Args::default().stores(env).expect("variable"), here);
        let missing = Args { secrets: vec![dir.path().join("none")] };
        assert!(format!("{:#}", missing.stores(env).expect_err("missing")).contains("none"));
    }
}
