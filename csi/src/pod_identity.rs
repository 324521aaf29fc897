//! The identity that a pod's own token is exchanged for: a role of AWS, an identity of Google, an application of Entra ID.
//!
//! The author of a pod chooses the identity; the cloud decides whether it trusts the pod's service account. A token is sent to the
//! service that it was issued for, and nowhere else.

use std::collections::BTreeMap;

use bdnfs::source::{AuthMethod, Secret, Uri};
use bdnfs_agent::api::attributes::{Attributes, InvalidAttribute};
use bdnfs_agent::api::publication::PublicationRequest;

use crate::pod_token::PodTokens;

/// The attribute with the ARN of a role of AWS.
const ROLE_KEY: &str = "roleArn";
/// The attribute with the name of Google's workload identity provider.
const PROVIDER_KEY: &str = "workloadIdentityProvider";
/// The attribute with the address of Google's service account that is impersonated.
const ACCOUNT_KEY: &str = "serviceAccount";
/// The attribute with the ID of an application or a managed identity of Entra ID.
const CLIENT_KEY: &str = "clientId";
/// The attribute with the ID of its tenant.
const TENANT_KEY: &str = "tenantId";
/// The attribute with the URL of another STS than that of AWS or Google.
pub const STS_KEY: &str = "stsEndpoint";
/// The attribute with the URL of another service for tokens of service accounts than that of Google.
pub const IAM_KEY: &str = "iamEndpoint";
/// The attribute with the URL of another Entra ID than the public one.
pub const AUTHORITY_KEY: &str = "authorityHost";
/// The attributes that name an identity, each with those that it may have beside it.
const IDENTITY_KEYS: [(&str, &[&str]); 3] = [
    (ROLE_KEY, &[STS_KEY]),
    (PROVIDER_KEY, &[ACCOUNT_KEY, STS_KEY, IAM_KEY]),
    (CLIENT_KEY, &[TENANT_KEY, AUTHORITY_KEY]),
];

/// The audience of tokens for AWS.
const AWS_AUDIENCE: &str = "sts.amazonaws.com";
/// The audiences of tokens for Entra ID: in the public cloud, in that of the US government, and in China.
const AZURE_AUDIENCES: [&str; 3] =
    ["api://AzureADTokenExchange", "api://AzureADTokenExchangeUSGov", "api://AzureADTokenExchangeChina"];
/// The host that names of Google's workload identity providers begin with, as they do in audiences with a scheme before it.
const PROVIDER_PREFIX: &str = "//iam.googleapis.com/";
/// The partitions of AWS, as ARNs name them, each with the region whose token service is asked where no region is given; its keys
/// serve in all regions of the partition.
const PARTITIONS: [(&str, &str); 3] =
    [("aws", "us-east-1"), ("aws-cn", "cn-north-1"), ("aws-us-gov", "us-gov-west-1")];
/// The longest ARN of a role, in bytes, as the token service takes it.
const MAX_ARN_BYTES: usize = 2048;
/// The longest address of a service account, in bytes, and the longest part of a name of Google's.
const MAX_ADDRESS_BYTES: usize = 254;
const MAX_NAME_PART_BYTES: usize = 63;
/// The lengths of the parts of a UUID, in digits.
const UUID_PARTS: [usize; 5] = [8, 4, 4, 4, 12];

/// An identity that the pod's token is exchanged for.
pub struct PodIdentity {
    /// The attribute that names it.
    key: &'static str,
    auth: AuthMethod,
    /// The name of the token among the secrets of the request.
    token_name: String,
    token: Secret,
}

/// The service account of a pod, as the kubelet tells it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceAccount<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The account's name.
    pub name: &'a str,
}

impl ServiceAccount<'_> {
    /// The name of its tokens. It is a part of the identity: what an identity may read depends on whose token is exchanged, so that
    /// pods of several accounts share nothing.
    fn token_name(self) -> String {
        format!("pod-token.{}.{}", self.namespace, self.name)
    }
}

impl PodIdentity {
    /// Whether an attribute names one. `has` says which attributes there are.
    pub fn is_named(has: impl Fn(&str) -> bool) -> bool {
        IDENTITY_KEYS.iter().any(|(key, _)| has(key))
    }

