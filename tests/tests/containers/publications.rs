//! Publications: one base for all, staged before it is visible, bound read-only, ended without a trace.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::mounts::{is_local, is_mounted, unmount};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, assert_same_tree, write_tree};
use rustix::mount::{MountFlags, UnmountFlags, mount};
use serde_json::json;

use crate::kit::{
    assert_nothing_left, bases, bound, config, entries, publish, put, request, targets, unpublish,
};

const PASSING: NetworkFault =
    NetworkFault { refuse: false, frozen: false, delay: Duration::ZERO, rate: None, cut: None };
const FROZEN: NetworkFault = NetworkFault { frozen: true, ..PASSING };

#[test]
fn hundred_publications_of_a_snapshot_share_one_base_and_one_stage() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let bytes = env.put("large", 3 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let all: Vec<_> = (0..100).map(|number| bound(&env, "", &number.to_string())).collect();
    std::thread::scope(|scope| {
        for (number, (request, _)) in all.iter().enumerate() {
            let agent = &agent;
            scope.spawn(move || publish(agent, &format!("pod-{number}"), request));
        }
    });
    assert_eq!(bases(&env.machine).len(), 1, "{}", agent.log());
    assert_eq!(env.fetched("large").bytes, bytes.len() as u64, "it is staged once");
    for (_, target) in &all {
        assert!(is_mounted(target) && is_local(&target.join("large")));
        File::create(target.join("new")).expect_err("it is read-only");
    }
    assert_same_tree(&env.bucket(), &all[99].1);
    assert_eq!(agent.status()["publications"].as_array().unwrap().len(), 100);
    for number in 0..100 {
        unpublish(&agent, &format!("pod-{number}"));
        assert_eq!(bases(&env.machine).len(), usize::from(number < 99), "the last one ends the base");
    }
    assert_nothing_left(&env);
    eventually("its lease ends", || {
        let metrics = agent.get("/metrics").body;
        metrics.contains("bdnfs_leased_snapshots 0")
    });
}

#[test]
fn publication_repeated_makes_no_request_even_with_other_secrets() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, target) = bound(&env, "", "pod");
    request["holder"] = json!("pod default/a");
    let first = publish(&agent, "pod", &request);
    assert!(first["message"].as_str().unwrap().contains("full miss"), "{first}");
    env.s3.requests.clear();
    request["access"]["s3"]["secret_access_key"] = json!("rotated");
    request["holder"] = json!("pod default/b");
    assert_eq!(publish(&agent, "pod", &request)["path"], first["path"]);
    assert_eq!(env.s3.requests.all().requests, 0);
    // It was unmounted from outside: it is bound again, still without any request.
    rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
    publish(&agent, "pod", &request);
    assert!(is_mounted(&target) && env.s3.requests.all().requests == 0);
    request["allow"] = json!(["other"]);
    let answer = put(&agent, "pod", &request, 1);
    assert_eq!((answer.code, answer.json()["kind"].as_str()), (409, Some("exists")));
    let answer = put(&agent, "another", &request, 1);
    assert_eq!((answer.code, answer.json()["kind"].as_str()), (409, Some("exists")), "its target is taken");
    assert!(is_mounted(&target));
}

#[test]
fn bases_of_different_owners_tenants_and_snapshots_are_separate() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let first = request(&env, "");
    let mut owned = first.clone();
    owned["uid"] = json!(7);
    let mut tenant = first.clone();
    tenant["tenant"] = json!("alice");
    let path = |key: &str, request| publish(&agent, key, request)["path"].as_str().unwrap().to_owned();
    let [one, same, owned, tenant] =
        [("one", &first), ("same", &first), ("owned", &owned), ("tenant", &tenant)]
            .map(|(key, r)| path(key, r));
    env.put("more", 5);
    let later = path("later", &first);
    assert_eq!(one, same);
    assert_eq!(bases(&env.machine).len(), 4, "{one} {owned} {tenant} {later}");
    assert!(!fs::exists(format!("{one}/more")).unwrap() && fs::exists(format!("{later}/more")).unwrap());
    for key in ["one", "same", "owned", "tenant", "later"] {
        unpublish(&agent, key);
    }
    assert_nothing_left(&env);
}

#[test]
fn base_of_an_administrator_is_not_shared_with_untrusted_requests() {
    let env = TestEnv::new();
    let source = env.machine.directory("source");
    fs::write(source.join("file"), "weights").unwrap();
    let agent = env.machine.agent(&format!("{}\ninline_sources = [\"file\"]", config(&env.machine)));
    let path = |key: &str, trusted: bool| {
        let request = json!({"source": format!("file://{}", source.display()), "trusted": trusted});
        publish(&agent, key, &request)["path"].clone()
    };
    let [trusted, pod, other] =
        [("trusted", true), ("pod", false), ("other", false)].map(|(key, trusted)| path(key, trusted));
    assert!(trusted != pod && pod == other, "{trusted} {pod} {other}");
    assert_eq!(bases(&env.machine).len(), 2);
    for key in ["trusted", "pod", "other"] {
        unpublish(&agent, key);
    }
    assert_nothing_left(&env);
}

