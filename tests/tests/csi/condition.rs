//! The condition of a published volume, which the kubelet asks for: what it says when data is lost later.

use std::fs;

use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::CALL_DEADLINE;
use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::rot::{flip_byte, largest_file};
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tree::assert_same;

use tonic::Code;

use crate::kit::{KubernetesNode, secret};
use crate::publish::SHORT_DEADLINE;

#[test]
fn volume_that_has_lost_data_is_abnormal_until_that_is_local_again() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    let bytes = node.env.put("weights", 3 * MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    let (abnormal, message) = node.kubelet.condition(&volume).unwrap();
    assert!(!abnormal && message.starts_with("staged 3.1 MB in "), "{message}");

    // A byte rots, and the service is away.
    node.env.proxy.set(NetworkFault { refuse: true, ..NetworkFault::default() });
    flip_byte(&largest_file(&node.env.machine.cache().join("tenants")), MIB as u64);
    let cache = node.env.machine.cache().to_str().unwrap();
    node.env.machine.run(&["cache", "verify", "--cache-dir", cache]).fails(&["damaged"]);
    let (abnormal, message) = node.kubelet.condition(&volume).unwrap();
    assert!(
        abnormal && message.contains("is fetched again: ") && message.contains(" of 3.1 MB"),
        "{message}"
    );
    // The next agent finds it out again.
    node.agent.take().unwrap().crash();
    node.start_agent();
    let condition = || node.kubelet.condition(&volume).unwrap();
    node.kubelet.publish(&volume).unwrap();
    eventually("it is abnormal", || condition().0);
    assert!(condition().1.contains("is fetched again: "), "{}", condition().1);
    assert!(node.agent().get("/v1/publications").json()["publications"][0]["abnormal"] == true);
    // It is given up where the service refuses; the kubelet's calls ask nobody, and take nothing away.
    node.env.s3.allowed_keys().revoke_all();
    node.env.proxy.set(NetworkFault::default());
    let is_given_up = || condition().1.starts_with("data is missing in the cache and cannot be fetched: ");
    eventually("it is given up", is_given_up);
    assert!(condition().0);
    node.env.s3.allowed_keys().allow(Keys::sample(), None);
    let requests = || node.env.s3.requests.all().requests;
    let before = requests();
    for _ in 0..3 {
        node.kubelet.publish(&volume).unwrap();
        assert!(condition().0, "{}", condition().1);
    }
    assert_eq!(requests(), before);
    // A new secret may be what it lacked.
    let renewed = volume.clone().secret("key", &(secret() + " "));
    node.kubelet.publish(&renewed).unwrap();
    eventually("it is local again", || !condition().0);
    assert!(requests() > before && condition().1.starts_with("published before "), "{}", condition().1);
    let path = node.kubelet.target(&volume).join("weights");
    assert!(is_local(&path));
    assert_same(&bytes, &fs::read(path).unwrap(), "weights");
    node.kubelet.unpublish(&volume).unwrap();
}

#[test]
fn pod_that_joins_a_volume_which_has_lost_data_waits_until_that_is_local_again() {
    for restart in [false, true] {
        let mut node = KubernetesNode::new(SHORT_DEADLINE);
        node.env.put("weights", 3 * MIB);
        let [first, second] = ["first", "second"].map(|pod| node.volume(pod));
        node.kubelet.mount(&first);
        node.env.proxy.set(NetworkFault { rate: Some(32 << 10), ..NetworkFault::default() });
        flip_byte(&largest_file(&node.env.machine.cache().join("tenants")), MIB as u64);
        let cache = node.env.machine.cache().to_str().unwrap();
        node.env.machine.run(&["cache", "verify", "--cache-dir", cache]).fails(&["damaged"]);
        if restart {
            node.agent.take().unwrap().crash();
            node.start_agent();
        }
        let refused = node.kubelet.call_publish(&second).unwrap_err();
        assert_eq!(refused.code(), Code::Aborted, "{refused}");
        let target = node.kubelet.target(&second);
        assert!(!is_mounted(&target), "its pod would start without its data");
        node.env.proxy.set(NetworkFault::default());
        node.kubelet.mount(&second);
        assert!(is_local(&target.join("weights")));
        node.kubelet.unpublish(&first).unwrap();
        node.kubelet.unpublish(&second).unwrap();
    }
}

#[test]
fn lazy_volume_that_somebody_else_stages_in_vain_is_not_abnormal() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", MIB);
    let mut volume = node.volume("pod");
    volume.context.insert("staging".to_owned(), "lazy".to_owned());
    node.kubelet.mount(&volume);
    node.env.s3.allowed_keys().revoke_all();
    let stage = "/v1/mounts/1/stage";
    assert_eq!(node.agent().ask("POST", stage, "").code, 200);
    eventually("its stage fails", || node.agent().get(stage).body.contains("refuse"));
    let (abnormal, message) = node.kubelet.condition(&volume).unwrap();
    assert!(!abnormal && message.starts_with("published before it is staged"), "{message}");
    node.kubelet.unpublish(&volume).unwrap();
}
