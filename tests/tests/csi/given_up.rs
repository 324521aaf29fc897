//! Volumes that the kubelet gives up without a word, calls that meet, and rules that change under running pods.

use std::fs;
use std::path::PathBuf;

use bdnfs_csi::proto::csi::volume_capability::access_mode::Mode;
use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::{CALL_DEADLINE, PodVolume};
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use tonic::Code;

use crate::kit::{DriverProcess, KubernetesNode};
use crate::publish::{SHORT_DEADLINE, remaining};

fn slow() -> NetworkFault {
    NetworkFault { rate: Some(100_000), ..NetworkFault::default() }
}

#[test]
fn volume_whose_pod_is_deleted_during_its_first_call_is_not_bound() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", 8 * MIB);
    let volume = node.volume("pod");
    let folder = node.kubelet.folder(&volume);
    // The kubelet removes the one, and then the other.
    let vol_data = |folder: PathBuf| fs::remove_file(folder.join("vol_data.json"));
    for give_up in [vol_data, fs::remove_dir_all] {
        node.env.proxy.set(slow());
        let error = std::thread::scope(|scope| {
            let held = scope.spawn(|| node.kubelet.call_publish(&volume));
            eventually("it is staged", || remaining(&node).0 == 1);
            give_up(folder.clone()).unwrap();
            node.env.proxy.set(NetworkFault::default());
            held.join().unwrap().unwrap_err()
        });
        assert_eq!(error.code(), Code::NotFound, "{error}");
        assert_eq!(remaining(&node), (0, 0));
        fs::remove_dir_all(&folder).or_else(|_| fs::create_dir(&folder)).unwrap();
        node.agent().ask("POST", "/v1/cache/evict", "{\"all\": true}");
    }
}

#[test]
fn published_volume_that_the_kubelet_gave_up_is_ended_by_the_agent() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    fs::remove_file(node.kubelet.folder(&volume).join("vol_data.json")).unwrap();
    node.agent.take().unwrap().crash();
    node.start_agent();
    eventually("it is ended", || remaining(&node) == (0, 0));
    assert!(!node.kubelet.target(&volume).exists());
}

#[test]
fn published_volume_stays_when_its_namespace_gets_another_tenant() {
    let mut node = KubernetesNode::new(CALL_DEADLINE);
    node.env.put("weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    node.driver.end();
    node.driver = DriverProcess::start(&node.env, &["--tenant", "default=other"]);
    node.kubelet.register();
    node.kubelet.publish(&volume).unwrap();
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_staging_begins_anew_when_its_namespace_gets_another_tenant() {
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(slow());
    let volume = node.volume("pod");
    assert_eq!(node.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    node.driver.end();
    node.driver = DriverProcess::start(&node.env, &["--tenant", "default=other"]);
    node.kubelet.register();
    assert_eq!(node.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    let listed = node.agent().get("/v1/publications").json();
    assert_eq!(listed["publications"][0]["tenant"], "other");
    node.kubelet.unpublish(&volume).unwrap();
    eventually("its base ends", || remaining(&node) == (0, 0));
}

#[test]
fn volume_that_is_refused_while_it_is_staged_leaves_nothing() {
    let node = KubernetesNode::new(SHORT_DEADLINE);
    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(slow());
    let volume = node.volume("pod");
    assert_eq!(node.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    let mut refused = volume.clone();
    refused.context.insert("sauce".into(), "hf://o/m".into());
    assert_eq!(node.kubelet.call_publish(&refused).unwrap_err().code(), Code::InvalidArgument);
    // The kubelet asks no more.
    assert_eq!(remaining(&node).0, 0);
    eventually("its base ends", || remaining(&node) == (0, 0));
}

#[test]
fn published_volume_that_the_rules_refuse_stays_while_the_agent_is_away() {
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    node.env.put("weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    node.agent.take().unwrap().crash();
    let mut inline = volume.clone();
    inline.context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
    assert_eq!(node.kubelet.call_publish(&inline).unwrap_err().code(), Code::Unavailable);
    assert!(is_mounted(&node.kubelet.target(&volume)));
    node.start_agent();
    node.kubelet.publish(&inline).unwrap();
    node.kubelet.unpublish(&volume).unwrap();
}

#[test]
fn one_of_two_pods_that_ask_at_once_gets_a_volume_for_one() {
    let node = KubernetesNode::new(SHORT_DEADLINE);
    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(slow());
    let volumes =
        ["one", "other"].map(|pod| PodVolume { mode: Mode::SingleNodeSingleWriter, ..node.volume(pod) });
    let codes = std::thread::scope(|scope| {
        let calls = volumes.each_ref().map(|volume| scope.spawn(|| node.kubelet.publish(volume)));
        calls.map(|call| call.join().unwrap().unwrap_err().code())
    });
    let winner = codes.iter().position(|code| *code == Code::Aborted).expect("one of them");
    assert_eq!(codes[1 - winner], Code::FailedPrecondition);
    node.env.proxy.set(NetworkFault::default());
    node.kubelet.mount(&volumes[winner]);
    assert_eq!(remaining(&node).0, 1);
    node.kubelet.unpublish(&volumes[winner]).unwrap();
    node.kubelet.mount(&volumes[1 - winner]);
    node.kubelet.unpublish(&volumes[1 - winner]).unwrap();
}

#[test]
fn second_call_while_the_first_is_held_joins_it() {
    let node = KubernetesNode::new(CALL_DEADLINE);
    let size = 4 * MIB;
    node.env.put("weights", size);
    node.env.proxy.set(slow());
    let volume = node.volume("pod");
    std::thread::scope(|scope| {
        let calls = [0, 1].map(|_| scope.spawn(|| node.kubelet.call_publish(&volume)));
        eventually("it is staged", || remaining(&node).0 == 1);
        node.env.proxy.set(NetworkFault::default());
        calls.into_iter().for_each(|call| call.join().unwrap().unwrap());
    });
    assert!(node.env.fetched("weights").bytes < 2 * size as u64);
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_that_does_not_fit_is_exhausted_and_says_by_how_much() {
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    node.agent.take().unwrap().end();
    let config = format!("cache_size = \"32MiB\"\n{}", KubernetesNode::config(&node.env));
    node.agent = Some(node.env.machine.agent(&config));
    node.env.put("weights", 40 * MIB);
    let error = node.kubelet.publish(&node.volume("pod")).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    for words in ["40", "32"] {
        assert!(error.message().contains(words), "{error}");
    }
    assert_eq!(remaining(&node), (0, 0));
}
