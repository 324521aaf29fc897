//! Publications outlive their agent; and nothing of them outlives the machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::disk::{DiskFault, LoopDisk};
use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::assert_same;
use serde_json::{Value, json};

use crate::kit::{assert_nothing_left, bases, bound, config, publish, put, records, targets, unpublish};

/// The device of a directory, which tells mounts apart.
fn device(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::dev(&fs::metadata(path).unwrap())
}

#[test]
fn agent_killed_under_binds_leaves_them_to_the_next() {
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

/// A request for the bucket, bound to the target `pod`, with the secret `token` of the request itself.
fn with_secret(env: &TestEnv, keys: &Keys) -> (Value, PathBuf) {
    let (mut request, target) = bound(env, "", "pod");
    request["access"] = json!({"s3": {"endpoint": env.proxy.url()}});
    request["secrets"] = json!({"token": secret(keys)});
    (request, target)
}

fn secret(keys: &Keys) -> String {
    let Keys { access: id, secret, .. } = keys;
    json!({"aws_access_key_id": id, "aws_secret_access_key": secret, "aws_region": "us-east-1"}).to_string()
}

#[test]
fn pending_publication_is_resumed_by_the_next_agent() {
    for end in [AgentProcess::crash, AgentProcess::end] {
        let env = TestEnv::new();
        let bytes = env.put("file", 2 * MIB);
        let secrets = env.machine.directory("secrets");
        fs::write(secrets.join("s3"), secret(&Keys::sample())).unwrap();
        let config = format!("secrets = [{secrets:?}]\n{}", config(&env.machine));
        let agent = env.machine.agent(&config);
        let (mut request, target) = bound(&env, "", "pod");
        let by_name = json!({"auth_method": "CUSTOM_SECRET", "auth_secret_name": "s3"});
        request["access"] = json!({"s3": {"endpoint": env.proxy.url()}, "auth": by_name});
        // Resolved, mounted, and not staged.
        env.proxy.set(NetworkFault { rate: Some(64 << 10), ..NetworkFault::default() });
        let answer = put(&agent, "pod", &request, 2);
        assert_eq!(answer.code, 202, "{}", answer.body);
        end(agent);
        assert!(!is_mounted(&target));
        env.proxy.set(NetworkFault::default());
        let agent = env.machine.agent(&config);
        // It gets no further requests.
        let status = || agent.get("/v1/publications/pod");
        eventually("it is published", || status().code == 200 && status().json()["state"] == "published");
        assert_same(&bytes, &fs::read(target.join("file")).unwrap(), "what is published");
        assert_eq!(bases(&env.machine).len(), 1);
        unpublish(&agent, "pod");
        assert_nothing_left(&env);
    }
}

/// Asks for the publication `pod` at a target on a frozen disk. It waits for that; nothing asks whether it is to end any more.
fn publish_on_frozen(env: &TestEnv, agent: &AgentProcess, disk: &LoopDisk) -> (PathBuf, DiskFault) {
    let (mut request, target) = (super::kit::request(env, ""), disk.path().join("pod"));
    request["target"] = json!(target);
    request["staging"] = json!("lazy");
    let frozen = disk.freeze();
    assert_eq!(put(agent, "pod", &request, 0).code, 202);
    eventually("it is about to be bound", || {
        let record = fs::read_to_string(env.machine.cache().join("state/publications/pod.json"));
        record.is_ok_and(|record| !record.contains("\"pending\""))
    });
    (target, frozen)
}

#[test]
fn publication_bound_while_the_agent_exits_is_kept_for_the_next() {
    let Some(disk) = LoopDisk::new(64 << 20) else { return };
    let env = TestEnv::new();
    let bytes = env.put("file", 2 * MIB);
    let config = format!("[publications]\ntargets = [{:?}]", disk.path());
    let agent = env.machine.agent(&config);
    let (target, frozen) = publish_on_frozen(&env, &agent, &disk);
    let pid = agent.pid();
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| agent.end());
        // It has been asked to end by then.
        std::thread::sleep(Duration::from_secs(2));
        assert!(rustix::process::test_kill_process(pid).is_ok(), "the agent waits for it");
        drop(frozen);
        ended.join().unwrap();
    });
    assert!(is_mounted(&target), "a pod has it");
    let agent = env.machine.agent(&config);
    assert_eq!(agent.get("/v1/publications/pod").json()["state"], "published");
    assert_same(&bytes, &fs::read(target.join("file")).unwrap(), "what is published");
    unpublish(&agent, "pod");
    assert!(!is_mounted(&target) && records(&env.machine).is_empty());
}

