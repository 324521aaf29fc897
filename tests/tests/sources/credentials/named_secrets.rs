//! Secrets by name: from the environment, a file, a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use bdnfs_tests::MIB;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::hub::{HubServer, RepositoryAccess};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tree::{assert_same, assert_same_tree, write_file};
use bdnfs_tests::web::WebServer;
use tempfile::TempDir;

use super::{GuardedBucket, TOKEN, json};

/// Puts a secret into each kind of store in turn, and has `attempt` run with the options that lead there.
fn with_each_store(
    machine: Machine,
    name: &str,
    secret: &str,
    mut attempt: impl FnMut(&Machine, &[&str]),
) -> Machine {
    let directory = machine.directory("secrets");
    fs::write(directory.join(name), secret).unwrap();
    let path = directory.display().to_string();
    attempt(&machine, &["--secrets", &path, "--secret", name]);
    let table = machine.directory("tables").join("secrets.toml");
    fs::write(&table, format!("{name:?} = '''{secret}'''")).unwrap();
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    let path = table.display().to_string();
    attempt(&machine, &["--secrets", &path, "--secret", name]);
    let variable = format!("BDNFS_SECRET_{}", name.to_uppercase().replace('-', "_"));
    let machine = machine.env(variable, secret);
    attempt(&machine, &["--secret", name]);
    machine
}

#[test]
fn secret_by_name_for_s3_services_mounts() {
    let GuardedBucket { machine, s3, root } = GuardedBucket::new();
    write_file(&root.path().join("bucket"), "model/w", 3 * MIB);
    let secret = json(&Keys::sample(), &s3.server.url());
    let mut number = 0;
    let machine = with_each_store(machine, "aws-key", &secret, |machine, options| {
        for uri in ["s3://bucket/model", "r2://acct.bucket/model", "cw://bucket/model"] {
            let options = [options, &["--bucket-style", "path"]].concat();
            let ls = machine.run(&[&["ls", uri][..], &options].concat()).succeeds();
            assert!(ls.contains("3145728") && ls.contains(" w\n"), "{ls}");
        }
        number += 1;
        let point = machine.mount_with("s3://bucket/model", &format!("mnt{number}"), options);
        assert_same_tree(&root.path().join("bucket/model"), &point);
    });
    machine
        .run(&["ls", "s3://bucket", "--secret", "none"])
        .fails(&["no such secret: \"none\" (not in the environment (BDNFS_SECRET_NONE)"]);
    machine.run(&["ls", "hf://o/r", "--secret", "aws-key"]).fails(&[
        "the secret \"aws-key\": the Hugging Face credentials are JSON; expected a token alone: hf_..",
    ]);
}

#[test]
fn credentials_file_without_region_for_r2_and_cw_lists() {
    let GuardedBucket { machine, s3, root } = GuardedBucket::new();
    write_file(&root.path().join("bucket"), "w", 1000);
    let Keys { access, secret, .. } = Keys::sample();
    let key = machine.directory("keys").join("key.json");
    let text = format!("{{\"access_key_id\": \"{access}\", \"secret_access_key\": \"{secret}\"}}");
    fs::write(&key, text).unwrap();
    for uri in ["r2://acct.bucket", "cw://bucket"] {
        let (url, key) = (s3.server.url(), key.display().to_string());
        let line = ["ls", uri, "--endpoint", &url, "--bucket-style", "path", "--credentials", &key];
        assert!(machine.run(&line).succeeds().contains("1000"));
    }
}

#[test]
fn secret_by_name_for_hub_lists() {
    let hub = HubServer::start();
    hub.publish("models/o/r", "main", &[("x", b"weights")]);
    hub.set_access("models/o/r", RepositoryAccess::Private);
    hub.token(TOKEN, &["models/o/r"]);
    let machine = Machine::new().env("HF_ENDPOINT", hub.url()).env("HF_TOKEN", "hf_ofAnotherAccount");
    let machine = with_each_store(machine, "hf_access_token", &format!("{TOKEN}\n"), |machine, options| {
        let ls = machine.run(&[&["ls", "hf://o/r"][..], options].concat()).succeeds();
        assert!(ls.contains(" x\n"), "{ls}");
    });
    hub.revoke(TOKEN);
    let line = machine.run(&["ls", "hf://o/r", "--secret", "hf_access_token"]).fails(&[]);
    let said = format!(
        "bdnfs: hf://models/o/r: the Hub does not accept the secret \"hf_access_token\": it is wrong, expired or revoked; \
         create one at {}/settings/tokens and put it into the secret \"hf_access_token\"",
        hub.url()
    );
    assert_eq!(line, said);
}

#[test]
fn secret_by_name_for_web_server_is_not_sent_after_redirect() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "w", 2 * MIB);
    let (web, other) = (WebServer::start(root.path()), WebServer::start(root.path()));
    let machine = Machine::new();
    for (secret, value) in [
        (TOKEN, format!("Bearer {TOKEN}")),
        // What `printf 'user:pass word' | base64` prints.
        ("user:pass word", "Basic dXNlcjpwYXNzIHdvcmQ=".to_owned()),
        (r#"{"username": "user", "password": "pass word"}"#, "Basic dXNlcjpwYXNzIHdvcmQ=".to_owned()),
    ] {
        web.accept_only(&[(&value, None)]);
        let fresh = with_each_store(Machine::new(), "web", secret, |machine, options| {
            let ls = machine.run(&[&["ls", &web.url("w")][..], options].concat()).succeeds();
            assert!(ls.contains("2097152"), "{ls}");
        });
        let line = fresh.run(&["ls", &web.url("w")]).fails(&[]);
        let url = web.url("w");
        assert_eq!(
            line,
            format!("bdnfs: {url}: the server returned 401 Unauthorized; no credentials were sent")
        );
    }
    // Where it leads to, nobody is told who asks.
    let machine = machine.env("BDNFS_SECRET_WEB", TOKEN);
    web.accept_only(&[(&format!("Bearer {TOKEN}"), None)]);
    let point = machine.mount_with(web.url("w"), "mnt", &["--secret", "web"]);
    web.faults.set(ServerFault::Redirect(other.server.url()));
    // Both servers have the same file, as two hosts of one site would.
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "what came by the redirect");
    assert!(other.requests.gets("w").requests > 0 && web.authorized_requests() > 0);
    assert_eq!(other.authorized_requests(), 0, "requests elsewhere that told who asks");
}
