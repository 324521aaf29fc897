//! The pod's own token, with which a role of AWS is assumed for its volume.
//!
//! The kubelet asks for a token of the pod's service account, for an audience that the CSIDriver names, and brings a new one before
//! that expires. It is sent to the token service that it was issued for, and nowhere else.

use std::collections::{BTreeMap, HashMap};

use bdnfs::source::{AuthMethod, Secret, Uri};
use bdnfs_agent::api::attributes::{Attributes, InvalidAttribute};
use bdnfs_agent::api::publication::PublicationRequest;
use serde_json::{Value, json};

/// The attribute with the ARN of the role.
pub const ROLE_KEY: &str = "roleArn";
/// The attribute with the URL of another token service than that of AWS.
const STS_KEY: &str = "stsEndpoint";
/// The key of the tokens: among the secrets where the CSIDriver asks for that (1.35), else among the attributes.
const TOKENS_KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// The audience of tokens for AWS.
const AWS_AUDIENCE: &str = "sts.amazonaws.com";
/// The partitions of AWS, as ARNs name them, each with the region whose token service is asked where no region is given; its keys
/// serve in all regions of the partition.
const PARTITIONS: [(&str, &str); 3] =
    [("aws", "us-east-1"), ("aws-cn", "cn-north-1"), ("aws-us-gov", "us-gov-west-1")];
/// The longest ARN of a role, in bytes, as the token service takes it.
const MAX_ARN_BYTES: usize = 2048;
/// The name of the token among the secrets of a request.
const TOKEN_NAME: &str = "pod-token";

/// The tokens that the kubelet sends for a pod, not read yet.
pub struct PodTokens(Secret);

impl PodTokens {
    /// Takes them out of a request's attributes and secrets: the author's attributes and secrets are what is left.
    pub fn take(
        context: &mut HashMap<String, String>,
        secrets: &mut HashMap<String, String>,
    ) -> Option<Self> {
        let in_context = context.remove(TOKENS_KEY);
        secrets.remove(TOKENS_KEY).or(in_context).map(|text| Self(Secret::new(text)))
    }

    /// A secret as the kubelet sends it, with an empty token, for volumes that have no pod yet.
    pub fn sample() -> (String, String) {
        (TOKENS_KEY.to_owned(), json!({AWS_AUDIENCE: {"token": ""}}).to_string())
    }

    /// The token for `audience`. Parse errors are dropped: their text may contain a token.
    fn find(&self, audience: &str) -> Option<Secret> {
        let tokens: Value = serde_json::from_str(self.0.expose()).ok()?;
        tokens.get(audience)?.get("token")?.as_str().map(Secret::new)
    }
}

/// A role that is assumed with the pod's token.
pub struct PodRole {
    arn: String,
    /// The region whose token service is asked.
    region: &'static str,
    sts: Option<String>,
    token: Secret,
}

impl PodRole {
    /// Takes the role out of `attributes`, if they have one. `has_secret`: whether the volume has a secret, too.
    ///
    /// # Errors
    /// The attribute that can't be taken, as where the kubelet sent no token.
    pub fn take(
        attributes: &mut Attributes,
        tokens: Option<PodTokens>,
        has_secret: bool,
    ) -> Result<Option<Self>, InvalidAttribute> {
        let sts = attributes.take(STS_KEY);
        let invalid = |text: &str| Err(InvalidAttribute::new(ROLE_KEY, text));
        let Some(arn) = attributes.take(ROLE_KEY) else {
            let text = "has no effect without roleArn";
            return if sts.is_some() { Err(InvalidAttribute::new(STS_KEY, text)) } else { Ok(None) };
        };
        let Some(region) = default_region(&arn) else {
            return invalid("expected arn:aws:iam::ACCOUNT:role/NAME");
        };
        if has_secret || attributes.has("secretKey") {
            return invalid("cannot be used with a secret; remove one of them");
        }
        match tokens.and_then(|tokens| tokens.find(AWS_AUDIENCE)) {
            Some(token) => Ok(Some(Self { arn, region, sts, token })),
            None => invalid(
                "the kubelet sent no token of the pod for sts.amazonaws.com; the CSIDriver has to ask for it (podTokens of \
                 the chart)",
            ),
        }
    }

