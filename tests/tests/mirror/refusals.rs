//! Mirrors that are refused: of another version or kind, or with what cannot be a manifest.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use axum::http::Method;
use bdnfs_tests::MIB;
use bdnfs_tests::test_env::TestEnv;

use super::publish::{mirror, objects, run};

/// A job of a bucket, one of a checkpoint, and one that loads checkpoints.
const JOBS: [&str; 3] = [
    "[[weights]]\nsource = \"s3://bucket\"\nmount_location = \"/m\"\n",
    "[[weights]]\nsource = \"bt://p@j/c\"\nmount_location = \"/m\"\n",
    "[runtime.load_checkpoint_config]\nenabled = true\n\
     checkpoints = [{ typ = \"baseten_latest_checkpoint\", job_id = \"j\" }]\n",
];

#[test]
fn mirror_of_another_version_or_kind_is_refused_by_every_command() {
    let env = TestEnv::new();
    env.put("weights", MIB);
    env.mirror();
    let (bucket, volumes) = (env.bucket(), env.machine.volumes());
    let (from, out) = (bucket.display(), env.machine.directory("out"));
    run(&env.machine, &format!("checkpoint push {from} --project p --job j --name c --mirror s3://mirror"))
        .succeeds();
    let jobs = [0, 1, 2].map(|number| {
        let file = env.machine.directory("jobs").join(format!("{number}.toml"));
        let runtime = "[runtime]\nstart_commands = [\"true\"]\n";
        fs::write(&file, format!("{runtime}{}", JOBS[number])).unwrap();
        file
    });
    let commands = [
        "mirror add s3://bucket",
        "mirror ls",
        "mirror show s3://bucket",
        "mirror verify",
        "mirror gc",
        "mirror rm s3://bucket",
        "checkpoint ls",
        "checkpoint show c --project p",
        "checkpoint wait c --project p --timeout 60s",
        &format!("checkpoint get c {} --project p", out.join("c").display()),
        &format!("checkpoint push {from} --project p --job j --name d"),
        "checkpoint rm c --project p --job j --yes",
        &format!("project show p --volumes-dir {}", volumes.display()),
        &format!("project forget p --node n --volumes-dir {}", volumes.display()),
        &format!("project rm p --yes --volumes-dir {}", volumes.display()),
    ];
    let agent = env.machine.agent("");
    let format = mirror(&env).join("format.json");
    for (content, said) in [
        ("{\"format\":\"bdnfs mirror\",\"version\":2}", "has version 2; this bdnfs reads version 1"),
        ("{\"format\":\"another\",\"version\":1}", "is not that of a bdnfs mirror"),
        ("garbage", "is not that of a bdnfs mirror"),
        ("", "is not that of a bdnfs mirror"),
    ] {
        fs::write(&format, content).unwrap();
        let point = env.machine.directory("mnt");
        for source in ["s3://bucket", "bt://p@j/c"] {
            env.machine.try_mount(source, &point, &["--mirror", "s3://mirror"]).fails(&[said]);
        }
        for command in commands {
            run(&env.machine, &format!("{command} --mirror s3://mirror")).fails(&[said]);
        }
        for job in &jobs {
            let ran =
                run(&env.machine, &format!("job run {} --project p --mirror s3://mirror", job.display()));
            assert!(
                ran.code != Some(0) && ran.err.contains(said),
                "{}: {}{}",
                job.display(),
                ran.out,
                ran.err
            );
        }
    }
    agent.stop();
}

fn assert_little_was_fetched(env: &TestEnv) {
    let fetched = env.s3.requests.of(Method::GET, |path| path.contains("/manifests/"));
    assert!(fetched.bytes <= 64 << 20, "{} bytes of it were fetched", fetched.bytes);
}

#[test]
fn object_that_is_no_manifest_is_refused_after_its_first_bytes() {
    let env = TestEnv::new();
    env.put("weights", MIB);
    env.mirror();
    let manifest = &objects(&mirror(&env), "manifests")[0];
    fs::File::options().write(true).truncate(true).open(manifest).unwrap().set_len(1 << 30).unwrap();
    let line =
        env.machine.try_mount("s3://bucket", &env.machine.directory("mnt"), &["--mirror", "s3://mirror"]);
    assert!(line.err.contains("it does not begin like one"), "{}", line.err);
    assert_little_was_fetched(&env);
}

/// The header of a manifest of `len` bytes in all: with a root, and strings.
fn header(len: u64) -> Vec<u8> {
    let (version, entries, blobs, source_len) = (1u32, 1u32, 0u32, 0u32);
    let (hashes, strings) = (0u64, len - 64 - 48);
    let words = [version, entries, blobs, source_len].map(u32::to_le_bytes).concat();
    let counts = [hashes, strings, 0, 0, 0].map(u64::to_le_bytes).concat();
    [&b"BDNFSMAN"[..], &words, &counts].concat()
}

#[test]
fn manifest_above_its_largest_size_is_refused_after_its_first_bytes() {
    let env = TestEnv::new();
    env.put("weights", MIB);
    env.mirror();
    let path = &objects(&mirror(&env), "manifests")[0];
    let manifest = File::options().write(true).truncate(true).open(path).unwrap();
    manifest.set_len(8 << 30).unwrap();
    manifest.write_all_at(&header(8 << 30), 0).unwrap();
    env.machine
        .try_mount("s3://bucket", &env.machine.directory("mnt"), &["--mirror", "s3://mirror"])
        .fails(&["a manifest has 8589934592 bytes, and 4294967296 at the most"]);
    run(&env.machine, "mirror verify --mirror s3://mirror").fails(&["4294967296 at the most"]);
    assert_little_was_fetched(&env);
}