    /// Takes the identity out of `attributes`, if they have one, for a pod of `account`. `has_secret`: whether the volume has a
    /// secret, too.
    ///
    /// # Errors
    /// The attribute that can't be taken, as where the kubelet sent no token.
    pub fn take(
        attributes: &mut Attributes,
        account: ServiceAccount<'_>,
        tokens: Option<PodTokens>,
        has_secret: bool,
    ) -> Result<Option<Self>, InvalidAttribute> {
        let named = IDENTITY_KEYS.iter().find(|(key, _)| attributes.has(key));
        let fitting = named.map_or(&[][..], |(_, others)| *others);
        for (_, others) in IDENTITY_KEYS {
            let unfit = |other: &&&str| !fitting.contains(*other) && attributes.has(other);
            if let Some(other) = others.iter().find(unfit) {
                let fits = |(_, others): &&(_, &[&str])| others.contains(other);
                let keys: Vec<_> = IDENTITY_KEYS.iter().filter(fits).map(|(key, _)| *key).collect();
                return Err(InvalidAttribute::new(
                    other,
                    format!("has no effect without {}", keys.join(" or ")),
                ));
            }
        }
        let Some(&(key, _)) = named else { return Ok(None) };
        if let Some((other, _)) =
            IDENTITY_KEYS.iter().find(|(other, _)| *other != key && attributes.has(other))
        {
            return Err(InvalidAttribute::new(other, format!("cannot be used with {key}")));
        }
        let token_name = account.token_name();
        let (auth, audiences) = read(key, attributes, &token_name)?;
        let invalid = |text: String| Err(InvalidAttribute::new(key, text));
        if has_secret || attributes.has("secretKey") {
            return invalid("cannot be used with a secret; remove one of them".to_owned());
        }
        match tokens.and_then(|tokens| tokens.find(&audiences)) {
            Some(token) => Ok(Some(Self { key, auth, token_name, token })),
            None => invalid(format!(
                "the kubelet sent no token of the pod for {}; the CSIDriver has to ask for it (podTokens and \
                 podTokenAudiences of the chart)",
                audiences[0]
            )),
        }
    }

    /// Returns a sample of the kubelet's tokens for the identity in `attributes`, for volumes that have no pod yet.
    pub fn sample(attributes: impl IntoIterator<Item = (String, String)>) -> Option<(String, String)> {
        let mut attributes: Attributes = attributes.into_iter().collect();
        let &(key, _) = IDENTITY_KEYS.iter().find(|(key, _)| attributes.has(key))?;
        let (_, audiences) = read(key, &mut attributes, "").ok()?;
        audiences.first().map(|audience| PodTokens::sample(audience))
    }

    /// The authorization by the identity.
    pub fn auth(&self) -> AuthMethod {
        self.auth.clone()
    }

    /// The secrets of the request: the token.
    pub fn secrets(&self) -> BTreeMap<String, Secret> {
        [(self.token_name.clone(), self.token.clone())].into()
    }

    /// `request`, with the identity and the token; the token service of AWS is that of the source's region where it names one.
    ///
    /// # Errors
    /// Where the source is not in the identity's cloud.
    pub fn add_to(self, mut request: PublicationRequest) -> Result<PublicationRequest, InvalidAttribute> {
        let uri: Uri = request.source.expose().parse().map_err(|e| InvalidAttribute::new("source", e))?;
        if !self.auth.serves(uri.scheme()) {
            let text = format!("cannot be used with {}://", uri.scheme());
            return Err(InvalidAttribute::new(self.key, text));
        }
        let access = &mut request.access;
        let region = access.s3.as_ref().and_then(|s3| s3.region.clone());
        if let (Some(region), Some(AuthMethod::AwsPodOidc { aws_pod_oidc_region, .. })) =
            (region, &mut access.auth)
        {
            *aws_pod_oidc_region = region;
        }
        Ok(request)
    }
}