#[test]
fn publication_unpublished_while_the_agent_exits_is_not_resumed() {
    let Some(disk) = LoopDisk::new(64 << 20) else { return };
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let config = format!("[publications]\ntargets = [{:?}, {:?}]", targets(&env.machine), disk.path());
    let agent = env.machine.agent(&config);
    let (request, pending) = bound(&env, "", "pending");
    env.proxy.set(NetworkFault { rate: Some(64 << 10), ..NetworkFault::default() });
    assert_eq!(put(&agent, "pending", &request, 2).code, 202);
    // The agent waits for this one before it ends.
    let (target, frozen) = publish_on_frozen(&env, &agent, &disk);
    rustix::process::kill_process(agent.pid(), rustix::process::Signal::TERM).unwrap();
    eventually("the other one is suspended", || agent.get("/v1/publications/pending").code == 404);
    unpublish(&agent, "pending");
    drop(frozen);
    agent.gone();
    env.proxy.set(NetworkFault::default());
    let agent = env.machine.agent(&config);
    assert_eq!(agent.get("/v1/publications/pending").code, 404, "{}", agent.log());
    assert!(!pending.exists() && is_mounted(&target));
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn pending_publication_with_secrets_waits_for_them_after_a_crash() {
    let env = TestEnv::new();
    let bytes = env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = with_secret(&env, &Keys::sample());
    env.proxy.set(NetworkFault { rate: Some(64 << 10), ..NetworkFault::default() });
    assert_eq!(put(&agent, "pod", &request, 2).code, 202);
    agent.crash();
    let record = fs::read_to_string(&records(&env.machine)[0]).unwrap();
    assert!(!record.contains(&Keys::sample().secret), "{record}");
    env.proxy.set(NetworkFault::default());
    let agent = env.machine.agent(&config(&env.machine));
    let status = agent.get("/v1/publications/pod").json();
    assert!(status["message"].as_str().unwrap().contains("asked for again"), "{status}");
    assert_eq!((status["state"].as_str(), is_mounted(&target)), (Some("staging"), false));
    publish(&agent, "pod", &request);
    assert_same(&bytes, &fs::read(target.join("file")).unwrap(), "what is published");
    // One without requests is dropped.
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn secret_of_a_repeated_request_is_used_by_this_agent_and_the_next() {
    let env = TestEnv::new();
    let bytes = ["a", "b", "c"].map(|name| env.put(name, 2 * MIB));
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, target) = with_secret(&env, &Keys::sample());
    request["staging"] = json!("lazy");
    publish(&agent, "pod", &request);
    assert_same(&bytes[0], &fs::read(target.join("a")).unwrap(), "a");
    let rotated = Keys { secret: "rotated".to_owned(), ..Keys::sample() };
    env.s3.allowed_keys().revoke_all();
    env.s3.allowed_keys().allow(rotated.clone(), None);
    assert_eq!(fs::read(target.join("b")).unwrap_err().raw_os_error(), Some(libc::EACCES));
    request["secrets"] = json!({"token": secret(&rotated)});
    env.s3.requests.clear();
    publish(&agent, "pod", &request);
    assert_eq!(env.s3.requests.all().requests, 0);
    eventually("it can be read again", || fs::read(target.join("b")).is_ok_and(|read| read == bytes[1]));
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    assert_same(&bytes[2], &fs::read(target.join("c")).unwrap(), "c");
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn secret_sent_before_the_mount_or_with_a_second_publication_is_used() {
    let env = TestEnv::new();
    let bytes = ["a", "b"].map(|name| env.put(name, 2 * MIB));
    let agent = env.machine.agent(&config(&env.machine));
    let [first, second, third] =
        ["first", "second", "third"].map(|name| Keys { secret: name.to_owned(), ..Keys::sample() });
    let allow_only = |keys: &Keys| {
        env.s3.allowed_keys().revoke_all();
        env.s3.allowed_keys().allow(keys.clone(), None);
    };
    allow_only(&first);
    let (mut request, target) = with_secret(&env, &first);
    request["staging"] = json!("lazy");
    env.proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    assert_eq!(put(&agent, "pod", &request, 2).code, 202);
    // It is resolved with the first.
    request["secrets"] = json!({"token": secret(&second)});
    assert_eq!(put(&agent, "pod", &request, 0).code, 202);
    env.proxy.set(NetworkFault::default());
    publish(&agent, "pod", &request);
    allow_only(&second);
    assert_same(&bytes[0], &fs::read(target.join("a")).unwrap(), "a");
    allow_only(&third);
    request["secrets"] = json!({"token": secret(&third)});
    request["target"] = json!(targets(&env.machine).join("another"));
    publish(&agent, "another", &request);
    assert_eq!(bases(&env.machine).len(), 1);
    assert_same(&bytes[1], &fs::read(target.join("b")).unwrap(), "b");
    unpublish(&agent, "pod");
    unpublish(&agent, "another");
    assert_nothing_left(&env);
}

#[test]
fn lazy_publication_with_a_wrong_secret_is_refused_beside_one_that_reads_on() {
    let env = TestEnv::new();
    let bytes = ["a", "b"].map(|name| env.put(name, 2 * MIB));
    let agent = env.machine.agent(&config(&env.machine));
    let (mut right, target) = with_secret(&env, &Keys::sample());
    right["staging"] = json!("lazy");
    let (wrong, other_target) = {
        let (mut wrong, other) = (right.clone(), targets(&env.machine).join("other"));
        wrong["secrets"] = json!({"token": secret(&Keys { secret: "wrong".to_owned(), ..Keys::sample() })});
        wrong["target"] = json!(other);
        (wrong, other)
    };
    let refused = || {
        let told = put(&agent, "other", &wrong, 50);
        assert_eq!((told.code, told.json()["kind"].as_str()), (403, Some("refused")), "{}", told.body);
        assert!(!other_target.exists());
        told.body
    };
    let alone = refused();
    publish(&agent, "pod", &right);
    assert_same(&bytes[0], &fs::read(target.join("a")).unwrap(), "before");
    assert_eq!(refused(), alone);
    assert_same(&bytes[1], &fs::read(target.join("b")).unwrap(), "after");
    assert_eq!(bases(&env.machine).len(), 1);
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn agent_without_its_fdstore_binds_publications_again() {
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
    // Containers have copies of the old mount, which is dead.
    let assert_abnormal = |status: Value| {
        let message = status["message"].as_str().unwrap().to_owned();
        assert!(status["abnormal"] == json!(true) && message.contains("restart the containers"), "{status}");
    };
    assert_abnormal(agent.get("/v1/publications/pod").json());
    assert_eq!(publish(&agent, "later", &super::kit::request(&env, ""))["abnormal"], json!(false));
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    assert_abnormal(publish(&agent, "pod", &request));
    assert_eq!(agent.get("/v1/publications/later").json()["abnormal"], json!(false));
    unpublish(&agent, "later");
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn publication_with_unmounted_target_ends_when_the_next_agent_starts() {
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
    eventually("its base has ended", || bases(&env.machine).is_empty());
    assert_nothing_left(&env);
}

#[test]
fn publication_after_a_reboot_is_gone_and_its_lease_is_kept() {
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
    // Also by an agent that is started again meanwhile.
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    let evicted = agent.ask("POST", "/v1/cache/evict", "{\"all\": true}").json();
    assert_eq!(evicted["blobs"], 0, "what was published is still leased: {evicted}");
    env.s3.requests.clear();
    publish(&agent, "pod", &request);
    assert!(is_local(&target.join("file")) && env.fetched("file").requests == 0);
}

#[test]
fn publication_is_unbound_also_where_the_targets_have_changed() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    publish(&agent, "pod", &request);
    agent.crash();
    let elsewhere = format!("[publications]\ntargets = [{:?}]", env.machine.directory("elsewhere"));
    let agent = env.machine.agent(&elsewhere);
    assert!(is_mounted(&target));
    publish(&agent, "pod", &request);
    unpublish(&agent, "pod");
    assert!(!is_mounted(&target));
    assert_nothing_left(&env);
}

#[test]
fn publication_stays_when_its_source_is_not_allowed_any_more() {
    let env = TestEnv::new();
    let source = env.machine.directory("source");
    fs::write(source.join("file"), "weights").unwrap();
    let config = |sources: &str| format!("{}\ninline_sources = [{sources:?}]", config(&env.machine));
    let agent = env.machine.agent(&config("file"));
    let target = targets(&env.machine).join("pod");
    let request = json!({"source": format!("file://{}", source.display()), "target": target});
    publish(&agent, "pod", &request);
    agent.crash();
    let agent = env.machine.agent(&config("hf"));
    publish(&agent, "pod", &request);
    let refused = put(&agent, "another", &json!({"source": request["source"]}), 50);
    assert_eq!((refused.code, refused.json()["kind"].as_str()), (403, Some("forbidden")), "{}", refused.body);
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}
