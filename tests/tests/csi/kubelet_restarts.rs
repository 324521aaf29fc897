//! A kubelet that dies in mid-publish, and the next one, which knows of its pods and not of its calls.

use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::{CALL_DEADLINE, Kubelet, PodVolume};
use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::tree::assert_same_tree;

use crate::kit::KubernetesNode;
use crate::publish::remaining;

const SIZE: usize = 8 * MIB;

/// A node whose kubelet died while it published this volume, which is staged. No kubelet runs there now.
fn node_without_kubelet() -> (KubernetesNode, PodVolume) {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", SIZE);
    node.env.proxy.set(NetworkFault { rate: Some(400_000), ..NetworkFault::default() });
    let volume = node.volume("pod");
    let next = Kubelet::new(&node.env.machine.directory("kubelet"));
    let kubelet = std::mem::replace(&mut node.kubelet, next);
    kubelet.die_in_mid_publish(&volume, || is_staging(&node));
    (node, volume)
}

/// Whether the node's one publication is being staged.
fn is_staging(node: &KubernetesNode) -> bool {
    let listed = node.agent().get("/v1/publications").json();
    listed["publications"][0]["state"] == "staging" && node.env.fetched("weights").requests > 0
}

/// Asserts that the volume is whole, and nothing of it is left after it is unpublished.
fn assert_whole_and_unpublished(node: &KubernetesNode, volume: &PodVolume) {
    let target = node.kubelet.target(volume);
    assert!(is_local(&target.join("weights")));
    assert_same_tree(&node.env.bucket(), &target);
    assert!(node.env.fetched("weights").bytes < 2 * SIZE as u64, "nothing is staged twice");
    node.kubelet.unpublish(volume).unwrap();
    assert_eq!(remaining(node), (0, 0));
}

#[test]
fn volume_staging_when_the_kubelet_dies_is_joined_by_the_next_one() {
    let (mut node, volume) = node_without_kubelet();
    // Longer than the driver takes to notice.
    sleep(Duration::from_secs(3));
    assert!(is_staging(&node) && !is_mounted(&node.kubelet.target(&volume)), "it goes on without a kubelet");
    node.kubelet.register();
    node.env.proxy.set(NetworkFault::default());
    let errors = node.kubelet.mount(&volume);
    assert!(errors.is_empty(), "{errors:?}");
    assert_whole_and_unpublished(&node, &volume);
}

#[test]
fn volume_staged_while_there_is_no_kubelet_is_there_for_the_next_one() {
    let (mut node, volume) = node_without_kubelet();
    node.env.proxy.set(NetworkFault::default());
    eventually("it is published", || is_mounted(&node.kubelet.target(&volume)));
    node.kubelet.register();
    let requests = node.env.s3.requests.all().requests;
    node.kubelet.publish(&volume).unwrap();
    assert_eq!(node.env.s3.requests.all().requests, requests);
    assert_whole_and_unpublished(&node, &volume);
}

#[test]
fn volume_of_a_pod_deleted_while_there_is_no_kubelet_leaves_nothing() {
    let (mut node, volume) = node_without_kubelet();
    node.kubelet.register();
    node.kubelet.unpublish(&volume).unwrap();
    eventually("its base ends", || remaining(&node) == (0, 0));
}