/// The identity that the attribute `key` names, by the token called `token_name`, and the audiences of which its cloud takes a
/// token, the usual one first.
fn read(
    key: &'static str,
    attributes: &mut Attributes,
    token_name: &str,
) -> Result<(AuthMethod, Vec<String>), InvalidAttribute> {
    let invalid = |key: &str, text: &str| InvalidAttribute::new(key, text);
    let named = attributes.take(key).unwrap_or_default();
    let (token, sts) = (token_name.to_owned(), attributes.take(STS_KEY));
    Ok(match key {
        ROLE_KEY => {
            let region = default_region(&named);
            let region = region.ok_or_else(|| invalid(key, "expected arn:aws:iam::ACCOUNT:role/NAME"))?;
            let auth = AuthMethod::AwsPodOidc {
                aws_pod_oidc_role_arn: named,
                aws_pod_oidc_region: region.to_owned(),
                aws_pod_oidc_token: token,
                aws_pod_oidc_sts: sts,
            };
            (auth, vec![AWS_AUDIENCE.to_owned()])
        }
        PROVIDER_KEY => {
            let expected = "expected //iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/\
                            PROVIDER";
            let provider = provider_name(&named).ok_or_else(|| invalid(key, expected))?;
            let account = attributes.take(ACCOUNT_KEY);
            if !account.as_deref().is_none_or(is_service_account) {
                return Err(invalid(ACCOUNT_KEY, "expected NAME@PROJECT.iam.gserviceaccount.com"));
            }
            // Without other audiences in its settings, a provider takes its own name, with or without a scheme.
            let audiences = vec![format!("https:{provider}"), provider.clone()];
            let auth = AuthMethod::GcpPodOidc {
                gcp_pod_oidc_workload_id_provider: provider,
                gcp_pod_oidc_service_account: account,
                gcp_pod_oidc_token: token,
                gcp_pod_oidc_sts: sts,
                gcp_pod_oidc_iam: attributes.take(IAM_KEY),
            };
            (auth, audiences)
        }
        _ => {
            let uuid = "expected a UUID, 00000000-0000-0000-0000-000000000000";
            let tenant = attributes.take(TENANT_KEY).ok_or_else(|| invalid(TENANT_KEY, "is missing"))?;
            let auth = AuthMethod::AzurePodOidc {
                azure_pod_oidc_tenant_id: uuid_of(&tenant).ok_or_else(|| invalid(TENANT_KEY, uuid))?,
                azure_pod_oidc_client_id: uuid_of(&named).ok_or_else(|| invalid(key, uuid))?,
                azure_pod_oidc_token: token,
                azure_pod_oidc_authority: attributes.take(AUTHORITY_KEY),
            };
            (auth, AZURE_AUDIENCES.map(str::to_owned).to_vec())
        }
    })
}

/// The region of a role's partition whose token service is asked; `None` where `arn` is not that of a role.
fn default_region(arn: &str) -> Option<&'static str> {
    let parts: Vec<_> = arn.splitn(6, ':').collect();
    let ["arn", partition, "iam", "", account, role] = parts[..] else { return None };
    let name = role.strip_prefix("role/").unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    let known = PARTITIONS.iter().find(|(name, _)| *name == partition);
    known.filter(|_| is_number(account) && is_name && arn.len() <= MAX_ARN_BYTES).map(|(_, region)| *region)
}

/// The full name of a workload identity provider, of which users write scheme and host or not; `None` where `text` is no such name.
fn provider_name(text: &str) -> Option<String> {
    let path = text.strip_prefix("https:").unwrap_or(text);
    let path = path.strip_prefix(PROVIDER_PREFIX).unwrap_or(text);
    let parts: Vec<_> = path.split('/').collect();
    let ["projects", number, "locations", "global", "workloadIdentityPools", pool, "providers", provider] =
        parts[..]
    else {
        return None;
    };
    let valid = is_number(number) && is_label(pool) && is_label(provider);
    valid.then(|| format!("{PROVIDER_PREFIX}{path}"))
}

fn is_service_account(text: &str) -> bool {
    let Some((name, domain)) = text.split_once('@') else { return false };
    let project = domain.strip_suffix(".gserviceaccount.com").unwrap_or_default();
    text.len() <= MAX_ADDRESS_BYTES && is_label(name) && project.split('.').all(is_label)
}

/// Whether `text` is a part of a name of Google's: lower case, as in the name of a host.
fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME_PART_BYTES).contains(&text.len()) && text.bytes().all(plain)
}

fn is_number(text: &str) -> bool {
    (1..=MAX_NAME_PART_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `text` as a UUID in lower case, so that one identity has one name; `None` where it is none.
fn uuid_of(text: &str) -> Option<String> {
    let parts: Vec<_> = text.split('-').collect();
    let valid = parts.iter().map(|part| part.len()).eq(UUID_PARTS)
        && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()));
    valid.then(|| text.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
