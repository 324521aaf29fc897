//! Access keys of AWS, Cloudflare R2 and CoreWeave, and what a machine has of AWS's own.

use std::path::{Path, PathBuf, absolute};

use anyhow::Result;
use bdnfs::auth::load::aws_profile;
use bdnfs::source::{AwsAmbient, AwsProfile, S3Access, Uri};

use super::environment::Environment;

/// The variables of one service, the most particular first.
struct Names {
    key: &'static str,
    secret: &'static str,
    token: &'static str,
    region: &'static [&'static str],
    endpoint: &'static [&'static str],
}

/// What the AWS tools and the S3 libraries read.
const AWS: Names = Names {
    key: "AWS_ACCESS_KEY_ID",
    secret: "AWS_SECRET_ACCESS_KEY",
    token: "AWS_SESSION_TOKEN",
    region: &["AWS_REGION", "AWS_DEFAULT_REGION"],
    endpoint: &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
};
/// For Cloudflare R2, whose documents name the keys so.
const R2: Names = Names {
    key: "R2_ACCESS_KEY_ID",
    secret: "R2_SECRET_ACCESS_KEY",
    token: "R2_SESSION_TOKEN",
    region: &[],
    endpoint: &["R2_ENDPOINT"],
};
/// For CoreWeave AI Object Storage.
const CW: Names = Names {
    key: "CW_ACCESS_KEY_ID",
    secret: "CW_SECRET_ACCESS_KEY",
    token: "CW_SESSION_TOKEN",
    region: &["CW_REGION"],
    endpoint: &["CW_ENDPOINT"],
};

/// A key with the place of the service of `uri`. Without one of its own, a service that isn't AWS gets the key of AWS's
/// variables, which all S3 tools read, but never their region and endpoint.
pub fn key(env: &Environment, uri: &Uri) -> S3Access {
    let names = match uri {
        Uri::R2 { .. } => &R2,
        Uri::Cw { .. } => &CW,
        _ => &AWS,
    };
    let own = env.first(&[names.key]).is_some();
    let keys = if own { names } else { &AWS };
    S3Access {
        access_key_id: env.first(&[keys.key]),
        secret_access_key: env.secret(&[keys.secret]),
        session_token: env.secret(&[keys.token]),
        region: env.first(names.region),
        endpoint: env.first(names.endpoint),
        ..S3Access::default()
    }
}

/// What AWS gives to those that run at it, told by the variables that it sets; and where its tools keep their profiles.
/// The file of the identity token is `token_file`, where a flag names it.
pub fn machine(env: &Environment, token_file: Option<&Path>) -> Result<AwsAmbient> {
    let url = env.first(&["AWS_CONTAINER_CREDENTIALS_FULL_URI"]);
    let token = env.first(&["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]);
    let home = env.first(&["HOME"]).map(|home| Path::new(&home).join(".aws"));
    // A daemon has another working directory.
    let kept = |name: &str, file: &str| {
        let named = env.first(&[name]).map(PathBuf::from);
        named.or_else(|| home.as_ref().map(|home| home.join(file))).map(absolute).transpose()
    };
    let profile = AwsProfile {
        name: env.first(&["AWS_PROFILE"]),
        credentials: kept("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
        config: kept("AWS_CONFIG_FILE", "config")?,
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

/// The place that the profile of a machine names. What is wrong with it, whoever needs its keys says.
pub fn profile(machine: &AwsAmbient) -> S3Access {
    let profile = machine.profile.as_ref().and_then(|profile| aws_profile::read(profile).ok().flatten());
    let (region, endpoint) = profile.map_or((None, None), |found| (found.region, found.endpoint));
    S3Access { region, endpoint, ..S3Access::default() }
}
