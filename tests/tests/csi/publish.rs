//! Volumes of pods: published when every byte is local, held and joined meanwhile, never taken away, and ended without a trace.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::time::Duration;

use bdnfs_csi::proto::csi::volume_capability::access_mode::Mode;
use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::{CALL_DEADLINE, PodVolume};
use bdnfs_tests::mounts::{is_local, is_mounted, mount_points};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tree::{assert_same, assert_same_tree};
use tonic::Code;

use crate::kit::{DriverProcess, KubernetesNode, secret};

/// Calls with this deadline are held for half of it.
pub const SHORT_DEADLINE: Duration = Duration::from_secs(4);

/// What the agent knows of publications, and what is mounted of the node's.
pub fn remaining(node: &KubernetesNode) -> (usize, usize) {
    let listed = node.agent().get("/v1/publications").json();
    let own = node.env.machine.directory("");
    let mounts = mount_points().into_iter().filter(|point| point.starts_with(&own)).count();
    (listed["publications"].as_array().unwrap().len(), mounts)
}

#[test]
fn volume_published_is_whole_and_read_only_and_unpublished_without_a_trace() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("model/weights", 5 * MIB);
    node.env.put("config.json", 700);
    let volume = node.volume("pod");
    let errors = node.kubelet.mount(&volume);
    assert!(errors.is_empty(), "{errors:?}");
    let target = node.kubelet.target(&volume);
    assert!(is_mounted(&target) && is_local(&target.join("model/weights")));
    assert_same_tree(&node.env.bucket(), &target);
    assert_eq!(fs::write(target.join("new"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(node.kubelet.stats(&volume).unwrap(), ((5 * MIB + 700) as i64, 2, false));
    for _ in 0..2 {
        node.kubelet.unpublish(&volume).unwrap();
    }
    assert_eq!(remaining(&node), (0, 0));
    assert_eq!(node.kubelet.stats(&volume).unwrap_err().code(), Code::NotFound);
}

#[test]
fn volume_published_again_makes_no_request_and_never_fails() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    let bytes = node.env.put("weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    node.env.s3.requests.clear();
    // Another secret, and a service that is away.
    let rotated =
        PodVolume { secrets: HashMap::from([("key".into(), "no secret".into())]), ..volume.clone() };
    node.kubelet.publish(&rotated).unwrap();
    node.env.proxy.set(NetworkFault { refuse: true, ..NetworkFault::default() });
    node.kubelet.publish(&volume).unwrap();
    // Another driver, which trusts no volume: rules that changed take nothing away.
    let mut inline = volume.clone();
    inline.context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
    node.driver.end();
    node.driver = DriverProcess::start(&node.env, &[]);
    node.kubelet.register();
    node.kubelet.publish(&inline).unwrap();
    assert_eq!(node.env.s3.requests.all().requests, 0);
    assert_same(&bytes, &fs::read(node.kubelet.target(&volume).join("weights")).unwrap(), "weights");
    node.kubelet.unpublish(&volume).unwrap();
}

#[test]
fn publish_beyond_its_deadline_aborts_with_progress_and_is_joined_by_the_next() {
    let node = KubernetesNode::new(SHORT_DEADLINE);
    let size = 8 * MIB;
    node.env.put("weights", size);
    node.env.proxy.set(NetworkFault { rate: Some(100_000), ..NetworkFault::default() });
    let volume = node.volume("pod");
    let error = node.kubelet.publish(&volume).unwrap_err();
    assert!(error.code() == Code::Aborted && error.message().contains("s3://bucket"), "{error:?}");
    assert!(!node.kubelet.target(&volume).exists());
    // A driver that is killed, and its successor: the agent goes on.
    node.env.proxy.set(NetworkFault::default());
    node.kubelet.mount(&volume);
    assert!(is_local(&node.kubelet.target(&volume).join("weights")));
    let fetched = node.env.fetched("weights").bytes;
    assert!(fetched < 2 * size as u64, "{fetched} bytes of {size}");
    node.kubelet.unpublish(&volume).unwrap();
}

#[test]
fn pod_deleted_while_its_volume_is_staged_leaves_nothing() {
    let node = KubernetesNode::new(SHORT_DEADLINE);
    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(NetworkFault { rate: Some(100_000), ..NetworkFault::default() });
    let volume = node.volume("pod");
    assert_eq!(node.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    node.kubelet.unpublish(&volume).unwrap();
    eventually("its base ends", || remaining(&node) == (0, 0));
}

#[test]
fn pod_deleted_while_a_call_is_held_ends_the_call_and_leaves_nothing() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(NetworkFault { rate: Some(100_000), ..NetworkFault::default() });
    let volume = node.volume("pod");
    std::thread::scope(|scope| {
        let held = scope.spawn(|| node.kubelet.call_publish(&volume));
        eventually("it is staged", || remaining(&node).0 == 1);
        node.kubelet.unpublish(&volume).unwrap();
        let error = held.join().unwrap().unwrap_err();
        assert_eq!(error.code(), Code::Aborted, "{error:?}");
    });
    eventually("its base ends", || remaining(&node) == (0, 0));
}

#[test]
fn volume_with_a_permanent_failure_leaves_nothing_and_says_why() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", MIB);
    let with = |key: &str, value: &str| {
        let mut volume = node.volume("pod");
        volume.context.insert(key.to_owned(), value.to_owned());
        volume
    };
    let missing = with("source", "s3://bucket/nothing");
    let with_secret =
        |secret: String| PodVolume { secrets: HashMap::from([("key".into(), secret)]), ..node.volume("pod") };
    let refused = with_secret(secret().replace(&Keys::sample().secret, "another"));
    let unreadable = with_secret("{}".into());
    let nameless = PodVolume { id: String::new(), ..node.volume("pod") };
    for (volume, code) in [
        (missing, Code::NotFound),
        (refused, Code::PermissionDenied),
        (unreadable, Code::InvalidArgument),
        (nameless, Code::InvalidArgument),
    ] {
        let error = node.kubelet.publish(&volume).unwrap_err();
        assert!(error.code() == code && !error.message().contains('\n'), "{code:?}: {error:?}");
        assert_eq!(remaining(&node), (0, 0), "{error:?}");
    }
}

#[test]
fn second_target_of_a_volume_for_one_pod_is_refused() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", MIB);
    let one = PodVolume { mode: Mode::SingleNodeSingleWriter, ..node.volume("one") };
    let other = PodVolume { mode: Mode::SingleNodeSingleWriter, ..node.volume("other") };
    node.kubelet.mount(&one);
    node.kubelet.publish(&one).unwrap();
    let error = node.kubelet.publish(&other).unwrap_err();
    assert!(
        error.code() == Code::FailedPrecondition && error.message().contains("pod default/one"),
        "{error:?}"
    );
    node.kubelet.unpublish(&one).unwrap();
    node.kubelet.mount(&other);
    node.kubelet.unpublish(&other).unwrap();
}

