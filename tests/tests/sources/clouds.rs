//! The clouds' schemes on the command line. What the clouds themselves do, `emulators` tries.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bdnfs_tests::clouds::CloudServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, write_file};

#[test]
fn s3_compatible_service_with_aws_keys_mounts() {
    let env = TestEnv::new();
    let bytes = env.put("model/weights.bin", 3_000_000);
    for (uri, name) in [("r2://account.bucket/model", "r2"), ("cw://bucket/model", "cw")] {
        let options = ["--endpoint", &env.proxy.url(), "--bucket-style", "path"];
        let point = env.machine.mount_with(uri, name, &options);
        assert_same(&bytes, &fs::read(point.join("weights.bin")).unwrap(), uri);
    }
}

#[test]
fn google_source_of_a_single_object_mounts_and_one_without_objects_is_named() {
    let machine = Machine::new();
    let root = machine.directory("buckets");
    let bytes = write_file(&root.join("bucket"), "weights.bin", 3_000_000);
    let cloud = CloudServer::start(&root);
    let options = ["--endpoint", &cloud.server.url(), "--anonymous"];
    let point = machine.mount_with("gs://bucket/weights.bin", "mnt", &options);
    assert_same(&bytes, &fs::read(point.join("weights.bin")).unwrap(), "a single object");
    let ls = |source| machine.run(&[&["ls", source][..], &options].concat());
    assert!(ls("gs://bucket/weights.bin").succeeds().contains(" weights.bin\n"));
    let error = ls("gs://bucket/none").fails(&["gs://bucket/none"]);
    assert!(!error.contains("not a listing"), "{error}");
}

