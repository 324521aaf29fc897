use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;
use crate::source::S3Access;

fn access(name: &str, secrets: Vec<SecretStore>) -> Access {
    let auth = Some(AuthMethod::Secret { auth_secret_name: name.to_owned() });
    Access { auth, secrets, ..Access::default() }
}

fn uri(text: &str) -> Uri {
    text.parse().expect(text)
}

fn environment(secrets: BTreeMap<String, Secret>) -> SecretStore {
    SecretStore::Environment { secrets: secrets.into(), variable: "X".into() }
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

#[test]
fn find_secret_in_several_stores_takes_the_first() {
    let dir = tempfile::tempdir().expect("directory");
    let directory = dir.path().join("secrets");
    fs::create_dir(&directory).expect("directory");
    write(&directory.join("a"), "from-directory\n", 0o644);
    write(&directory.join("b"), "from-directory", 0o644);
    let file = dir.path().join("secrets.toml");
    write(&file, "b = 'from-file'\n'c/d' = '''\n{\"x\": 1}'''", 0o600);
    let given = BTreeMap::from([("a".to_owned(), Secret::new("from-environment"))]);
    let stores = [environment(given), SecretStore::Directory(directory), SecretStore::File(file)];
    for (name, text) in [("a", "from-environment"), ("b", "from-directory"), ("c/d", "{\"x\": 1}")] {
        assert_eq!(find_secret(&stores, name).expect(name).expose(), text);
    }
    let has = |i: usize, name| has_secret(&stores[i], name).expect(name);
    assert!(has(0, "a") && has(1, "b") && has(2, "c/d"));
    assert!(!has(0, "b") && !has(1, "../secrets.toml") && !has(1, "..data") && !has(2, "a"));
}

#[test]
fn loader_after_kubernetes_rotates_a_secret_reads_the_new_one() {
    let dir = tempfile::tempdir().expect("directory");
    let path = |name: &str| dir.path().join(name);
    for (version, token) in [("..1", "hf_old"), ("..2", "hf_new")] {
        fs::create_dir(path(version)).expect("directory");
        fs::write(path(version).join("token"), token).expect("written");
    }
    symlink("..1", path("..data")).expect("link");
    symlink("..data/token", path("token")).expect("link");
    let access = access("token", vec![SecretStore::Directory(dir.path().to_owned())]);
    let loaded = loader(&uri("hf://o/r"), &access);
    assert_eq!(loaded.load().expect("first"), Credentials::Bearer(Secret::new("hf_old")));
    symlink("..2", path("..tmp")).expect("link");
    fs::rename(path("..tmp"), path("..data")).expect("renamed");
    assert_eq!(loaded.load().expect("second"), Credentials::Bearer(Secret::new("hf_new")));
}

#[test]
fn loader_of_a_role_or_a_machine_needs_no_secret() {
    let s3 = S3Access { region: Some("eu".into()), ..S3Access::default() };
    let mut access = Access { s3: Some(s3), ..Access::default() };
    for uri in [uri("s3://b"), uri("gs://b")] {
        assert_eq!(loader(&uri, &access).load().expect("ambient"), Credentials::Ambient);
        assert_eq!(loader(&uri, &access).name(), None);
    }
    access.auth = Some(AuthMethod::AwsOidc { aws_oidc_role_arn: "arn".into(), aws_oidc_region: "r".into() });
    let role = AwsRole { arn: "arn".into(), region: "r".into(), identity: RoleIdentity::MachineToken };
    assert_eq!(loader(&uri("s3://b"), &access).load().expect("role"), Credentials::AwsRole(role));
    let sent = serde_json::to_string(&access).expect("JSON");
    assert_eq!(serde_json::from_str::<Access>(&sent).expect("JSON"), access);
}

#[test]
fn complete_access_without_a_region_takes_that_of_the_key() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("key");
    let key = r#"{"aws_access_key_id": "id", "aws_secret_access_key": "hush", "aws_region": "eu", "aws_endpoint": "http://h"}"#;
    write(&file, key, 0o600);
    let completed = |access: Access| {
        let s3 = complete_access(&uri("s3://b"), access).expect("placed").s3.expect("set");
        (s3.region.unwrap_or_default(), s3.endpoint.unwrap_or_default(), s3.secret_access_key)
    };
    let access = Access { credentials: Some(file), ..Access::default() };
    assert_eq!(completed(access.clone()), ("eu".into(), "http://h".into(), None));
    let s3 = Some(S3Access { region: Some("us".into()), ..S3Access::default() });
    assert_eq!(completed(Access { s3, ..access }), ("us".into(), "http://h".into(), None));
    let alone = Access { auth: None, ..Access::default() };
    assert_eq!(super::complete_access(&uri("s3://b"), alone.clone()).expect("nothing to do"), alone);
}

/// The messages, word for word.
#[test]
fn loader_that_fails_names_the_secret_and_never_its_value() {
    let dir = tempfile::tempdir().expect("directory");
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("d")).expect("directory");
    fs::create_dir(path("d/sub")).expect("directory");
    write(&path("d/hf"), "hush hush", 0o600);
    write(&path("open.toml"), "x = 'hush'", 0o640);
    write(&path("bad.toml"), "y = 1\nx = 'hush\n", 0o600);
    write(&path("number.toml"), "x = 12345", 0o600);
    fs::write(path("d/bytes"), [0xff]).expect("written");
    let at = dir.path().display();
    let (directory, file) = (|name| SecretStore::Directory(path(name)), |name| SecretStore::File(path(name)));
    for (name, stores, said) in [
        ("x", vec![], "no such secret: \"x\" (no secret store is named)".to_owned()),
        (
            "x",
            vec![environment(BTreeMap::new()), directory("d")],
            format!(
                "no such secret: \"x\" (not in the environment (X), not in the directory {at}/d)"
            ),
        ),
        (
            "x",
            vec![directory("none")],
            format!("the secret \"x\": cannot read {at}/none/x: No such file or directory (os error 2)"),
        ),
        ("sub", vec![directory("d")], format!("the secret \"sub\": {at}/d/sub is not a file")),
        (
            "bytes",
            vec![directory("d")],
            format!("the secret \"bytes\": cannot read {at}/d/bytes: stream did not contain valid UTF-8"),
        ),
        (
            "x",
            vec![file("open.toml")],
            format!(
                "the secret \"x\": {at}/open.toml has mode 0640, but only its owner may have access to a file of secrets; \
                 run chmod 600 {at}/open.toml"
            ),
        ),
        ("x", vec![file("bad.toml")], format!("the secret \"x\": {at}/bad.toml: line 2 is not TOML")),
        (
            "x",
            vec![file("number.toml")],
            format!(
                "the secret \"x\": {at}/number.toml: \"x\" must be a string; quote it, or put JSON between '''"
            ),
        ),
        (
            "hf",
            vec![directory("d")],
            "the secret \"hf\": the Hugging Face credentials contain characters other than letters, digits and signs, \
             perhaps a space or a second line; expected a token alone: hf_.."
                .to_owned(),
        ),
    ] {
        let error = loader(&uri("hf://o/r"), &access(name, stores)).load().expect_err(&said);
        assert_eq!(error.to_string(), said);
    }
    let auth =
        AuthMethod::AwsAssumeRole { aws_assume_role_arn: "a".into(), aws_assume_role_region: "r".into() };
    let access = Access { auth: Some(auth), ..Access::default() };
    let error = loader(&uri("gs://b"), &access).load().expect_err("gs");
    assert_eq!(error.to_string(), "AWS_ASSUME_ROLE gives no credentials for gs://");
    assert_eq!(error.kind(), Kind::Refused);
}