    /// The authorization by the role.
    pub fn auth(&self) -> AuthMethod {
        AuthMethod::AwsPodOidc {
            aws_pod_oidc_role_arn: self.arn.clone(),
            aws_pod_oidc_region: self.region.to_owned(),
            aws_pod_oidc_token: TOKEN_NAME.to_owned(),
            aws_pod_oidc_sts: self.sts.clone(),
        }
    }

    /// The secrets of the request: the token.
    pub fn secrets(&self) -> BTreeMap<String, Secret> {
        [(TOKEN_NAME.to_owned(), self.token.clone())].into()
    }

    /// `request`, with the role and the token, whose token service is that of the source's region where it names one.
    ///
    /// # Errors
    /// Where the source is not in S3.
    pub fn add_to(self, mut request: PublicationRequest) -> Result<PublicationRequest, InvalidAttribute> {
        let uri: Uri = request.source.expose().parse().map_err(|e| InvalidAttribute::new("source", e))?;
        if !self.auth().serves(uri.scheme()) {
            let text = format!("cannot be used with {}://", uri.scheme());
            return Err(InvalidAttribute::new(ROLE_KEY, text));
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

/// The region of a role's partition whose token service is asked; `None` where `arn` is not that of a role.
fn default_region(arn: &str) -> Option<&'static str> {
    let parts: Vec<_> = arn.splitn(6, ':').collect();
    let ["arn", partition, "iam", "", account, role] = parts[..] else { return None };
    let is_account = !account.is_empty() && account.bytes().all(|byte| byte.is_ascii_digit());
    let name = role.strip_prefix("role/").unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
    let known = PARTITIONS.iter().find(|(name, _)| *name == partition);
    known.filter(|_| is_account && is_name && arn.len() <= MAX_ARN_BYTES).map(|(_, region)| *region)
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::*;
    use crate::TrustPolicy;
    use crate::volume_context::{VolumeContext, VolumeOptions};

    const ARN: &str = "arn:aws:iam::1:role/r";
    const TOKENS: &str = r#"{"sts.amazonaws.com": {"token": "hush", "expirationTimestamp": "2030-01-01T00:00:00Z"},
        "vault": {"token": "of another service"}}"#;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn role(arn: &str, region: &str, sts: Option<&str>) -> AuthMethod {
        AuthMethod::AwsPodOidc {
            aws_pod_oidc_role_arn: arn.to_owned(),
            aws_pod_oidc_region: region.to_owned(),
            aws_pod_oidc_token: TOKEN_NAME.to_owned(),
            aws_pod_oidc_sts: sts.map(str::to_owned),
        }
    }

    fn request(
        ephemeral: &str,
        attributes: &[(&str, &str)],
        secrets: &[(&str, &str)],
    ) -> Result<PublicationRequest, Status> {
        let mut context = map(attributes);
        context.insert("csi.storage.k8s.io/ephemeral".to_owned(), ephemeral.to_owned());
        let policy = TrustPolicy { pod_tokens: true, ..TrustPolicy::default() };
        let made = VolumeContext::new(context, map(secrets)).request("v", &policy)?;
        match made {
            VolumeOptions::Source(request) => Ok(*request),
            VolumeOptions::Written(request) => panic!("{request:?}"),
        }
    }

    #[test]
    fn attribute_role_arn_makes_a_request_with_the_token_of_the_pod() {
        let own = [("source", "s3://b/p"), (ROLE_KEY, ARN)];
        let tokens = [(TOKENS_KEY, TOKENS)];
        // As kubelets before 1.35 send it, and as later ones do.
        for (context, secrets) in [(&[&own[..], &tokens].concat()[..], &[][..]), (&own, &tokens)] {
            let made = request("true", context, secrets).expect("valid");
            assert_eq!(made.secrets.len(), 1);
            assert_eq!(made.secrets[TOKEN_NAME].expose(), "hush", "the one for AWS");
            assert!(!made.trusted && !format!("{made:?}").contains("hush"));
            assert_eq!(made.access.auth, Some(role(ARN, "us-east-1", None)));
        }
        let admin = [("region", "eu-west-1"), (STS_KEY, "https://sts.example.org")];
        let made = request("false", &[&own[..], &admin].concat(), &tokens).expect("an administrator's");
        assert_eq!(made.access.auth, Some(role(ARN, "eu-west-1", Some("https://sts.example.org"))));
        // Another partition of AWS has token services of its own.
        for (partition, region) in PARTITIONS {
            let arn = format!("arn:{partition}:iam::111122223333:role/a/path/r");
            let made = request("true", &[("source", "s3://b"), (ROLE_KEY, &arn)], &tokens).expect("valid");
            assert_eq!(made.access.auth, Some(role(&arn, region, None)));
        }
    }

