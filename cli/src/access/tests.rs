use std::io::Write;

use bdnfs::source::Secret;

use super::*;

fn uri(text: &str) -> Uri {
    text.parse().expect("a URI")
}

fn load(args: &AccessArgs, text: &str, env: impl Fn(&str) -> Option<String>) -> Access {
    try_load(args, text, env).expect("valid")
}

fn try_load(args: &AccessArgs, text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Access> {
    args.load_from(&uri(text), args.auth_method()?, |name| env(name).map(OsString::from))
}

fn s3(args: &AccessArgs) -> S3Access {
    load(args, "s3://b", env).s3.expect("set")
}

fn env(name: &str) -> Option<String> {
    let value = match name {
        "AWS_ACCESS_KEY_ID" => "env-id",
        "AWS_SECRET_ACCESS_KEY" => "env-secret",
        "AWS_SESSION_TOKEN" => "env-token",
        "AWS_REGION" => "",
        "AWS_DEFAULT_REGION" => "env-region",
        "AWS_ENDPOINT" => "http://least",
        "AWS_ENDPOINT_URL" => "http://env",
        ALLOW_HTTP => "true",
        _ => return None,
    };
    Some(value.to_owned())
}

#[test]
fn load_from_environment_follows_precedence() {
    let access = load(&AccessArgs::default(), "s3://b", env);
    let s3 = access.s3.expect("set");
    assert_eq!(s3.access_key_id.as_deref(), Some("env-id"));
    assert_eq!(s3.session_token.as_ref().map(Secret::expose), Some("env-token"));
    assert_eq!(s3.region.as_deref(), Some("env-region"));
    assert_eq!(s3.endpoint.as_deref(), Some("http://env"));
    assert!(access.allow_http);
    assert_eq!(load(&AccessArgs::default(), "/x", |_| None), Access::default());
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("file");
    write!(file, "{text}").expect("written");
    file
}

const KEY: &str =
    r#"{"aws_access_key_id": "id", "aws_secret_access_key": "secret", "aws_region": "file-region"}"#;

#[test]
fn load_with_file_and_option_prefers_option_then_file() {
    let file = file(KEY);
    let mut args = AccessArgs { credentials: Some(file.path().to_owned()), ..AccessArgs::default() };
    let access = load(&args, "s3://b", env);
    assert_eq!(access.credentials.as_deref(), Some(file.path()), "who opens the source reads it");
    let s3 = access.s3.expect("set");
    assert_eq!((s3.access_key_id, s3.session_token), (None, None), "the environment's are another key's");
    assert_eq!((s3.region.as_deref(), s3.endpoint.as_deref()), (Some("file-region"), Some("http://env")));
    args.endpoint = Some("http://flag".to_owned());
    args.region = Some("flag-region".to_owned());
    let s3 = load(&args, "s3://b", env).s3.expect("set");
    assert_eq!((s3.region.as_deref(), s3.endpoint.as_deref()), (Some("flag-region"), Some("http://flag")));
    // A key for these has no region.
    let bare = r#"{"access_key_id": "id", "secret_access_key": "secret"}"#;
    std::fs::write(file.path(), bare).expect("written");
    let args = AccessArgs { credentials: Some(file.path().to_owned()), ..AccessArgs::default() };
    for uri in ["r2://a.b", "cw://b"] {
        assert_eq!(load(&args, uri, env).credentials.as_deref(), Some(file.path()));
    }
    let error = try_load(&args, "s3://b", env).expect_err("a key without a region");
    assert!(error.to_string().contains("\"aws_access_key_id\""), "{error}");
}

#[test]
fn load_with_secret_sends_its_name_only() {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("kept"), KEY).expect("written");
    let secrets = |name: &str| AccessArgs {
        secret: Some(name.to_owned()),
        secrets: SecretsArgs::at(dir.path()),
        ..AccessArgs::default()
    };
    let access = load(&secrets("kept"), "s3://b", env);
    assert_eq!(access.auth, Some(AuthMethod::Secret { auth_secret_name: "kept".into() }));
    let sent = serde_json::to_string(&access).expect("JSON");
    assert!(!sent.contains("secret\":\"secret") && !sent.contains("env-secret"), "{sent}");
    assert_eq!(access.s3.and_then(|s3| s3.region).as_deref(), Some("file-region"));
    // Only that of the environment has no other way, and goes alone.
    let more = |name: &str| match name {
        "BDNFS_SECRET_GIVEN" => Some(KEY.to_owned()),
        "BDNFS_SECRET_OTHER" => Some("hush".to_owned()),
        _ => None,
    };
    let sent = serde_json::to_string(&load(&secrets("given"), "s3://b", more)).expect("JSON");
    assert!(sent.contains("file-region") && !sent.contains("hush"), "{sent}");
}