#[test]
fn ls_with_bad_keys_lists_or_escapes_each() {
    let env = TestEnv::new();
    let file = env.bucket().join("good");
    let bytes = env.put("good", 2_000_000);
    let long = "x".repeat(300);
    let bad = ["a//b", "/c", "good/d", "n\0", &long];
    bad.iter().for_each(|key| env.s3.put_odd_key("bucket", key, &file));
    let refused = env.machine.run(&["ls", "s3://bucket"]);
    assert_eq!(refused.code, Some(1));
    for output in ["\"a//b\"", "\"/c\"", "\"good\": a file has", "\"n\\0\"", "over 255 bytes"] {
        assert!(refused.err.contains(output), "{output}: {}", refused.err);
    }
    assert!(refused.out.contains("a//b: a part is empty\n"), "{}", refused.out);
    let listed = env.machine.run(&["ls", "--json", "s3://bucket"]).out;
    assert!(listed.contains(r#"{"bad":"a//b","why":"a part is empty"}"#), "{listed}");
    assert_eq!(listed.lines().count(), bad.len(), "{listed}");
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--bad-names", "escape"]);
    let (begin, end) = long.split_at(254);
    for path in ["a/%2Fb", "%2Fc", "%67ood", "good/d", "n%00", &format!("{begin}%/{end}")] {
        assert_same(&bytes, &fs::read(point.join(path)).unwrap(), path);
    }
}

#[test]
fn pattern_matching_nothing_prints_a_note() {
    let env = TestEnv::new();
    ["config.json", "onnx/a.bin"].iter().for_each(|key| _ = env.put(key, 10));
    let patterns = ["--allow", "*.json", "--allow", "onxx/", "--ignore", "*.gone"];
    let notes =
        ["onxx/", "*.gone"].map(|p| format!("note: the pattern {p:?} matches nothing in s3://bucket"));
    let listed = env.machine.run(&[&["ls", "s3://bucket"], &patterns[..]].concat());
    let point = env.machine.directory("mnt");
    let options = [&patterns[..], &["--json"]].concat();
    let mounted = env.machine.try_mount("s3://bucket", &point, &options);
    for ran in [&listed, &mounted] {
        assert!(notes.iter().all(|note| ran.err.lines().any(|line| line.starts_with(note))), "{}", ran.err);
    }
    assert!(listed.succeeds().contains("total: 1 file"));
    assert!(mounted.succeeds().contains("the pattern \\\"onxx/\\\" matches nothing"));
    let none = ["none of the 2 files", r#"(allow "onxx/")"#];
    env.machine.try_mount("s3://bucket", &env.machine.directory("no"), &["--allow", "onxx/"]).fails(&none);
    env.machine.run(&["ls", "s3://bucket", "--allow", "onxx/"]).fails(&none);
}

#[test]
fn cloud_source_with_bad_options_is_refused_at_once() {
    let env = TestEnv::new();
    let secret = Keys::sample().secret;
    for (arguments, said) in [
        (
            &["ls", "r2://a.b", "--endpoint", "http://10.0.0.1"][..],
            "r2://a.b: the endpoint http://10.0.0.1 is plain http",
        ),
        (
            &["ls", "cw://b", "--endpoint", "http://127.0.0.1:1"],
            "buckets cannot have hosts of their own at http://127.0.0.1:1",
        ),
        (&["ls", "gs://b", "--requester-pays", "--anonymous"], "no project to bill is given"),
        (
            &["ls", "s3://b", "--ca-file", "/dev/null"],
            "--ca-file: /dev/null contains no certificate in PEM format (-----BEGIN CERTIFICATE-----)",
        ),
        (&["ls", "s3://b", "--ca-file", "/none"], "--ca-file: cannot read /none: No such file or directory"),
        (
            &["ls", "azure://a/c", "--credentials", "/dev/null"],
            "the credentials in /dev/null: the Azure credentials are empty",
        ),
    ] {
        let ran = env.machine.run(arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}");
        assert!(ran.err.contains(said) && !ran.err.contains(&secret), "{}", ran.err);
    }
}

#[test]
fn option_without_effect_on_the_source_is_refused_by_name() {
    let env = TestEnv::new();
    let bytes = env.put("w", 10);
    fs::create_dir(env.bucket().with_file_name("mirror")).unwrap();
    let (tree, point) = (env.machine.directory("tree"), env.machine.directory("mnt"));
    fs::write(tree.join("f"), "x").unwrap();
    let (tree, point, url) = (tree.to_str().unwrap(), point.to_str().unwrap(), env.proxy.url());
    let mirror = format!("file://{}", env.machine.directory("mirror").display());
    let job = env.machine.directory("job").join("job.toml");
    fs::write(
        &job,
        format!(
            "[runtime]\nstart_commands = [\"true\"]\n[[weights]]\nsource = \"file://{tree}\"\nmount_location = \"/m\"\n"
        ),
    )
    .unwrap();
    let job = job.to_str().unwrap();
    for (arguments, said) in [
        (&["ls", tree, "--endpoint", &url][..], "--endpoint: cannot be used with file://"),
        (&["ls", "hf://o/n", "--region", "eu"], "--region: cannot be used with hf://"),
        (&["ls", "https://h/f", "--bad-names", "escape"], "--bad-names: cannot be used with https://"),
        (&["ls", "s3://bucket", "--unpinned"], "--unpinned: cannot be used with s3://"),
        (&["mount", tree, point, "--region", "eu"], "--region: cannot be used with file://"),
        (&["mount", tree, point, "--allow-http"], "--allow-http: cannot be used with file://"),
        // The mirror's own options are others.
        (
            &["mount", tree, point, "--mirror", "s3://mirror", "--endpoint", &url],
            "--endpoint: cannot be used with file://",
        ),
        (
            &["mirror", "add", tree, "--mirror", &mirror, "--requester-pays"],
            "--requester-pays: cannot be used with",
        ),
        (
            &["mirror", "add", tree, "--mirror", &mirror, "--mirror-endpoint", &url],
            "--mirror-endpoint: cannot be used with file://",
        ),
        (
            &["mirror", "ls", "--mirror", &mirror, "--endpoint", &url],
            "--endpoint: cannot be used with file://",
        ),
        (
            &["mirror", "ls", "--mirror", "s3://mirror", "--unpinned"],
            "--unpinned: has no effect here; leave it out",
        ),
        (&["job", "run", job, "--endpoint", &url], "--endpoint: cannot be used with file://"),
        // What is for one service is not sent to another.
        (
            &["mirror", "add", "hf://o/n", "s3://bucket", "--mirror", &mirror, "--endpoint", &url],
            "--endpoint: hf:// and s3:// have no service in common",
        ),
    ] {
        let ran = env.machine.run(arguments);
        assert!(ran.code != Some(0) && ran.err.contains(said), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.err.lines().count(), 1, "{arguments:?}: {}", ran.err);
    }
    let ran = env.machine.run(&["ls", "s3://bucket", "--mirror-endpoint", &url]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);

    // It is enough that one of several sources has a use for it, or the mirror.
    let all = ["mirror", "add", tree, "s3://bucket", "--mirror", "s3://mirror", "--endpoint", &url];
    env.machine.run(&all).succeeds();
    let shared = ["mount", tree, point, "--mirror", "s3://mirror", "--allow-http", "--bucket-style", "path"];
    env.machine.run(&shared).succeeds();
    // What the environment says is for all commands.
    let point = env.machine.mount_with("s3://bucket", "remote", &["--mirror", "s3://mirror"]);
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "w");
}

#[test]
fn file_that_matches_exec_may_be_executed() {
    let env = TestEnv::new();
    for key in ["bin/tool", "run.sh", "data"] {
        fs::create_dir_all(env.bucket().join("bin")).unwrap();
        fs::write(env.bucket().join(key), "#!/bin/sh\necho ran\n").unwrap();
    }
    let modes = |point: &Path| {
        ["bin/tool", "run.sh", "data"].map(|key| fs::metadata(point.join(key)).unwrap().mode() & 0o777)
    };
    let patterns = ["--exec", "*.sh", "--exec", "bin/"];
    let point = env.machine.mount_with("s3://bucket", "exec", &patterns);
    assert_eq!(modes(&point), [0o555, 0o555, 0o444]);
    assert_eq!(env.machine.run_command(env.machine.program(point.join("run.sh"), &[""])).succeeds(), "ran\n");
    assert_eq!(modes(&env.machine.mount("s3://bucket", "plain")), [0o444; 3]);

    // In a mirror each is a source of its own, and nothing is read or stored twice.
    env.mirror();
    let mirror = ["--mirror", "s3://mirror"];
    let note = "is not in the mirror";
    let lacking = env.machine.try_mount(
        "s3://bucket",
        &env.machine.directory("m1"),
        &[&patterns[..], &mirror].concat(),
    );
    assert!(lacking.err.contains(note), "{}", lacking.err);
    let add = [&["mirror", "add", "s3://bucket", "--json"], &patterns[..], &mirror].concat();
    let added: serde_json::Value = serde_json::from_str(&env.machine.run(&add).succeeds()).unwrap();
    assert_eq!(added["read"], 0, "{added}");
    let config = env.machine.directory("etc").join("w.toml");
    let mounted = env.machine.directory("m2");
    let text = format!(
        "[[weights]]\nsource = 's3://bucket'\nmount_location = {:?}\nexecutable_patterns = ['bin/', '*.sh']\n",
        mounted.to_str().unwrap()
    );
    fs::write(&config, text).unwrap();
    let from_mirror =
        env.machine.run(&[&["mount", "--config", config.to_str().unwrap()], &mirror[..]].concat());
    assert!(!from_mirror.err.contains(note), "{}", from_mirror.err);
    from_mirror.succeeds();
    assert_eq!(modes(&mounted), [0o555, 0o555, 0o444]);
}
