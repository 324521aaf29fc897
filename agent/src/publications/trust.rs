//! Trust: which sources a request may name, and which credentials it gets.
//!
//! The author of a pod, an annotation or a Slurm script may name a source and their own secret, and nothing that leads
//! elsewhere or uses the identity of the node. The table stands in `docs/containers.md`.

use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::{Access, AuthMethod, AzureAccess, GcsAccess, S3Access, SecretStore, Uri};

use crate::api::publication::PublicationRequest;
use crate::mounts::REQUEST_SECRETS;
use crate::real_path::real_path;

/// The schemes of sources that authors other than administrators may name by default. These are services whose hosts the author
/// does not choose.
pub const DEFAULT_INLINE_SOURCES: [&str; 6] = ["hf", "s3", "gs", "r2", "azure", "cw"];

/// Makes sure that the author of `request` may ask for it. `inline_sources` are the schemes and prefixes of
/// sources that any author may name. Touches the local disk.
///
/// # Errors
/// [`Kind::Refused`] with the key that only an administrator may set.
pub fn check(request: &PublicationRequest, uri: &Uri, inline_sources: &[String]) -> Result<()> {
    if request.trusted {
        return Ok(());
    }
    let refused = |key: &str| {
        let text =
            format!("{key}: only an administrator may set it, not the author of a pod, container or job");
        Err(Error::new(Kind::Refused, text))
    };
    if !inline_sources.iter().any(|allowed| is_within(uri, allowed)) {
        let text = format!(
            "source: {uri} is not one of the sources that everybody may name ({})",
            inline_sources.join(", ")
        );
        return Err(Error::new(Kind::Refused, text));
    }
    if request.mirror.is_some() {
        return refused("mirror");
    }
    if request.uid.is_some() || request.gid.is_some() {
        return refused(if request.uid.is_some() { "uid" } else { "gid" });
    }
    admin_key(&request.access).map_or(Ok(()), refused)
}

