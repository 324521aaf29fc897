//! Authorization by the identity of the machine: the options for the methods of a configuration's `auth`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bdnfs::source::AuthMethod;

/// The region of AWS's token service where none is named.
const DEFAULT_STS_REGION: &str = "us-east-1";

/// The options for authorization by the identity of the machine.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct AuthArgs {
    /// Authorization by the identity of this machine, without a secret
    #[arg(id = "auth", long, value_enum, value_name = "METHOD", ignore_case = true)]
    #[arg(conflicts_with_all = ["secret", "credentials"])]
    auth: Option<AuthMethodArg>,
    /// ARN of the role to assume (AWS_OIDC, AWS_ASSUME_ROLE)
    #[arg(long, value_name = "ARN", requires = "auth")]
    role: Option<String>,
    /// Email address of the service account to impersonate (GCP_OIDC)
    #[arg(long, value_name = "ADDRESS", requires = "auth")]
    service_account: Option<String>,
    /// Full name of the workload identity provider (GCP_OIDC): projects/.../providers/...
    #[arg(long, value_name = "NAME", requires = "auth")]
    workload_provider: Option<String>,
    /// File with the identity token of this machine. Default: the file that the environment names
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// The methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
enum AuthMethodArg {
    /// Assume an AWS role with the machine's identity token
    AwsOidc,
    /// Assume an AWS role with the machine's AWS credentials
    AwsAssumeRole,
    /// Impersonate a Google service account with the machine's identity token
    GcpOidc,
}

impl AuthArgs {
    /// Whether a method is named.
    pub fn is_given(&self) -> bool {
        self.auth.is_some()
    }

    /// The method that the options name. `region` is that of AWS's token service.
    pub fn method(&self, region: Option<&str>) -> Result<Option<AuthMethod>> {
        let region = region.unwrap_or(DEFAULT_STS_REGION).to_owned();
        Ok(Some(match (self.auth, &self.role, &self.service_account, &self.workload_provider) {
            (None, ..) => return Ok(None),
            (Some(AuthMethodArg::AwsOidc), Some(role), None, None) => {
                AuthMethod::AwsOidc { aws_oidc_role_arn: role.clone(), aws_oidc_region: region }
            }
            (Some(AuthMethodArg::AwsAssumeRole), Some(role), None, None) => AuthMethod::AwsAssumeRole {
                aws_assume_role_arn: role.clone(),
                aws_assume_role_region: region,
            },
            (Some(AuthMethodArg::GcpOidc), None, Some(account), Some(provider)) => AuthMethod::GcpOidc {
                gcp_oidc_service_account: account.clone(),
                gcp_oidc_workload_id_provider: provider.clone(),
            },
            (Some(AuthMethodArg::AwsOidc), ..) => {
                bail!(
                    "--auth AWS_OIDC needs --role, and takes neither --service-account nor --workload-provider"
                )
            }
            (Some(AuthMethodArg::AwsAssumeRole), ..) => {
                bail!(
                    "--auth AWS_ASSUME_ROLE needs --role, and takes neither --service-account nor --workload-provider"
                )
            }
            (Some(AuthMethodArg::GcpOidc), ..) => {
                bail!("--auth GCP_OIDC needs --service-account and --workload-provider, and takes no --role")
            }
        }))
    }
}