#[test]
fn target_that_shows_another_source_is_refused() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("one/weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    let mut other = volume.clone();
    other.context.insert("source".into(), "s3://bucket/one".into());
    // Asked past the kubelet, which would remove the directory.
    let error = node.kubelet.call_publish(&other).unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists, "{error:?}");
    assert!(is_mounted(&node.kubelet.target(&volume)));
    node.kubelet.unpublish(&volume).unwrap();
}

#[test]
fn volume_outlives_a_killed_agent_and_driver() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    let bytes = node.env.put("weights", 3 * MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    let path = node.kubelet.target(&volume).join("weights");
    node.agent.take().unwrap().crash();
    node.driver.crash();
    node.driver = DriverProcess::start(&node.env, &[]);
    node.kubelet.register();
    // A call that finds no agent waits for the next one.
    let (kubelet, env) = (&node.kubelet, &node.env);
    let agent = std::thread::scope(|scope| {
        let again = scope.spawn(|| kubelet.publish(&volume));
        let agent = env.machine.agent(&KubernetesNode::config(env));
        again.join().unwrap().unwrap();
        agent
    });
    node.agent = Some(agent);
    assert_same(&bytes, &fs::read(path).unwrap(), "weights");
    assert_eq!(node.kubelet.stats(&volume).unwrap(), (3 * MIB as i64, 1, false));
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn call_held_while_the_agent_is_replaced_goes_on_with_the_next_one() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(NetworkFault { rate: Some(100_000), ..NetworkFault::default() });
    let volume = node.volume("pod");
    let (kubelet, env, agent) = (&node.kubelet, &node.env, node.agent.take().unwrap());
    let agent = std::thread::scope(|scope| {
        let held = scope.spawn(|| kubelet.call_publish(&volume));
        eventually("it is staged", || agent.get("/v1/publications").body.contains(" of 8.4 MB, "));
        agent.end();
        env.proxy.set(NetworkFault::default());
        let agent = env.machine.agent(&KubernetesNode::config(env));
        held.join().unwrap().unwrap();
        agent
    });
    node.agent = Some(agent);
    assert!(is_local(&node.kubelet.target(&volume).join("weights")));
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn unpublish_without_an_agent_is_unavailable_and_leaves_the_mount() {
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    node.env.put("weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    node.agent.take().unwrap().crash();
    let error = node.kubelet.unpublish(&volume).unwrap_err();
    assert!(error.code() == Code::Unavailable && error.message().contains("no agent listens"), "{error:?}");
    assert!(is_mounted(&node.kubelet.target(&volume)));
    node.start_agent();
    node.kubelet.unpublish(&volume).unwrap();
}

#[test]
fn volume_whose_record_cannot_be_read_is_served_on_and_unpublished() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    let bytes = node.env.put("weights", MIB);
    let [volume, other] = ["pod", "other"].map(|pod| node.volume(pod));
    node.kubelet.mount(&volume);
    node.kubelet.mount(&other);
    node.agent.take().unwrap().crash();
    for entry in fs::read_dir(node.env.machine.cache().join("state/publications")).unwrap() {
        fs::write(entry.unwrap().path(), "garbage").unwrap();
    }
    node.start_agent();
    assert_same(&bytes, &fs::read(node.kubelet.target(&volume).join("weights")).unwrap(), "the pod's file");
    // As a kubelet does from time to time.
    node.kubelet.call_publish(&other).unwrap();
    node.kubelet.unpublish(&volume).unwrap();
    assert_same(&bytes, &fs::read(node.kubelet.target(&other).join("weights")).unwrap(), "the other's file");
    node.kubelet.unpublish(&other).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}