#[test]
fn publication_outlives_its_caller_and_is_joined() {
    let env = TestEnv::new();
    let bytes = env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    env.proxy.set(FROZEN);
    let pending = put(&agent, "pod", &request, 1);
    assert_eq!((pending.code, pending.json()["state"].as_str()), (202, Some("staging")), "{}", pending.body);
    assert!(!target.exists(), "nothing is seen before the gate");
    env.proxy.set(PASSING);
    assert_eq!(publish(&agent, "pod", &request)["state"], "published");
    assert_same(&bytes, &fs::read(target.join("file")).unwrap(), "what is published");
}

#[test]
fn base_unmounted_by_an_administrator_is_mounted_anew() {
    let env = TestEnv::new();
    let bytes = env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let unbound = request(&env, "");
    let [(first, first_target), (second, second_target)] =
        ["first", "second"].map(|name| bound(&env, "", name));
    let path = |key: &str, request| publish(&agent, key, request)["path"].as_str().unwrap().to_owned();
    publish(&agent, "first", &first);
    let base = path("unbound", &unbound);
    rustix::mount::unmount(base.as_str(), UnmountFlags::DETACH).unwrap();
    publish(&agent, "second", &second);
    assert_same(&bytes, &fs::read(second_target.join("file")).unwrap(), "what is bound later");
    let anew = path("unbound", &unbound);
    assert!(anew != base, "{anew}");
    assert_same(&bytes, &fs::read(format!("{anew}/file")).unwrap(), "what is asked for again");
    assert_eq!(bases(&env.machine), [std::path::PathBuf::from(&anew)]);
    // The bind has outlived the base, and after it the agent that made it.
    let devices = || [&first_target, &second_target].map(|target| fs::metadata(target).unwrap().dev());
    let before = devices();
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    publish(&agent, "first", &first);
    assert_same(&bytes, &fs::read(first_target.join("file")).unwrap(), "what was bound before");
    assert_eq!(devices()[1], before[1]);
    for key in ["first", "unbound", "second"] {
        unpublish(&agent, key);
    }
    assert_nothing_left(&env);
}

#[test]
fn lazy_publication_is_bound_before_it_is_staged() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, target) = bound(&env, "", "pod");
    request["staging"] = json!("lazy");
    publish(&agent, "pod", &request);
    assert_eq!(env.fetched("file").requests, 0);
    let mut byte = [0];
    File::open(target.join("file")).unwrap().read_exact(&mut byte).unwrap();
    assert!(env.fetched("file").requests > 0);
}

#[test]
fn unpublish_of_unknown_pending_busy_or_dead_publication_ends() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let agent = env.machine.agent(&config(&env.machine));
    unpublish(&agent, "unknown");
    env.proxy.set(FROZEN);
    assert_eq!(put(&agent, "pending", &bound(&env, "", "pending").0, 0).code, 202);
    unpublish(&agent, "pending");
    env.proxy.set(PASSING);
    assert_nothing_left(&env);

    let (request, target) = bound(&env, "", "busy");
    publish(&agent, "busy", &request);
    let mut open = File::open(target.join("file")).unwrap();
    unpublish(&agent, "busy");
    assert!(!is_mounted(&target) && !target.exists());
    let mut bytes = Vec::new();
    assert_eq!(open.read_to_end(&mut bytes).unwrap(), 2 * MIB, "who has it open reads on");
    drop(open);
    eventually("its base has ended", || bases(&env.machine).is_empty());

    // Its base is unmounted by hand, and its parent is gone.
    let (request, target) = bound(&env, "", "dead");
    let base = {
        publish(&agent, "dead", &request);
        bases(&env.machine).remove(0)
    };
    rustix::mount::unmount(&base, UnmountFlags::DETACH).unwrap();
    unpublish(&agent, "dead");
    assert!(!target.exists());
    assert_eq!(agent.get("/v1/publications").json()["publications"], json!([]));
}

#[test]
fn unpublish_under_a_mount_of_somebody_else_fails_until_that_is_gone() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (request, target) = bound(&env, "", "pod");
    publish(&agent, "pod", &request);
    mount("none", &target, "tmpfs", MountFlags::empty(), c"").unwrap();
    let refused = agent.ask("DELETE", "/v1/publications/pod", "");
    assert_eq!((refused.code, refused.json()["kind"].as_str()), (409, Some("busy")), "{}", refused.body);
    assert!(refused.body.contains("none is mounted over it"), "{}", refused.body);
    assert_eq!(bases(&env.machine).len(), 1, "it stays published");
    agent.crash();
    let agent = env.machine.agent(&config(&env.machine));
    assert_eq!(agent.ask("DELETE", "/v1/publications/pod", "").code, 409, "{}", agent.log());
    unmount(&target);
    unpublish(&agent, "pod");
    assert_nothing_left(&env);
}

