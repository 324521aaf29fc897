//! Tests of identities for the tokens of pods.

use std::collections::HashMap;

use serde_json::json;
use tonic::{Code, Status};

use super::*;
use crate::TrustPolicy;
use crate::pod_token::TOKENS_KEY;
use crate::volume_context::{VolumeContext, VolumeOptions};

/// The name of the token of a pod that the kubelet tells nothing of.
const TOKEN: &str = "pod-token..";
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
        aws_pod_oidc_token: TOKEN.to_owned(),
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
        assert_eq!(made.secrets[TOKEN].expose(), "hush", "the one for AWS");
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
fn token_of_another_service_account_is_another_identity() {
    let auth = |namespace: &str, name: &str| {
        let context = map(&[
            ("source", "s3://b"),
            (ROLE_KEY, ARN),
            (TOKENS_KEY, TOKENS),
            ("csi.storage.k8s.io/pod.namespace", namespace),
            ("csi.storage.k8s.io/serviceAccount.name", name),
        ]);
        let policy = TrustPolicy { pod_tokens: true, ..TrustPolicy::default() };
        match VolumeContext::new(context, HashMap::new()).request("v", &policy).expect("valid") {
            VolumeOptions::Source(request) => request.access.auth,
            VolumeOptions::Written(request) => panic!("{request:?}"),
        }
    };
    assert_eq!(auth("team", "models"), auth("team", "models"));
    for (namespace, name) in [("team", "other"), ("another", "models")] {
        assert_ne!(auth("team", "models"), auth(namespace, name));
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
        ("true", &[("source", "s3://b"), (ROLE_KEY, ARN)][..], &[][..], "roleArn: the kubelet sent no token"),
        (
            "true",
            &[("source", "s3://b"), (ROLE_KEY, ARN)],
            &[(TOKENS_KEY, "hush")],
            "roleArn: the kubelet sent no",
        ),
        ("true", &[("source", "hf://o/m"), (ROLE_KEY, ARN)], &[tokens], "roleArn: cannot be used with hf://"),
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
            "stsEndpoint: has no effect without roleArn or workloadIdentityProvider",
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

const PROVIDER: &str =
    "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/k8s";
const ACCOUNT: &str = "models@project.iam.gserviceaccount.com";
const UUID: &str = "0a1b2c3d-0000-4000-8000-0123456789ab";

/// Returns what a kubelet sends where it was asked for a token for `audience`.
fn tokens_for(audience: &str) -> (&'static str, String) {
    (TOKENS_KEY, json!({audience: {"token": "hush"}, "sts.amazonaws.com": {"token": "of AWS"}}).to_string())
}

#[test]
fn attribute_workload_identity_provider_makes_a_request_with_the_token_for_that_provider() {
    let auth = |account: Option<&str>, services: Option<&str>| {
        Some(AuthMethod::GcpPodOidc {
            gcp_pod_oidc_workload_id_provider: PROVIDER.to_owned(),
            gcp_pod_oidc_service_account: account.map(str::to_owned),
            gcp_pod_oidc_token: TOKEN.to_owned(),
            gcp_pod_oidc_sts: services.map(str::to_owned),
            gcp_pod_oidc_iam: services.map(str::to_owned),
        })
    };
    let named = [("source", "gs://b/p"), (PROVIDER_KEY, PROVIDER)];
    for audience in [format!("https:{PROVIDER}"), PROVIDER.to_owned()] {
        let (key, tokens) = tokens_for(&audience);
        let made = request("true", &named, &[(key, &tokens)]).expect("valid");
        assert_eq!((&made.access.auth, made.secrets[TOKEN].expose()), (&auth(None, None), "hush"));
        assert!(!made.trusted && made.secrets.len() == 1 && !format!("{made:?}").contains("hush"));
        // Without its host, as Google's own tools take it.
        let short = [named[0], (PROVIDER_KEY, &PROVIDER[PROVIDER_PREFIX.len()..]), (ACCOUNT_KEY, ACCOUNT)];
        let made = request("true", &short, &[(key, &tokens)]).expect("valid");
        assert_eq!(made.access.auth, auth(Some(ACCOUNT), None));
        let url = "https://services.example.org";
        let admin = [&short[..], &[(STS_KEY, url), (IAM_KEY, url)]].concat();
        let made = request("false", &admin, &[(key, &tokens)]).expect("an administrator's");
        assert_eq!(made.access.auth, auth(Some(ACCOUNT), Some(url)));
        for endpoint in [STS_KEY, IAM_KEY] {
            let inline = [&short[..], &[(endpoint, url)]].concat();
            let error = request("true", &inline, &[(key, &tokens)]).expect_err(endpoint);
            assert_eq!(error.code(), Code::PermissionDenied, "{error}");
        }
    }
    let (key, tokens) = tokens_for(&format!("https:{PROVIDER}-2"));
    let error = request("true", &named, &[(key, &tokens)]).expect_err("the token is for another provider");
    let said = format!(
        "volume attribute {PROVIDER_KEY}: the kubelet sent no token of the pod for https:{PROVIDER}; "
    );
    assert!(error.message().starts_with(&said), "{error}");
}

#[test]
fn attributes_client_id_and_tenant_id_make_a_request_with_the_token_for_entra_id() {
    let auth = |authority: Option<&str>| {
        Some(AuthMethod::AzurePodOidc {
            azure_pod_oidc_tenant_id: UUID.to_owned(),
            azure_pod_oidc_client_id: UUID.to_owned(),
            azure_pod_oidc_token: TOKEN.to_owned(),
            azure_pod_oidc_authority: authority.map(str::to_owned),
        })
    };
    let (key, tokens) = tokens_for(AZURE_AUDIENCES[0]);
    let upper = UUID.to_uppercase();
    let named = [("source", "azure://a/c"), (CLIENT_KEY, UUID), (TENANT_KEY, &upper)];
    let made = request("true", &named, &[(key, &tokens)]).expect("valid");
    assert_eq!((&made.access.auth, made.secrets[TOKEN].expose()), (&auth(None), "hush"));
    let url = "https://login.example.org";
    let admin = [&named[..], &[(AUTHORITY_KEY, url)]].concat();
    let made = request("false", &admin, &[(key, &tokens)]).expect("an administrator's");
    assert_eq!(made.access.auth, auth(Some(url)));
    let error = request("true", &admin, &[(key, &tokens)]).expect_err("an administrator's");
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    let error = request("true", &named, &[(TOKENS_KEY, TOKENS)]).expect_err("no token");
    assert!(error.message().contains("no token of the pod for api://AzureADTokenExchange; "), "{error}");
}

#[test]
fn identity_with_a_hostile_or_wrong_value_is_refused_by_name() {
    let provider = |pool: &str| PROVIDER.replace("pool/", &format!("{pool}/"));
    let long = "a".repeat(64);
    let hostile = ["", "..", "a/b", "a?b", "a#b", "a%2fb", "a b", "a\nb", "a:b", "A", "é", &long];
    let google = |key, value: String| {
        let mut attributes = vec![("source", "gs://b".to_owned()), (PROVIDER_KEY, PROVIDER.to_owned())];
        attributes.retain(|(known, _)| *known != key);
        attributes.push((key, value));
        (attributes, key, format!("https:{PROVIDER}"))
    };
    let azure = |key, value: &str| {
        let mut attributes =
            vec![("source", "azure://a/c".into()), (CLIENT_KEY, UUID.into()), (TENANT_KEY, UUID.into())];
        attributes.retain(|(known, _): &(&str, String)| *known != key);
        attributes.push((key, value.to_owned()));
        (attributes, key, AZURE_AUDIENCES[0].to_owned())
    };
    let mut cases = Vec::new();
    for part in hostile {
        cases.push(google(PROVIDER_KEY, provider(part)));
        cases.push(google(ACCOUNT_KEY, format!("{part}@project.iam.gserviceaccount.com")));
        cases.push(google(ACCOUNT_KEY, format!("a@{part}.iam.gserviceaccount.com")));
    }
    for name in [
        "projects/one/locations/global/workloadIdentityPools/p/providers/k",
        "projects/1/locations/eu/workloadIdentityPools/p/providers/k",
        "https://elsewhere.example.org/projects/1/locations/global/workloadIdentityPools/p/providers/k",
        "//iam.googleapis.com//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
    ] {
        cases.push(google(PROVIDER_KEY, name.to_owned()));
    }
    for address in ["a", "a@example.org", "a@gserviceaccount.com", "a@b@c.iam.gserviceaccount.com"] {
        cases.push(google(ACCOUNT_KEY, address.to_owned()));
    }
    for id in [
        "common",
        "contoso.onmicrosoft.com",
        "..",
        &UUID.replace('-', ""),
        &format!("{UUID}/x"),
        &UUID.replace('a', "g"),
        &UUID.replace("0a1b2c3d", "../../%2f"),
        &format!("{UUID}\n"),
    ] {
        cases.push(azure(CLIENT_KEY, id));
        cases.push(azure(TENANT_KEY, id));
    }
    for (attributes, key, audience) in cases {
        let attributes: Vec<_> = attributes.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let (tokens_key, tokens) = tokens_for(&audience);
        let error = request("true", &attributes, &[(tokens_key, &tokens)]).expect_err(key);
        assert_eq!(error.code(), Code::InvalidArgument, "{attributes:?}: {error}");
        let said = format!("volume attribute {key}: expected ");
        assert!(error.message().starts_with(&said), "{attributes:?}: {error}");
        assert!(!error.message().contains(['\n', '%']), "{error}");
    }
}

#[test]
fn identity_beside_what_it_cannot_have_is_refused_by_name() {
    let identities = [(PROVIDER_KEY, PROVIDER), (CLIENT_KEY, UUID), (TENANT_KEY, UUID), (ROLE_KEY, ARN)];
    for (source, keys, words) in [
        ("gs://b", &[ROLE_KEY, PROVIDER_KEY][..], "workloadIdentityProvider: cannot be used with roleArn"),
        ("gs://b", &[PROVIDER_KEY, CLIENT_KEY], "clientId: cannot be used with workloadIdentityProvider"),
        ("gs://b", &[PROVIDER_KEY, TENANT_KEY], "tenantId: has no effect without clientId"),
        ("azure://a/c", &[TENANT_KEY], "tenantId: has no effect without clientId"),
        ("azure://a/c", &[CLIENT_KEY], "tenantId: is missing"),
        ("s3://b", &[PROVIDER_KEY], "workloadIdentityProvider: cannot be used with s3://"),
        ("gs://b", &[CLIENT_KEY, TENANT_KEY], "clientId: cannot be used with gs://"),
    ] {
        let mut attributes = vec![("source", source)];
        attributes.extend(identities.iter().filter(|(key, _)| keys.contains(key)));
        let tokens = json!({
            (AZURE_AUDIENCES[0]): {"token": "hush"}, (PROVIDER): {"token": "hush"}, (AWS_AUDIENCE): {"token": "hush"},
        });
        let error = request("true", &attributes, &[(TOKENS_KEY, &tokens.to_string())]).expect_err(words);
        assert_eq!(error.message(), format!("volume attribute {words}"));
    }
    for (key, value, without) in [
        (ACCOUNT_KEY, ACCOUNT, "workloadIdentityProvider"),
        (IAM_KEY, "https://h", "workloadIdentityProvider"),
        (AUTHORITY_KEY, "https://h", "clientId"),
    ] {
        let error = request("false", &[("source", "gs://b"), (key, value)], &[]).expect_err(key);
        assert_eq!(error.message(), format!("volume attribute {key}: has no effect without {without}"));
    }
    let (key, tokens) = tokens_for(PROVIDER);
    let attributes = [("source", "gs://b"), (PROVIDER_KEY, PROVIDER)];
    let error = request("true", &attributes, &[(key, &tokens), ("a", "hush")]).expect_err("both");
    assert!(error.message().ends_with(": cannot be used with a secret; remove one of them"), "{error}");
    let error = request("true", &[&attributes[..], &[("anonymous", "true")]].concat(), &[(key, &tokens)]);
    assert!(error.expect_err("both").message().starts_with("volume attribute anonymous: "));
}