#[test]
fn load_with_secret_that_only_the_agent_may_have_sends_no_service_of_the_environment() {
    let dir = tempfile::tempdir().expect("directory");
    let aws = dir.path().join(".aws");
    std::fs::create_dir(&aws).expect("directory");
    std::fs::write(aws.join("config"), "[default]\nregion = profile-region\n").expect("written");
    let env = |name: &str| match name {
        "HOME" => Some(dir.path().to_str().expect("text").to_owned()),
        "AWS_DEFAULT_REGION" => None,
        _ => env(name),
    };
    let access = load(&AccessArgs::default(), "s3://b", env).s3.expect("set");
    assert_eq!(
        (access.region.as_deref(), access.endpoint.as_deref()),
        (Some("profile-region"), Some("http://env"))
    );
    let mut args = AccessArgs {
        secret: Some("none".to_owned()),
        secrets: SecretsArgs::at(dir.path()),
        ..AccessArgs::default()
    };
    let access = load(&args, "s3://b", env);
    assert_eq!(access.auth, Some(AuthMethod::Secret { auth_secret_name: "none".into() }));
    assert_eq!(access.s3, Some(S3Access::default()));
    (args.region, args.endpoint) = (Some("flag-region".to_owned()), Some("http://flag".to_owned()));
    let s3 = load(&args, "s3://b", env).s3.expect("set");
    assert_eq!((s3.region.as_deref(), s3.endpoint.as_deref()), (Some("flag-region"), Some("http://flag")));
}

#[test]
fn load_with_auth_method_uses_token_or_key_of_the_machine() {
    let uri = |name: &str| if name == "GCP_OIDC" { "gs://b" } else { "s3://b" };
    let more = |name: &str| match name {
        "AWS_WEB_IDENTITY_TOKEN_FILE" | "GOOGLE_WEB_IDENTITY_TOKEN_FILE" => Some("/token".to_owned()),
        _ => env(name),
    };
    let access = |method: &str, more: &[&str]| {
        let line = ["bdnfs", "ls", uri(method), "--auth", method];
        let line = line.iter().chain(more).copied().collect::<Vec<_>>();
        #[derive(clap::Parser)]
        struct Line {
            _ls: String,
            source: String,
            #[command(flatten)]
            args: AccessArgs,
        }
        use clap::Parser;
        let line = Line::try_parse_from(line).map_err(|e| e.to_string()).expect("a line");
        (line.args, line.source)
    };
    let (args, source) = access("aws_oidc", &["--role", "arn"]);
    let oidc = load(&args, &source, more);
    let expected =
        AuthMethod::AwsOidc { aws_oidc_role_arn: "arn".into(), aws_oidc_region: "us-east-1".into() };
    assert_eq!(oidc.auth, Some(expected));
    let machine = oidc.aws.expect("a machine");
    assert_eq!((machine.role, machine.token_file), (None, Some("/token".into())));
    assert_eq!(oidc.s3.expect("set").access_key_id, None);
    let (args, source) = access("AWS_ASSUME_ROLE", &["--role", "arn", "--region", "eu"]);
    let assumed = load(&args, &source, more).s3.expect("set");
    assert_eq!((assumed.access_key_id.as_deref(), assumed.region.as_deref()), (Some("env-id"), Some("eu")));
    let (args, source) =
        access("GCP_OIDC", &["--service-account", "a@b", "--workload-provider", "projects/1/p"]);
    let gcs = load(&args, &source, more).gcs.expect("set");
    assert_eq!(gcs.token_file, Some("/token".into()));
    let (args, source) = access("GCP_OIDC", &["--service-account", "a@b"]);
    let error = try_load(&args, &source, more).expect_err("no provider");
    assert_eq!(
        error.to_string(),
        "--auth GCP_OIDC needs --service-account and --workload-provider, and takes no --role"
    );
}

#[test]
fn load_anonymous_has_endpoint_and_no_key() {
    let s3 = s3(&AccessArgs { anonymous: true, ..AccessArgs::default() });
    assert!(s3.anonymous && s3.access_key_id.is_none() && s3.secret_access_key.is_none());
    assert_eq!(s3.endpoint.as_deref(), Some("http://env"));
}

#[test]
fn load_with_missing_file_names_it() {
    let args = AccessArgs { credentials: Some("/missing".into()), ..AccessArgs::default() };
    let error = try_load(&args, "s3://b", env).expect_err("missing");
    assert!(error.to_string().contains("/missing"), "{error:#}");
}

#[test]
fn load_for_hub_source_alone_has_the_hub_token() {
    let env = |name: &str| (name == "HF_TOKEN").then(|| "hf_x".to_owned());
    let token = load(&AccessArgs::default(), "hf://owner/name", env).hub.and_then(|hub| hub.token);
    assert_eq!(token.as_ref().map(Secret::expose), Some("hf_x"));
    assert_eq!(load(&AccessArgs::default(), "s3://b", env).hub, None);
}