#[test]
fn failed_publication_leaves_nothing_and_is_retried() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, target) = bound(&env, "", "pod");
    let good = request["access"]["s3"]["secret_access_key"].clone();
    request["access"]["s3"]["secret_access_key"] = json!("wrong");
    let refused = put(&agent, "pod", &request, 60);
    assert_eq!((refused.code, refused.json()["kind"].as_str()), (403, Some("refused")), "{}", refused.body);
    assert!(!refused.json()["message"].as_str().unwrap().contains('\n'));
    assert_nothing_left(&env);
    // Who did not wait is told next time, once.
    assert_eq!(put(&agent, "pod", &request, 0).code, 202);
    let state = || agent.get("/v1/publications/pod").json()["state"].clone();
    eventually("it has failed", || state() == "failed");
    assert_eq!(put(&agent, "pod", &request, 0).code, 403);
    request["access"]["s3"]["secret_access_key"] = good;
    let mut other = request.clone();
    other["source"] = json!("s3://nothing");
    assert_eq!(put(&agent, "pod", &other, 0).code, 202);
    eventually("it has failed", || state() == "failed");
    // Why another source failed is no answer.
    publish(&agent, "pod", &request);
    unpublish(&agent, "pod");
    // The parent of the target has gone meanwhile.
    request["target"] = json!(targets(&env.machine).join("gone/mount"));
    let gone = put(&agent, "pod", &request, 60);
    assert_eq!((gone.code, gone.json()["kind"].as_str()), (404, Some("notfound")), "{}", gone.body);
    // Something else is mounted there.
    let other = env.machine.mount("s3://bucket", "targets/other");
    request["target"] = json!(other);
    let taken = put(&agent, "pod", &request, 60);
    assert_eq!((taken.code, taken.json()["kind"].as_str()), (409, Some("busy")), "{}", taken.body);
    assert!(is_mounted(&other) && !target.exists(), "what is not ours stays");
    env.machine.umount(&other);
    fs::remove_dir(other).unwrap();
    assert_nothing_left(&env);
}

#[test]
fn publication_with_hostile_target_is_refused() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, _) = bound(&env, "", "pod");
    let (targets, elsewhere) = (targets(&env.machine), env.machine.directory("elsewhere"));
    symlink(&elsewhere, targets.join("link")).unwrap();
    for (target, code) in [
        (targets.join("../elsewhere/pod"), 400),
        (targets.join("a/../../elsewhere/pod"), 400),
        (elsewhere.join("pod"), 403),
        (targets.clone(), 403),
        ("relative".into(), 400),
        (targets.join("link/pod"), 403),
        (targets.join("link"), 403),
    ] {
        request["target"] = json!(target);
        let answer = put(&agent, "pod", &request, 60);
        assert_eq!(answer.code, code, "{}: {}", target.display(), answer.body);
    }
    assert!(entries(&elsewhere).is_empty());
    fs::remove_file(targets.join("link")).unwrap();
    assert_nothing_left(&env);
}

#[test]
fn untrusted_request_is_limited_to_its_own_secret_and_public_services() {
    let env = TestEnv::new();
    env.put("file", 5);
    // The node's own credentials would do.
    let store = env.machine.directory("secrets");
    let Keys { access: id, secret, .. } = Keys::sample();
    let key = json!({"aws_access_key_id": id, "aws_secret_access_key": secret, "aws_region": "us-east-1"});
    fs::write(store.join("node"), key.to_string()).unwrap();
    let agent = env.machine.agent(&format!("secrets = [{store:?}]\n{}", config(&env.machine)));
    let by_node = json!({"auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "node"}});
    for (request, words) in [
        (json!({"source": "s3://bucket", "access": request(&env, "")["access"]}), "endpoint: "),
        (json!({"source": "https://169.254.169.254/latest"}), "source: "),
        (json!({"source": "file:///etc"}), "source: "),
        (json!({"source": "s3://bucket", "uid": 0}), "uid: "),
        (json!({"source": "s3://bucket"}), "those of this machine are not for this source"),
        (json!({"source": "s3://bucket", "access": by_node}), "no such secret: \"node\""),
    ] {
        let answer = put(&agent, "pod", &request, 60);
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(answer.code == 403 && message.contains(words), "{request}: {} {message}", answer.code);
    }
    assert_eq!(env.s3.requests.all().requests, 0);
    let unknown = put(&agent, "pod", &json!({"source": "hf://o/m", "cacheDir": "/"}), 60);
    assert!(unknown.code == 400 && unknown.body.contains("cacheDir"), "{}", unknown.body);
    assert_nothing_left(&env);
}

#[test]
fn secrets_of_a_request_are_neither_logged_nor_written() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, _) = bound(&env, "", "pod");
    let access = &mut request["access"]["s3"];
    let Keys { access: id, secret, .. } = Keys::sample();
    access["secret_access_key"].take();
    access["access_key_id"].take();
    let key = json!({"aws_access_key_id": id, "aws_secret_access_key": secret, "aws_region": "us-east-1"});
    request["secrets"] = json!({"only": key.to_string()});
    publish(&agent, "pod", &request);
    let output = bdnfs_tests::tools::program("grep")
        .args(["-r", "-a", "-s", "-l", "-F", "-e", &secret])
        .arg(env.machine.cache())
        .arg(env.machine.directory("etc"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files that hold the secret");
    assert!(!agent.get("/v1/publications").body.contains(&secret));
}
