//! Secrets are in no output, no process list, no file.

use std::fs;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::sts::{STS_SECRET, StsServer};
use bdnfs_tests::tools::program;
use bdnfs_tests::tree::write_file;
use bdnfs_tests::web::WebServer;
use tempfile::TempDir;

use super::{GuardedBucket, TOKEN, json};

/// All processes that came of `pid`, itself included.
fn descendants(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next).copied() {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
        }
        next += 1;
    }
    all
}

#[test]
fn secrets_in_use_are_in_no_output_process_or_file() {
    let guarded = GuardedBucket::new();
    guarded.put("w", 3 * MIB);
    let sts = StsServer::start(&guarded.s3, Keys::sample(), TOKEN);
    let root = TempDir::new().unwrap();
    write_file(root.path(), "w", MIB);
    let web = WebServer::start(root.path());
    web.accept_only(&[(&format!("Bearer {TOKEN}"), None)]);
    let (s3, keys) = (guarded.s3.server.url(), Keys::sample());
    let machine = Machine::new()
        .env("AWS_ENDPOINT_URL", &s3)
        .env("AWS_ENDPOINT_URL_STS", sts.url())
        .env("AWS_ACCESS_KEY_ID", &keys.access)
        .env("AWS_SECRET_ACCESS_KEY", &keys.secret)
        .env("BDNFS_SECRET_WEB", TOKEN)
        .env("BDNFS_SECRET_AWS", json(&keys, &s3));
    let mut said = Vec::new();
    for (uri, name, options) in [
        ("s3://bucket", "a", &["--secret", "aws", "--wait"][..]),
        ("s3://bucket", "b", &["--auth", "AWS_ASSUME_ROLE", "--role", "arn"]),
        ("s3://bucket", "c", &[]),
        (&web.url("w"), "d", &["--secret", "web"]),
    ] {
        let point = machine.directory(name);
        let ran = machine.try_mount(uri, &point, &[options, &["-vvv"]].concat());
        said.extend([ran.out.clone(), ran.err.clone()]);
        ran.succeeds();
        compare_names(&point);
    }
    // A mirror of all that takes a secret, in a directory.
    let mirror = machine.directory("mirror");
    let url = format!("file://{}", mirror.display());
    for (uri, options) in [
        ("s3://bucket", &["--secret", "aws"][..]),
        ("s3://bucket/w", &["--auth", "AWS_ASSUME_ROLE", "--role", "arn"]),
        (&web.url("w"), &["--secret", "web"]),
    ] {
        let ran = machine.run(&[&["mirror", "add", uri, "--mirror", &url, "-vvv"], options].concat());
        said.extend([ran.out.clone(), ran.err.clone()]);
        ran.succeeds();
    }
    let agents: Vec<_> = machine.agent_pids().iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    assert_eq!(agents.len(), 1);
    let planted = [TOKEN, &keys.secret, STS_SECRET];
    let holds = |text: &[u8]| planted.iter().find(|secret| String::from_utf8_lossy(text).contains(**secret));
    for pid in agents.into_iter().flat_map(descendants) {
        for what in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
            assert_eq!(holds(&text), None, "the {what} of {pid}");
        }
    }
    // Whatever is refused is told without them.
    guarded.s3.allowed_keys().revoke_all();
    web.accept_only(&[]);
    sts.server.url();
    for line in [
        &["ls", "s3://bucket", "--secret", "aws", "-vvv"][..],
        &["ls", "s3://bucket", "-vvv"],
        &["ls", &web.url("w"), "--secret", "web", "-vvv"],
        &["ls", "gs://bucket", "--secret", "web"],
        &["ls", "azure://a/c", "--secret", "aws"],
        &["ls", "hf://o/r", "--secret", "aws"],
        &["check", "-", "--json"],
        &["status", "--json"],
    ] {
        let ran = machine.run(line);
        said.extend([ran.out, ran.err]);
    }
    for text in said {
        assert_eq!(holds(text.as_bytes()), None, "{text}");
    }
    assert_eq!(files_with(&planted, &[machine.cache(), &mirror]), "", "files that hold a secret");
    // What manifests hold is found so.
    for name in ["s3://bucket", &web.url("w")] {
        assert!(files_with(&[name], &[&mirror]).contains("/manifests/"), "{name}");
    }
}

/// The files below `directories` that hold one of `texts`.
fn files_with(texts: &[&str], directories: &[&Path]) -> String {
    let mut grep = program("grep");
    grep.args(["-r", "-a", "-s", "-l", "-F"]);
    texts.iter().for_each(|text| _ = grep.args(["-e", text]));
    String::from_utf8_lossy(&grep.args(directories).output().unwrap().stdout).into_owned()
}

/// Reads all that is there.
fn compare_names(point: &Path) {
    for entry in fs::read_dir(point).unwrap().flatten() {
        assert!(!fs::read(entry.path()).unwrap().is_empty());
    }
}