#[test]
fn load_for_r2_or_cw_prefers_own_key_over_aws() {
    let r2 = load(&AccessArgs::default(), "r2://a.b", env).r2.expect("set");
    assert_eq!((r2.access_key_id.as_deref(), r2.endpoint, r2.region), (Some("env-id"), None, None));
    let own = |name: &str| match name {
        "CW_ACCESS_KEY_ID" => Some("cw-id".to_owned()),
        "CW_REGION" => Some("US-WEST-01A".to_owned()),
        _ => env(name),
    };
    let cw = load(&AccessArgs::default(), "cw://b", own).cw.expect("set");
    assert_eq!((cw.access_key_id.as_deref(), cw.secret_access_key), (Some("cw-id"), None));
    assert_eq!((cw.region.as_deref(), cw.endpoint), (Some("US-WEST-01A"), None));
}

#[test]
fn load_for_gcs_takes_key_path_or_emulator() {
    let gcs = |name: &'static str, value: &str| {
        let env = |asked: &str| (asked == name).then(|| value.to_owned());
        load(&AccessArgs::default(), "gs://b", env).gcs.expect("set")
    };
    let key = gcs("GOOGLE_SERVICE_ACCOUNT_KEY", "hush");
    assert_eq!(key.service_account, Some(Secret::new("hush")));
    let path = gcs("GOOGLE_APPLICATION_CREDENTIALS", "/key.json");
    assert_eq!((path.service_account, path.application_credentials), (None, Some("/key.json".into())));
    let emulator = gcs("STORAGE_EMULATOR_HOST", "localhost:9023");
    assert_eq!((emulator.endpoint.as_deref(), emulator.anonymous), (Some("http://localhost:9023"), true));
}

#[test]
fn load_for_azure_prefers_file_over_environment() {
    let file = file(r#"{"sas_token": "sv=1&sig=hush"}"#);
    let args = AccessArgs { credentials: Some(file.path().to_owned()), ..AccessArgs::default() };
    let env = |name: &str| (name == "AZURE_STORAGE_KEY").then(|| "other".to_owned());
    let azure = load(&AccessArgs::default(), "azure://a/c", env).azure.expect("set");
    assert_eq!(azure.account_key, Some(Secret::new("other")));
    let azure = load(&args, "azure://a/c", env).azure.expect("set");
    assert_eq!((azure.account_key, azure.sas), (None, None));
    std::fs::write(file.path(), r#"{"more": "hush"}"#).expect("written");
    let error = format!("{:#}", try_load(&args, "azure://a/c", env).expect_err("no credentials"));
    assert!(error.contains("sas_token") && !error.contains("hush"), "{error}");
}

#[test]
fn for_mirror_of_same_scheme_inherits_secret_of_source() {
    let args = AccessArgs { secret: Some("s".into()), anonymous: true, ..AccessArgs::default() };
    let secret_of = |own: Option<&str>, sources: &[&str]| {
        let own = MirrorAccessArgs { mirror_secret: own.map(str::to_owned), ..MirrorAccessArgs::default() };
        let sources: Vec<_> = sources.iter().map(|source| uri(source)).collect();
        args.for_mirror(own, &uri("s3://m"), &sources.iter().collect::<Vec<_>>()).secret
    };
    assert_eq!(secret_of(None, &["s3://b"]).as_deref(), Some("s"));
    assert_eq!(secret_of(None, &[]).as_deref(), Some("s"));
    assert_eq!(secret_of(None, &["hf://o/r", "gs://b"]), None);
    assert_eq!(secret_of(None, &["hf://o/r", "s3://b"]).as_deref(), Some("s"), "whichever is first");
    assert_eq!(secret_of(Some("own"), &["s3://b"]).as_deref(), Some("own"));
}

#[test]
fn for_mirror_of_another_scheme_has_no_service_of_the_source() {
    let args = AccessArgs {
        endpoint: Some("https://hub".into()),
        region: Some("eu".into()),
        ..AccessArgs::default()
    };
    let service_of = |source: &str| {
        let access = args.for_mirror(MirrorAccessArgs::default(), &uri("s3://m"), &[&uri(source)]);
        (access.endpoint, access.region)
    };
    assert_eq!(service_of("hf://o/r"), (None, None));
    assert_eq!(service_of("s3://b"), (Some("https://hub".into()), Some("eu".into())));
}

#[test]
fn for_mirror_anonymous_sends_no_keys_of_the_source() {
    let args = AccessArgs { secret: Some("s".into()), ..AccessArgs::default() };
    let own = MirrorAccessArgs { mirror_anonymous: true, ..MirrorAccessArgs::default() };
    let mirror = args.for_mirror(own, &uri("s3://m"), &[&uri("s3://b")]);
    let loaded = s3(&mirror);
    assert!(mirror.secret.is_none() && loaded.anonymous && loaded.access_key_id.is_none());
}