    #[test]
    fn token_that_no_kubelet_sends_is_not_taken() {
        let context = map(&[("source", "s3://b"), (ROLE_KEY, ARN), (TOKENS_KEY, TOKENS)]);
        let error = VolumeContext::new(context, HashMap::new()).request("v", &TrustPolicy::default());
        let said = error.expect_err("its author wrote it").message().to_owned();
        assert!(said.starts_with("volume attribute roleArn: the kubelet sent no token"), "{said}");
    }

    #[test]
    fn attribute_role_arn_that_is_no_arn_of_a_role_is_refused() {
        let long = format!("arn:aws:iam::1:role/{}", "r".repeat(MAX_ARN_BYTES));
        for arn in [
            "admin",
            "arn:x:role/",
            "arn:aws:iam::1:role/",
            "arn:aws:iam::1:user/u",
            "arn:aws:iam:::role/r",
            "arn:aws:iam::one:role/r",
            "arn:aws:s3::1:role/r",
            "arn:aws:iam:eu:1:role/r",
            "arn:elsewhere:iam::1:role/r",
            "arn:aws:iam::1:role/r\n",
            &long,
        ] {
            let attributes = [("source", "s3://b"), (ROLE_KEY, arn)];
            let error = request("true", &attributes, &[(TOKENS_KEY, TOKENS)]).expect_err(arn);
            assert!(error.message().starts_with("volume attribute roleArn: expected arn:aws:iam"), "{error}");
        }
    }

    #[test]
    fn token_of_the_pod_is_no_secret_of_its_author() {
        let tokens = (TOKENS_KEY, TOKENS);
        // Kubelets send it with every volume.
        for (attributes, secrets) in [
            (&[("source", "s3://b"), ("anonymous", "true")][..], &[tokens][..]),
            (&[("source", "hf://o/m"), tokens], &[]),
            (&[("source", "hf://o/m")], &[tokens, ("own", "x")]),
        ] {
            let made = request("true", attributes, secrets).expect("valid");
            assert!(made.access.auth.is_none() && made.secrets.keys().all(|key| key == "own"));
        }
        let error = request("true", &[("source", "s3://b"), ("secretKey", TOKENS_KEY)], &[tokens]);
        assert!(error.expect_err("no secret").message().starts_with("volume attribute secretKey: "));
    }

    #[test]
    fn attribute_role_arn_that_cannot_serve_is_refused_by_name_without_the_token() {
        let tokens = (TOKENS_KEY, TOKENS);
        for (ephemeral, attributes, secrets, words) in [
            (
                "true",
                &[("source", "s3://b"), (ROLE_KEY, ARN)][..],
                &[][..],
                "roleArn: the kubelet sent no token",
            ),
            (
                "true",
                &[("source", "s3://b"), (ROLE_KEY, ARN)],
                &[(TOKENS_KEY, "hush")],
                "roleArn: the kubelet sent no",
            ),
            (
                "true",
                &[("source", "hf://o/m"), (ROLE_KEY, ARN)],
                &[tokens],
                "roleArn: cannot be used with hf://",
            ),
            (
                "true",
                &[("source", "s3://b"), (ROLE_KEY, ARN)],
                &[tokens, ("a", "hush")],
                "roleArn: cannot be used with a s",
            ),
            (
                "true",
                &[("source", "s3://b"), (ROLE_KEY, ARN), ("anonymous", "true")],
                &[tokens],
                "anonymous: cannot",
            ),
            (
                "false",
                &[("source", "s3://b"), (STS_KEY, "https://h")],
                &[tokens],
                "stsEndpoint: has no effect",
            ),
        ] {
            let error = request(ephemeral, attributes, secrets).expect_err(words);
            let said = error.message();
            assert!(error.code() == Code::InvalidArgument && !said.contains("hush"), "{error}");
            assert!(said.starts_with(&format!("volume attribute {words}")), "{words}: {said}");
        }
        let elsewhere = [("source", "s3://b"), (ROLE_KEY, ARN), (STS_KEY, "http://169.254.169.254")];
        let error = request("true", &elsewhere, &[tokens]).expect_err("an administrator's");
        assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    }
}
