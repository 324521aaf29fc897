//! Access keys of AWS, Cloudflare R2 and CoreWeave, and what a machine has of AWS's own.

use bdnfs::source::{AwsMachine, S3Access};

use super::environment::Environment;

/// The variables of one service, the most particular first.
pub struct Names {
    key: &'static str,
    secret: &'static str,
    token: &'static str,
    region: &'static [&'static str],
    endpoint: &'static [&'static str],
}

/// What the AWS tools and the S3 libraries read.
pub const AWS: Names = Names {
    key: "AWS_ACCESS_KEY_ID",
    secret: "AWS_SECRET_ACCESS_KEY",
    token: "AWS_SESSION_TOKEN",
    region: &["AWS_REGION", "AWS_DEFAULT_REGION"],
    endpoint: &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
};
/// For Cloudflare R2, whose documents name the keys so.
pub const R2: Names = Names {
    key: "R2_ACCESS_KEY_ID",
    secret: "R2_SECRET_ACCESS_KEY",
    token: "R2_SESSION_TOKEN",
    region: &[],
    endpoint: &["R2_ENDPOINT"],
};
/// For CoreWeave AI Object Storage.
pub const CW: Names = Names {
    key: "CW_ACCESS_KEY_ID",
    secret: "CW_SECRET_ACCESS_KEY",
    token: "CW_SESSION_TOKEN",
    region: &["CW_REGION"],
    endpoint: &["CW_ENDPOINT"],
};

/// A key with its service's place. Without one of its own, a service that isn't AWS gets the key of AWS's variables,
/// which all S3 tools read, but never their region and endpoint.
pub fn key(env: &Environment, names: &Names) -> S3Access {
    let own = env.first(&[names.key]).is_some();
    let keys = if own { names } else { &AWS };
    S3Access {
        access_key_id: env.first(&[keys.key]),
        secret_access_key: env.secret(&[keys.secret]),
        session_token: env.secret(&[keys.token]),
        region: env.first(names.region),
        endpoint: env.first(names.endpoint),
        anonymous: false,
    }
}

/// What AWS gives to those that run at it, told by the variables that it sets.
pub fn machine(env: &Environment) -> AwsMachine {
    let url = env.first(&["AWS_CONTAINER_CREDENTIALS_FULL_URI"]);
    let token = env.first(&["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"]);
    AwsMachine {
        token_file: env.first(&["AWS_WEB_IDENTITY_TOKEN_FILE"]).map(Into::into),
        role: env.first(&["AWS_ROLE_ARN"]),
        session: env.first(&["AWS_ROLE_SESSION_NAME"]),
        container: env.first(&["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"]),
        pod: url.zip(token.map(Into::into)),
        metadata: env.first(&["AWS_EC2_METADATA_SERVICE_ENDPOINT"]),
    }
}