/// Whether `uri` is of the scheme `allowed`, or at or below the URI `allowed`.
fn is_within(uri: &Uri, allowed: &str) -> bool {
    if !allowed.contains("://") {
        return uri.scheme() == allowed;
    }
    // A link must not lead out of what everybody may name.
    if let (Uri::File(path), Ok(Uri::File(directory))) = (uri, allowed.parse()) {
        return real_path(path).zip(real_path(&directory)).is_some_and(|(path, all)| path.starts_with(all));
    }
    let text = uri.to_string();
    let rest = text.strip_prefix(allowed.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// The first key of `access` that only an administrator may set.
fn admin_key(access: &Access) -> Option<&'static str> {
    // All fields by name, so that a new one is thought of here.
    let Access {
        s3,
        hub,
        allow_http,
        r2,
        cw,
        gcs,
        azure,
        aws,
        virtual_host,
        requester_pays,
        authorities,
        escape,
        credentials,
        auth,
        secrets,
        redirect_hosts,
        executable: _,
        unpinned: _,
        explicit_only: _,
        beneath: _,
    } = access;
    let GcsAccess { application_credentials, token_file, sts, iam, endpoint: gcs_endpoint, project, .. } =
        gcs.clone().unwrap_or_default();
    let AzureAccess { federated_token_file, authority, identity_endpoint, endpoint: azure_endpoint, .. } =
        azure.clone().unwrap_or_default();
    let buckets = || [s3, r2, cw].into_iter().flatten();
    let endpoints = [gcs_endpoint, azure_endpoint, sts, iam, authority, identity_endpoint];
    let has_endpoint = buckets().any(|S3Access { endpoint, .. }| endpoint.is_some())
        || hub.as_ref().is_some_and(|hub| hub.endpoint.is_some())
        || endpoints.iter().any(Option::is_some);
    let files = [credentials, &application_credentials, &token_file, &federated_token_file];
    // A token that came with the request is its author's.
    let own_identity = match auth {
        None | Some(AuthMethod::Secret { .. }) => true,
        Some(AuthMethod::AwsPodOidc { aws_pod_oidc_sts, .. }) => aws_pod_oidc_sts.is_none(),
        Some(AuthMethod::GcpPodOidc { gcp_pod_oidc_sts, gcp_pod_oidc_iam, .. }) => {
            gcp_pod_oidc_sts.is_none() && gcp_pod_oidc_iam.is_none()
        }
        Some(AuthMethod::AzurePodOidc { azure_pod_oidc_authority, .. }) => azure_pod_oidc_authority.is_none(),
        Some(AuthMethod::AwsOidc { .. } | AuthMethod::GcpOidc { .. } | AuthMethod::AwsAssumeRole { .. }) => {
            false
        }
    };
    let node_identity = !own_identity || aws.is_some();
    let [has_region, has_file, has_store] = [
        buckets().any(|S3Access { region, .. }| region.is_some()),
        files.into_iter().any(Option::is_some),
        secrets.iter().any(|store| !matches!(store, SecretStore::Environment { .. })),
    ];
    let keys = [
        (has_endpoint, "endpoint"),
        (has_region, "region"),
        (authorities.is_some(), "caFile"),
        (*allow_http, "allowHttp"),
        (!redirect_hosts.is_empty(), "redirectHosts"),
        (has_file, "credentials"),
        (node_identity, "auth"),
        (has_store, "secrets"),
        (*escape, "badNames"),
        (virtual_host.is_some(), "bucketStyle"),
        (*requester_pays, "requesterPays"),
        (project.is_some(), "project"),
    ];
    keys.into_iter().find(|(is_set, _)| *is_set).map(|(_, key)| key)
}

/// The access of `request`, with its own secrets. An untrusted one gets nothing else, and reads local sources below
/// `inline_sources` only, which [`check`] has found it to lie in, though a link may have been put in its way since.
///
/// # Errors
/// [`Kind::Invalid`] where several secrets came and none is named.
pub fn access(request: &PublicationRequest, inline_sources: &[String]) -> Result<Access> {
    let mut access = request.access.clone();
    access.explicit_only = !request.trusted;
    let directory = |allowed: &String| match allowed.parse() {
        Ok(Uri::File(directory)) => Some(directory),
        _ => None,
    };
    access.beneath = match request.trusted || inline_sources.iter().any(|allowed| allowed == "file") {
        true => Vec::new(),
        false => inline_sources.iter().filter_map(directory).collect(),
    };
    if access.auth.is_none() {
        let mut names = request.secrets.keys();
        match (names.next(), names.next()) {
            (Some(name), None) => access.auth = Some(AuthMethod::Secret { auth_secret_name: name.clone() }),
            (Some(_), Some(_)) => {
                let names = request.secrets.keys().cloned().collect::<Vec<_>>().join(", ");
                let text = format!("secretKey: name one of the secrets that came with the request: {names}");
                return Err(Error::new(Kind::Invalid, text));
            }
            (None, _) => {}
        }
    }
    if !request.secrets.is_empty() {
        let (secrets, variable) = (request.secrets.clone().into(), REQUEST_SECRETS.to_owned());
        access.secrets.insert(0, SecretStore::Environment { secrets, variable });
    }
    Ok(access)
}

#[cfg(test)]
mod tests {
    use bdnfs::source::{HubAccess, Secret};

    use super::*;

    fn request(json: &str) -> PublicationRequest {
        serde_json::from_str(json).expect("a request")
    }

    fn check_of(request: &PublicationRequest) -> Result<()> {
        let uri = request.source.expose().parse().expect("a URI");
        check(request, &uri, &DEFAULT_INLINE_SOURCES.map(str::to_owned))
    }

    #[test]
    fn untrusted_request_with_an_admin_key_is_refused_by_name() {
        for (key, access) in [
            ("endpoint", r#"{"s3": {"endpoint": "http://169.254.169.254"}}"#),
            ("endpoint", r#"{"hub": {"endpoint": "https://elsewhere"}}"#),
            ("endpoint", r#"{"gcs": {"sts": "https://elsewhere"}}"#),
            ("endpoint", r#"{"azure": {"identity_endpoint": "http://x"}}"#),
            ("region", r#"{"s3": {"region": "eu-west-1"}}"#),
            ("caFile", r#"{"authorities": "-----BEGIN CERTIFICATE-----"}"#),
            ("allowHttp", r#"{"allow_http": true}"#),
            ("credentials", r#"{"credentials": "/etc/shadow"}"#),
            ("credentials", r#"{"gcs": {"token_file": "/etc/shadow"}}"#),
            ("auth", r#"{"aws": {"metadata": "http://x"}}"#),
            (
                "auth",
                r#"{"auth": {"auth_method": "AWS_OIDC", "aws_oidc_role_arn": "a", "aws_oidc_region": "r"}}"#,
            ),
            (
                "auth",
                r#"{"auth": {"auth_method": "AWS_POD_OIDC", "aws_pod_oidc_role_arn": "a", "aws_pod_oidc_region": "r",
                    "aws_pod_oidc_token": "token", "aws_pod_oidc_sts": "https://elsewhere"}}"#,
            ),
            (
                "auth",
                r#"{"auth": {"auth_method": "GCP_POD_OIDC", "gcp_pod_oidc_workload_id_provider": "p", "gcp_pod_oidc_token": "token",
                    "gcp_pod_oidc_sts": "https://elsewhere"}}"#,
            ),
            (
                "auth",
                r#"{"auth": {"auth_method": "GCP_POD_OIDC", "gcp_pod_oidc_workload_id_provider": "p", "gcp_pod_oidc_token": "token",
                    "gcp_pod_oidc_iam": "https://elsewhere"}}"#,
            ),
            (
                "auth",
                r#"{"auth": {"auth_method": "AZURE_POD_OIDC", "azure_pod_oidc_tenant_id": "t", "azure_pod_oidc_client_id": "c",
                    "azure_pod_oidc_token": "token", "azure_pod_oidc_authority": "https://elsewhere"}}"#,
            ),
            ("secrets", r#"{"secrets": [{"directory": "/run/secrets"}]}"#),
            ("badNames", r#"{"escape": true}"#),
            ("requesterPays", r#"{"requester_pays": true}"#),
        ] {
            let text = format!(r#"{{"source": "s3://bucket", "access": {access}}}"#);
            let mut request = request(&text);
            let error = check_of(&request).expect_err(key);
            assert_eq!(error.kind(), Kind::Refused);
            assert!(error.to_string().starts_with(&format!("{key}: ")), "{access}: {error}");
            request.trusted = true;
            check_of(&request).expect("an administrator may");
        }
        for (key, fields) in [
            ("uid", r#""uid": 0"#),
            ("gid", r#""gid": 0"#),
            ("mirror", r#""mirror": {"url": "s3://m", "tenant": "t", "access": {}}"#),
        ] {
            let error = check_of(&request(&format!(r#"{{"source": "s3://bucket", {fields}}}"#)));
            assert!(error.expect_err(key).to_string().starts_with(&format!("{key}: ")));
        }
    }

    #[test]
    fn untrusted_request_may_have_an_identity_by_its_own_token_only() {
        for auth in [
            r#""AWS_POD_OIDC", "aws_pod_oidc_role_arn": "a", "aws_pod_oidc_region": "r", "aws_pod_oidc_token": "token""#,
            r#""GCP_POD_OIDC", "gcp_pod_oidc_workload_id_provider": "p", "gcp_pod_oidc_token": "token""#,
            r#""AZURE_POD_OIDC", "azure_pod_oidc_tenant_id": "t", "azure_pod_oidc_client_id": "c",
                "azure_pod_oidc_token": "token""#,
        ] {
            let one = request(&format!(
                r#"{{"source": "s3://bucket", "secrets": {{"token": "hush"}},
                    "access": {{"auth": {{"auth_method": {auth}}}}}}}"#
            ));
            check_of(&one).expect("its own");
            let given = access(&one, &[]).expect("access");
            assert!(given.explicit_only && given.auth == one.access.auth);
            let (name, secrets) = given.given_secret().expect("the token");
            assert_eq!((name, secrets.get("token")), ("token", Some(Secret::new("hush"))));
            assert!(!format!("{given:?}").contains("hush"));
        }
    }

    #[test]
    fn untrusted_request_for_a_local_or_web_source_is_refused() {
        for source in ["file:///etc", "/etc", "https://169.254.169.254/latest"] {
            let mut request = request(&format!(r#"{{"source": {source:?}}}"#));
            let error = check_of(&request).expect_err(source);
            assert!(error.to_string().starts_with("source: "), "{error}");
            request.trusted = true;
            check_of(&request).expect("an administrator may");
        }
        check_of(&request(
            r#"{"source": "hf://o/m", "allow": ["*"], "access": {"s3": {"anonymous": true}}}"#,
        ))
        .expect("everybody may");
    }

    #[test]
    fn inline_source_matches_a_scheme_or_a_path_prefix() {
        let is = |uri: &str, allowed| is_within(&uri.parse().expect("a URI"), allowed);
        assert!(is("s3://models/llama", "s3") && is("s3://models/llama", "s3://models/"));
        assert!(!is("s3://models-secret/x", "s3://models") && !is("hf://o/m", "s3"));
    }

    #[test]
    fn inline_directory_holds_what_lies_in_it_and_not_where_links_lead() {
        let home = tempfile::tempdir().expect("a directory");
        let path = |below: &str| home.path().join(below);
        for directory in ["public/model", "private/model"] {
            std::fs::create_dir_all(path(directory)).expect("made");
        }
        std::os::unix::fs::symlink(path("private"), path("public/link")).expect("a link");
        std::os::unix::fs::symlink(path("public"), path("other")).expect("a link");
        let uri = |below: &str| format!("file://{}", path(below).display());
        let is = |below: &str, allowed: &str| is_within(&uri(below).parse().expect("a URI"), &uri(allowed));
        for below in ["public", "public/model", "public/missing", "other/model"] {
            assert!(is(below, "public"), "{below}");
        }
        std::os::unix::fs::symlink(path("private/later"), path("public/dangling")).expect("a link");
        for below in [
            "public/link",
            "public/link/model",
            "public/link/missing",
            "public/dangling",
            "public/dangling/x",
            "public/../private",
            "public/missing/../../private",
            "private",
            "public-too",
        ] {
            assert!(!is(below, "public"), "{below}");
        }
        assert!(is("public/model", "other"), "the directory itself may be a link");
    }

    #[test]
    fn access_of_an_untrusted_request_has_only_its_own_secret() {
        let one = request(r#"{"source": "hf://o/m", "secrets": {"token": "hf_x"}}"#);
        let given = access(&one, &[]).expect("access");
        assert!(given.explicit_only && given.secrets.len() == 1);
        assert_eq!(given.auth.as_ref().and_then(AuthMethod::secret), Some("token"));
        let none = access(&request(r#"{"source": "hf://o/m"}"#), &[]).expect("access");
        assert_eq!((none.explicit_only, none.hub, none.secrets.len()), (true, None::<HubAccess>, 0));
        let allowed = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
        for (sources, beneath) in [
            (["hf", "file:///srv/public"], vec![std::path::PathBuf::from("/srv/public")]),
            (["hf", "file"], vec![]),
        ] {
            assert_eq!(access(&one, &allowed(&sources)).expect("access").beneath, beneath);
        }
        let two = request(r#"{"source": "hf://o/m", "secrets": {"a": "1", "b": "2"}}"#);
        let error = access(&two, &[]).expect_err("which?");
        assert!(error.to_string().starts_with("secretKey: "), "{error}");
    }
}
