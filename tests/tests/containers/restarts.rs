//! Publications outlive their agent; and nothing of them outlives the machine.

use std::fs;

use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::assert_same;
use serde_json::{Value, json};

use crate::kit::{assert_nothing_left, bases, bound, config, publish, records, request, unpublish};

const MIB: usize = 1 << 20;

/// The device of a directory, which tells mounts apart.
fn device(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::dev(&fs::metadata(path).unwrap())
}

#[test]
fn agent_killed_under_live_binds_goes_on_with_them() {
    let env = TestEnv::new();
    let bytes = env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    publish(&agent, "pod", &request);
    publish(&agent, "base", &super::kit::request(&env, ""));
    let before = device(&target);
    let open = fs::File::open(target.join("file")).unwrap();
    agent.crash();
    assert!(is_mounted(&target));
    let agent = env.machine.agent(&config(&env.machine));
    assert_eq!(device(&target), before, "the bind is untouched: {}", agent.log());
    assert_same(&bytes, &fs::read(target.join("file")).unwrap(), "what is published");
    drop(open);
    env.s3.requests.clear();
    let again = publish(&agent, "pod", &request);
    assert_eq!((again["state"].as_str(), &again["abnormal"]), (Some("published"), &json!(false)), "{again}");
    assert_eq!(env.s3.requests.all().requests, 0);
    assert_eq!(bases(&env.machine).len(), 1);
    unpublish(&agent, "pod");
    assert_eq!(bases(&env.machine).len(), 1);
    unpublish(&agent, "base");
    assert_nothing_left(&env);
}

#[test]
fn agent_that_lost_its_fdstore_binds_again() {
    let env = TestEnv::new();
    let bytes = env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    publish(&agent, "pod", &request);
    agent.crash();
    env.machine.kill_fdstore();
    fs::read_dir(&target).expect_err("nobody serves it");
    let agent = env.machine.agent(&config(&env.machine));
    assert_same(&bytes, &fs::read(target.join("file")).unwrap(), "what is bound again");
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn publication_whose_target_was_unmounted_meanwhile_ends_at_the_start() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    publish(&agent, "pod", &request);
    agent.crash();
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::remove_dir(&target).unwrap();
    let agent = env.machine.agent(&config(&env.machine));
    assert_eq!(agent.get("/v1/publications").json()["publications"], json!([]));
    bdnfs_tests::process::eventually("its base has ended", || bases(&env.machine).is_empty());
    assert_nothing_left(&env);
}

#[test]
fn bind_without_a_record_is_removed_at_the_start() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (first, target) = bound(&env, "", "orphan");
    publish(&agent, "orphan", &first);
    publish(&agent, "base", &request(&env, ""));
    agent.crash();
    fs::remove_file(env.machine.cache().join("state/publications/orphan.json")).unwrap();
    let _agent = env.machine.agent(&config(&env.machine));
    bdnfs_tests::process::eventually("the bind is gone", || !is_mounted(&target) && !target.exists());
    assert_eq!(bases(&env.machine).len(), 1);
}

#[test]
fn machine_started_again_has_no_publication_and_keeps_the_lease() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    publish(&agent, "pod", &request);
    agent.crash();
    env.machine.kill_fdstore();
    // What a boot takes away: mounts, and the name of the last one.
    for path in [target.clone(), bases(&env.machine).remove(0)] {
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
    let record = records(&env.machine).remove(0);
    let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    text["record"]["boot"] = json!("another");
    fs::write(&record, text.to_string()).unwrap();
    fs::remove_dir(&target).unwrap();
    let agent = env.machine.agent(&config(&env.machine));
    assert_eq!(agent.get("/v1/publications").json()["publications"], json!([]));
    assert_nothing_left(&env);
    let evicted = agent.ask("POST", "/v1/cache/evict", "{\"all\": true}").json();
    assert_eq!(evicted["blobs"], 0, "what was published is still leased: {evicted}");
    env.s3.requests.clear();
    publish(&agent, "pod", &request);
    assert!(is_local(&target.join("file")) && env.fetched("file").requests == 0);
}
