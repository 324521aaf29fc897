//! Credentials of Google's.

use std::path::{Path, PathBuf};

use anyhow::Result;
use bdnfs::source::{GcsAccess, Secret};
use serde::Deserialize;

use super::environment::Environment;

/// Where `gcloud auth application-default login` leaves its credentials, below the home directory.
const DEFAULT: &str = ".config/gcloud/application_default_credentials.json";

/// What is looked at to tell one kind of credentials from another.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: String,
}

/// Gathers what `file` or else the environment has.
pub fn gather(env: &Environment, file: Option<&Path>) -> Result<GcsAccess> {
    let mut gcs = GcsAccess { project: env.first(&["GOOGLE_CLOUD_PROJECT"]), ..GcsAccess::default() };
    let named = env.first(&["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"]).map(PathBuf::from);
    let key = env.secret(&["GOOGLE_SERVICE_ACCOUNT_KEY"]);
    match (file, key, named) {
        (Some(file), _, _) => take(&mut gcs, file)?,
        (None, Some(key), _) => gcs.service_account = Some(key),
        (None, None, Some(file)) => take(&mut gcs, &file)?,
        (None, None, None) => {}
    }
    let given = gcs.service_account.is_some() || gcs.application_credentials.is_some();
    if let Some(host) = env.first(&["STORAGE_EMULATOR_HOST"]) {
        gcs.endpoint = Some(if host.contains("://") { host } else { format!("http://{host}") });
        gcs.anonymous = !given;
    } else if !given {
        let default = env.first(&["HOME"]).map(|home| Path::new(&home).join(DEFAULT));
        gcs.application_credentials = default.filter(|path| path.is_file());
    }
    Ok(gcs)
}

/// Takes what `file` holds: a service account's key itself, of anything else the path.
fn take(gcs: &mut GcsAccess, file: &Path) -> Result<()> {
    let text = super::read(file)?;
    match serde_json::from_str::<Kind>(&text) {
        Ok(kind) if kind.name == "service_account" => gcs.service_account = Some(Secret::new(text)),
        // A daemon has another working directory.
        _ => gcs.application_credentials = Some(std::path::absolute(file)?),
    }
    Ok(())
}
