//! Google Cloud credentials of the environment.

use std::path::{Path, absolute};

use anyhow::Result;
use bdnfs::source::GcsAccess;

use super::environment::Environment;

/// The file of `gcloud auth application-default login`, in the home directory.
const DEFAULT_CREDENTIALS_FILE: &str = ".config/gcloud/application_default_credentials.json";

/// Loads the credentials, and the path of this machine's identity token: `token_file`, else the environment's.
pub fn load(env: &Environment, token_file: Option<&Path>) -> Result<GcsAccess> {
    let file = |names: &[&str]| env.first(names).map(absolute).transpose();
    let token = file(&["GOOGLE_WEB_IDENTITY_TOKEN_FILE"])?;
    let mut gcs = GcsAccess {
        project: env.first(&["GOOGLE_CLOUD_PROJECT"]),
        // The agent has another working directory.
        token_file: token_file.map(absolute).transpose()?.or(token),
        sts: env.first(&["CLOUDSDK_API_ENDPOINT_OVERRIDES_STS"]),
        iam: env.first(&["CLOUDSDK_API_ENDPOINT_OVERRIDES_IAMCREDENTIALS"]),
        service_account: env.secret(&["GOOGLE_SERVICE_ACCOUNT_KEY"]),
        application_credentials: file(&["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"])?,
        ..GcsAccess::default()
    };
    let given = gcs.service_account.is_some() || gcs.application_credentials.is_some();
    if let Some(host) = env.first(&["STORAGE_EMULATOR_HOST"]) {
        gcs.endpoint = Some(if host.contains("://") { host } else { format!("http://{host}") });
        gcs.anonymous = !given;
    } else if !given {
        let default = env.first(&["HOME"]).map(|home| Path::new(&home).join(DEFAULT_CREDENTIALS_FILE));
        gcs.application_credentials = default.filter(|path| path.is_file());
    }
    Ok(gcs)
}
