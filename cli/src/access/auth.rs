//! Authorisations without a secret, as the command line names them: those of a configuration's `auth`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bdnfs::source::AuthMethod;

/// The region whose token service is asked where nobody names another.
const REGION: &str = "us-east-1";

/// How a source is authorised by what this machine is.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// How this machine is let in without a secret
    #[arg(id = "auth", long, value_enum, value_name = "METHOD", ignore_case = true)]
    #[arg(conflicts_with_all = ["secret", "credentials"])]
    auth: Option<Method>,
    /// ARN of the role that is taken on (AWS_OIDC, AWS_ASSUME_ROLE)
    #[arg(long, value_name = "ARN", requires = "auth")]
    role: Option<String>,
    /// Address of the service account that is taken on (GCP_OIDC)
    #[arg(long, value_name = "ADDRESS", requires = "auth")]
    service_account: Option<String>,
    /// Full name of the workload identity provider (GCP_OIDC): projects/../providers/..
    #[arg(long, value_name = "NAME", requires = "auth")]
    workload_provider: Option<String>,
    /// File of this machine's identity token, where the environment doesn't name it
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// By what a machine is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
enum Method {
    /// A role of AWS, for the machine's identity token
    AwsOidc,
    /// A role of AWS, for the machine's AWS credentials
    AwsAssumeRole,
    /// A service account of Google's, for the machine's identity token
    GcpOidc,
}

impl Args {
    /// What was asked for. AWS's token service is asked in `region`.
    pub fn method(&self, region: Option<&str>) -> Result<Option<AuthMethod>> {
        let region = region.unwrap_or(REGION).to_owned();
        Ok(Some(match (self.auth, &self.role, &self.service_account, &self.workload_provider) {
            (None, ..) => return Ok(None),
            (Some(Method::AwsOidc), Some(role), None, None) => {
                AuthMethod::AwsOidc { aws_oidc_role_arn: role.clone(), aws_oidc_region: region }
            }
            (Some(Method::AwsAssumeRole), Some(role), None, None) => AuthMethod::AwsAssumeRole {
                aws_assume_role_arn: role.clone(),
                aws_assume_role_region: region,
            },
            (Some(Method::GcpOidc), None, Some(account), Some(provider)) => AuthMethod::GcpOidc {
                gcp_oidc_service_account: account.clone(),
                gcp_oidc_workload_id_provider: provider.clone(),
            },
            (Some(Method::AwsOidc), ..) => {
                bail!("--auth AWS_OIDC needs --role, and nothing else of its kind")
            }
            (Some(Method::AwsAssumeRole), ..) => {
                bail!("--auth AWS_ASSUME_ROLE needs --role, and nothing else of its kind")
            }
            (Some(Method::GcpOidc), ..) => {
                bail!("--auth GCP_OIDC needs --service-account and --workload-provider")
            }
        }))
    }
}
