//! Mounts while mirror and origin are away: of what the cache has whole.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bdnfs_tests::MIB;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::rot::{flip_byte, largest_file};
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, assert_same_tree};

const GONE: NetworkFault =
    NetworkFault { frozen: false, delay: Duration::ZERO, rate: None, cut: None, refuse: true };
const MIRRORED: [&str; 2] = ["--mirror", "s3://mirror"];

/// A bucket of two files, one of them large.
fn env() -> TestEnv {
    let env = TestEnv::new();
    env.put("weights", 5 * MIB + 7);
    env.put("config.json", 700);
    env
}

/// Mounts the bucket on the directory `name`.
fn mount(env: &TestEnv, name: &str, options: &[&str]) -> (PathBuf, CommandOutput) {
    let point = env.machine.directory(name);
    let ran = env.machine.try_mount("s3://bucket", &point, options);
    (point, ran)
}

/// Stages the bucket, and unmounts it: its agent ends.
fn stage(env: &TestEnv, options: &[&str]) {
    let (point, ran) = mount(env, "staged", &[options, &["--wait"]].concat());
    ran.succeeds();
    env.machine.umount(&point);
}

#[test]
fn staged_snapshot_while_mirror_and_origin_are_away_is_mounted_with_its_time() {
    for options in [&[][..], &MIRRORED] {
        let env = env();
        env.mirror();
        stage(&env, options);
        env.proxy.set(GONE);
        let (point, ran) = mount(&env, "away", &[options, &["--wait"]].concat());
        assert!(ran.err.contains("is mounted from the cache as of 20"), "{}", ran.err);
        ran.succeeds();
        assert_same_tree(&env.bucket(), &point);
        env.machine.umount(&point);
        // What others have is none of this source's.
        let other = env.machine.directory("other");
        env.machine.try_mount("s3://bucket/weights", &other, options).fails(&["s3://"]);
        let allowed = [options, &["--allow", "*.json"]].concat();
        env.machine.try_mount("s3://bucket", &other, &allowed).fails(&["s3://"]);

        env.proxy.set(NetworkFault::default());
        let (point, ran) = mount(&env, "back", options);
        assert!(!ran.err.contains("from the cache"), "{}", ran.err);
        ran.succeeds();
        assert_same_tree(&env.bucket(), &point);
    }
}

#[test]
fn offline_mount_sends_no_request_and_is_refused_unless_complete() {
    let env = env();
    let refused = ["s3://bucket", "was never mounted, or the cache no longer has all of it"];
    mount(&env, "mnt", &["--offline"]).1.fails(&refused);
    let (lazy, ran) = mount(&env, "lazy", &[]);
    ran.succeeds();
    fs::read(lazy.join("config.json")).unwrap();
    env.machine.umount(&lazy);
    mount(&env, "mnt", &["--offline"]).1.fails(&refused);
    env.proxy.set(GONE);
    mount(&env, "mnt", &[]).1.fails(&["s3://bucket"]);
    env.proxy.set(NetworkFault::default());

    stage(&env, &[]);
    let staged = fs::read(env.bucket().join("weights")).unwrap();
    // A newer state that is not whole does not hide the older one that is.
    env.put("newer", 3 * MIB);
    let (newer, ran) = mount(&env, "newer", &[]);
    ran.succeeds();
    env.machine.umount(&newer);
    env.s3.requests.clear();
    let (point, ran) = mount(&env, "mnt", &["--offline", "--wait"]);
    assert!(
        ran.err.contains("as of") && ran.err.contains("neither its mirror nor its origin was asked"),
        "{}",
        ran.err
    );
    ran.succeeds();
    assert_same(&staged, &fs::read(point.join("weights")).unwrap(), "what was staged");
    assert!(!point.join("newer").exists());
    assert_eq!(env.s3.requests.of(axum::http::Method::GET, |_| true).requests, 0);
}

#[test]
fn offline_mount_of_a_damaged_cache_names_the_damage_and_sends_no_request() {
    for options in [&[][..], &MIRRORED] {
        let env = env();
        env.mirror();
        stage(&env, options);
        flip_byte(&largest_file(&env.machine.cache().join("tenants")), 2 * MIB as u64);
        env.s3.requests.clear();
        let began = Instant::now();
        let (point, ran) = mount(&env, "mnt", &[options, &["--offline", "--wait", "--verify"]].concat());
        ran.fails(&[
            "weights",
            "the cache no longer has all of it, and no network may be used; mount it without --offline",
        ]);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert_eq!(env.s3.requests.of(axum::http::Method::GET, |_| true).requests, 0);
        env.machine.run(&["umount", point.to_str().unwrap()]);

        let (point, ran) = mount(&env, "back", &[options, &["--wait"]].concat());
        ran.succeeds();
        assert_same_tree(&env.bucket(), &point);
    }
}

#[test]
fn staged_snapshot_while_its_mirror_is_frozen_or_drips_is_mounted_within_a_minute() {
    let env = env();
    env.mirror();
    stage(&env, &MIRRORED);
    let frozen = NetworkFault { frozen: true, ..NetworkFault::default() };
    let drips = NetworkFault { rate: Some(5), ..NetworkFault::default() };
    for (name, fault) in [("frozen", frozen), ("drips", drips)] {
        env.proxy.set(fault);
        let began = Instant::now();
        let (point, ran) = mount(&env, name, &MIRRORED);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert!(ran.err.contains("is mounted from the cache as of 20"), "{}", ran.err);
        ran.succeeds();
        assert_same_tree(&env.bucket(), &point);
        env.machine.umount(&point);
    }
}
