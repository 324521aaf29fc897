//! Inline volumes of a source, from a pod's attributes to its files and back to nothing.

use std::fs;
use std::io::ErrorKind;

use bdnfs_csi::proto::csi::volume_capability::access_mode::Mode;
use bdnfs_tests::kubelet::{CALL_DEADLINE, PodVolume};
use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::tree::{assert_same_tree, write_tree};
use serde_json::{Value, json};
use tonic::Code;

use crate::kit::KubernetesNode;
use crate::publish::remaining;

#[test]
fn inline_volumes_of_a_source_show_verified_local_files_and_leave_nothing() {
    let node = KubernetesNode::with_config(CALL_DEADLINE, "inline_sources = [\"file\"]\n");
    let [source, expected] = ["source", "expected"].map(|name| node.env.machine.directory(name));
    write_tree(&source);
    write_tree(&expected);
    let uri = format!("file://{}", source.display());
    let volumes = ["one", "other"].map(|pod| PodVolume::inline(pod, &[("source", &uri)]));
    for volume in &volumes {
        // As a kubelet sends it.
        assert!(volume.id.starts_with("csi-") && volume.mode == Mode::SingleNodeWriter);
        assert_eq!(volume.context["csi.storage.k8s.io/ephemeral"], "true");
        let errors = node.kubelet.mount(volume);
        assert!(errors.is_empty(), "{errors:?}");
        let target = node.kubelet.target(volume);
        assert!(is_local(&target.join("config.json")));
        assert_eq!(fs::write(target.join("new"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    // One base for both, of their namespace.
    assert_eq!(remaining(&node), (2, 3));
    let of = |key: &str| -> Vec<Value> {
        let listed = node.agent().get("/v1/publications").json();
        listed["publications"].as_array().unwrap().iter().map(|one| one[key].clone()).collect()
    };
    assert_eq!(of("tenant"), ["default", "default"]);
    assert_eq!(of("snapshot")[0], of("snapshot")[1]);
    let mut holders = of("holder");
    holders.sort_by_key(ToString::to_string);
    assert_eq!(holders, ["pod default/one", "pod default/other"]);
    // The source is not needed any more, by readers and by the kubelet's repeated calls.
    fs::remove_dir_all(&source).unwrap();
    for volume in &volumes {
        node.kubelet.publish(volume).unwrap();
        assert_same_tree(&expected, &node.kubelet.target(volume));
    }

    let [one, other] = volumes;
    node.kubelet.unpublish(&one).unwrap();
    assert!(!node.kubelet.target(&one).exists() && is_mounted(&node.kubelet.target(&other)));
    for _ in 0..2 {
        node.kubelet.unpublish(&other).unwrap();
    }
    assert_eq!(remaining(&node), (0, 0));
    assert_eq!(node.kubelet.stats(&other).unwrap_err().code(), Code::NotFound);
    // Nor is there a record, or a lease.
    let records = node.env.machine.cache().join("state/publications");
    assert_eq!(fs::read_dir(records).unwrap().count(), 0);
    let evicted = node.agent().ask("POST", "/v1/cache/evict", "{\"all\": true}").json();
    assert_eq!((&evicted["snapshots"], &evicted["held"]), (&json!(1), &json!(0)), "{evicted}");
}
