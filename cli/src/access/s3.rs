//! S3 credentials of the environment: access keys of AWS, Cloudflare R2 and CoreWeave, and the machine's AWS identity.

use std::path::{Path, PathBuf, absolute};

use anyhow::Result;
use bdnfs::auth::load::aws_profile;
use bdnfs::source::{AwsAmbient, AwsProfile, S3Access, Uri};

use super::environment::Environment;

/// The variables of one service, the most specific first.
struct KeyVariables {
    key: &'static str,
    secret: &'static str,
    token: &'static str,
    region: &'static [&'static str],
    endpoint: &'static [&'static str],
}

/// AWS, as its own tools and the S3 libraries read them.
const AWS_VARIABLES: KeyVariables = KeyVariables {
    key: "AWS_ACCESS_KEY_ID",
    secret: "AWS_SECRET_ACCESS_KEY",
    token: "AWS_SESSION_TOKEN",
    region: &["AWS_REGION", "AWS_DEFAULT_REGION"],
    endpoint: &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
};
/// Cloudflare R2, as its documentation names them.
const R2_VARIABLES: KeyVariables = KeyVariables {
    key: "R2_ACCESS_KEY_ID",
    secret: "R2_SECRET_ACCESS_KEY",
    token: "R2_SESSION_TOKEN",
    region: &[],
    endpoint: &["R2_ENDPOINT"],
};
/// CoreWeave AI Object Storage.
const CW_VARIABLES: KeyVariables = KeyVariables {
    key: "CW_ACCESS_KEY_ID",
    secret: "CW_SECRET_ACCESS_KEY",
    token: "CW_SESSION_TOKEN",
    region: &["CW_REGION"],
    endpoint: &["CW_ENDPOINT"],
};

/// Loads the access key, region and endpoint for the service of `uri`. Without a key of its own, a service other than AWS gets
/// that of AWS's variables, which all S3 tools read, but never their region and endpoint.
pub fn load_key(env: &Environment, uri: &Uri) -> S3Access {
    let names = match uri {
        Uri::R2 { .. } => &R2_VARIABLES,
        Uri::Cw { .. } => &CW_VARIABLES,
        _ => &AWS_VARIABLES,
    };
    let own = env.first(&[names.key]).is_some();
    let keys = if own { names } else { &AWS_VARIABLES };
    S3Access {
        access_key_id: env.first(&[keys.key]),
        secret_access_key: env.secret(&[keys.secret]),
        session_token: env.secret(&[keys.token]),
        region: env.first(names.region),
        endpoint: env.first(names.endpoint),
        ..S3Access::default()
    }
}

/// Loads the identity that AWS gives a machine, from the variables that it sets, and the paths of the AWS profiles. `token_file`,
/// where an option names it, is the file of the identity token.
pub fn load_machine(env: &Environment, token_file: Option<&Path>) -> Result<AwsAmbient> {
    let url = env.first(&["AWS_CONTAINER_CREDENTIALS_FULL_URI"]);
    let token = env.first(&["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]);
    let home = env.first(&["HOME"]).map(|home| Path::new(&home).join(".aws"));
    // The agent has another working directory.
    let profile_file = |name: &str, file: &str| {
        let named = env.first(&[name]).map(PathBuf::from);
        named.or_else(|| home.as_ref().map(|home| home.join(file))).map(absolute).transpose()
    };
    let profile = AwsProfile {
        name: env.first(&["AWS_PROFILE"]),
        credentials: profile_file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
        config: profile_file("AWS_CONFIG_FILE", "config")?,
    };
    let identity = token_file.map(absolute).transpose()?;
    Ok(AwsAmbient {
        token_file: identity.or(env.first(&["AWS_WEB_IDENTITY_TOKEN_FILE"]).map(absolute).transpose()?),
        role: env.first(&["AWS_ROLE_ARN"]),
        session: env.first(&["AWS_ROLE_SESSION_NAME"]),
        profile: Some(profile),
        sts: env.first(&["AWS_ENDPOINT_URL_STS"]),
        container: env.first(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]),
        pod: url.zip(token.map(Into::into)),
        metadata: env.first(&["AWS_EC2_METADATA_SERVICE_ENDPOINT"]),
    })
}

/// Region and endpoint of the machine's profile, whatever its keys are. An invalid profile fails later, when its keys are needed.
pub fn profile(machine: &AwsAmbient) -> S3Access {
    let profile = machine.profile.as_ref().and_then(|profile| aws_profile::read(profile).ok().flatten());
    let (region, endpoint) = profile.map_or((None, None), |found| (found.region, found.endpoint));
    S3Access { region, endpoint, ..S3Access::default() }
}
