//! Requests that wait: for a publication that fails, or is unpublished meanwhile, for a disk that does not answer, and for copies of
//! other sources.

use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::{NetworkFault, TcpProxy};
use bdnfs_tests::test_env::TestEnv;
use serde_json::json;

use crate::kit::{
    assert_nothing_left, bases, bound, config, entries, publish, put, request, targets, unpublish,
};

const PASSING: NetworkFault =
    NetworkFault { refuse: false, frozen: false, delay: Duration::ZERO, rate: None, cut: None };
const FROZEN: NetworkFault = NetworkFault { frozen: true, ..PASSING };

#[test]
fn requests_for_a_publication_that_is_unpublished_meanwhile_are_told_so() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    env.proxy.set(FROZEN);
    std::thread::scope(|scope| {
        let wait = || scope.spawn(|| put(&agent, "pod", &request, 50));
        let waiters = [wait(), wait()];
        eventually("it is pending", || agent.get("/v1/publications/pod").code == 200);
        // Until both wait for it.
        std::thread::sleep(Duration::from_millis(500));
        unpublish(&agent, "pod");
        for waiter in waiters {
            let told = waiter.join().unwrap();
            assert_eq!((told.code, told.json()["kind"].as_str()), (409, Some("busy")), "{}", told.body);
            let message = told.json()["message"].as_str().unwrap().to_owned();
            assert_eq!(message, "pod was unpublished meanwhile; publish it again");
        }
    });
    assert_eq!(agent.get("/v1/publications/pod").code, 404);
    env.proxy.set(PASSING);
    assert_nothing_left(&env);
    publish(&agent, "pod", &request);
    assert!(is_mounted(&target));
    unpublish(&agent, "pod");
}

#[test]
fn requests_for_a_publication_that_fails_all_get_the_failure() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, _) = bound(&env, "", "pod");
    request["access"]["s3"]["secret_access_key"] = json!("wrong");
    env.proxy.set(NetworkFault { delay: Duration::from_millis(500), ..PASSING });
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..8).map(|_| scope.spawn(|| put(&agent, "pod", &request, 50))).collect();
        for waiter in waiters {
            let told = waiter.join().unwrap();
            assert_eq!((told.code, told.json()["kind"].as_str()), (403, Some("refused")), "{}", told.body);
        }
    });
    assert_nothing_left(&env);
}

#[test]
fn publication_is_unpublished_while_the_disk_of_the_cache_is_frozen() {
    let Some(disk) = LoopDisk::new(256 << 20) else { return };
    let env = TestEnv::new();
    env.put("file", 5);
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    let agent = machine.agent(&config(&machine));
    let bound = ["one", "other"].map(|name| {
        let (mut request, target) = (request(&env, ""), targets(&machine).join(name));
        request["target"] = json!(target);
        publish(&agent, name, &request);
        (request, target)
    });
    let frozen = disk.freeze();
    let [(request, target), _] = &bound;
    unpublish(&agent, "one");
    assert!(!target.exists(), "its pod is gone, which the kubelet waits for");
    unpublish(&agent, "never");
    // What is to take its place waits for its record.
    let next = put(&agent, "one", request, 1);
    assert_eq!(next.code, 202, "{}", next.body);
    drop(frozen);
    publish(&agent, "one", request);
    assert!(is_mounted(target));
    let frozen = disk.freeze();
    unpublish(&agent, "one");
    let crashed = std::thread::scope(|scope| {
        let crashed = scope.spawn(|| agent.crash());
        std::thread::sleep(Duration::from_secs(1));
        drop(frozen);
        crashed.join()
    });
    crashed.unwrap();
    let agent = machine.agent(&config(&machine));
    assert!(!is_mounted(target) && agent.get("/v1/publications/one").code == 404);
    unpublish(&agent, "other");
    assert!(bases(&machine).is_empty() && entries(&machine.cache().join("state/publications")).is_empty());
    agent.stop();
}

#[test]
fn publication_of_a_mirrored_source_or_of_another_tenant_does_not_wait_for_copies() {
    let env = TestEnv::new();
    for (source, len) in
        [("one", 32 * MIB), ("two", 32 * MIB), ("three", 32 * MIB), ("mirrored", 5), ("other", 5)]
    {
        env.put(&format!("{source}/file"), len);
    }
    let mirror = format!("[mirror]\nurl = \"file://{}\"", env.machine.directory("mirror").display());
    let agent = env.machine.agent(&format!("{mirror}\n{}", config(&env.machine)));
    publish(&agent, "before", &request(&env, "/mirrored"));
    let slow = TcpProxy::start(env.s3.server.address());
    slow.set(NetworkFault { rate: Some(16 << 10), ..PASSING });
    let copied = ["one", "two", "three"].map(|key| {
        let mut request = request(&env, &format!("/{key}"));
        request["access"]["s3"]["endpoint"] = json!(slow.url());
        assert_eq!(put(&agent, key, &request, 1).code, 202);
        (key, request)
    });
    let message = |key: &str| agent.get(&format!("/v1/publications/{key}")).json()["message"].to_string();
    eventually("the third one waits", || message("three").contains("waits for its turn to mirror"));
    publish(&agent, "mirrored", &request(&env, "/mirrored"));
    let mut other = request(&env, "/other");
    other["tenant"] = json!("other");
    publish(&agent, "other", &other);
    assert!(message("three").contains("waits for its turn to mirror"), "{}", agent.log());
    slow.set(PASSING);
    for (key, request) in &copied {
        publish(&agent, key, request);
    }
}
