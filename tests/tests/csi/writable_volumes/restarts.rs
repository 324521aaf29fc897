//! Volumes that pods write to, when the agent is started again: after a crash, with a record or directory that is gone, after a reboot.

use bdnfs_tests::mounts::unmount;
use rustix::mount::UnmountFlags;

use super::*;

/// A node that was started again while the record of its pod's volume is damaged, the volume, its target, and the record with the
/// text that it had.
fn node_with_damaged_record() -> (WritingNode, PodVolume, PathBuf, (PathBuf, Vec<u8>)) {
    let (mut node, volume, target) = node_with_checkpoints();
    write(&target, "checkpoint-1/model", "one");
    node.crash_agent_and_savers();
    let [record] = node.records().try_into().unwrap();
    let text = fs::read(&record).unwrap();
    fs::write(&record, "{").unwrap();
    node.start_agent();
    (node, volume, target, (record, text))
}

#[test]
fn pod_goes_on_writing_checkpoints_while_agent_and_saver_are_killed() {
    let (mut node, volume, target) = node_with_checkpoints();
    write(&target, "checkpoint-1/model", "one");
    node.crash_agent_and_savers();
    write(&target, "checkpoint-2/model", "two");
    node.start_agent();
    // Nothing changes for a volume that is published, also where the rules have.
    node.0.kubelet.publish(&volume).unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
    eventually("both are saved", || node.is_saved("checkpoint-1") && node.is_saved("checkpoint-2"));
    node.0.kubelet.unpublish(&volume).unwrap();
    node.await_end();
    assert_eq!(node.saved("checkpoint-2", "model"), "two");
}

#[test]
fn volume_with_an_unreadable_record_is_not_taken_for_gone() {
    let (node, volume, target, (record, _)) = node_with_damaged_record();
    // A kubelet that was started again publishes it anew.
    for told in [node.0.kubelet.publish(&volume), node.0.kubelet.unpublish(&volume)] {
        let error = told.unwrap_err();
        assert!(error.message().contains(record.to_str().unwrap()), "{error:?}");
        assert_eq!(fs::read_to_string(target.join("checkpoint-1/model")).unwrap(), "one");
    }
    assert_eq!(fs::read(&record).unwrap(), b"{");
    // What the message says to do.
    unmount(&target);
    fs::remove_dir(&target).unwrap();
    fs::remove_file(&record).unwrap();
    node.0.kubelet.unpublish(&volume).unwrap();
    let kept = node.directory().join("checkpoints/checkpoint-1/model");
    assert_eq!(fs::read_to_string(kept).unwrap(), "one");
}

#[test]
fn volume_whose_directory_is_gone_is_unbound_when_it_is_unpublished() {
    let (mut node, volume, target) = node_with_checkpoints();
    node.crash_agent_and_savers();
    fs::remove_dir_all(node.directory()).unwrap();
    node.start_agent();
    assert_eq!(node.0.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    assert!(is_mounted(&target));
    node.0.kubelet.unpublish(&volume).unwrap();
    assert!(!is_mounted(&target) && node.records().is_empty());
    node.await_end();
}

#[test]
fn volume_whose_record_can_be_read_again_is_ended_and_saved() {
    let (node, volume, target, (record, text)) = node_with_damaged_record();
    assert!(node.volumes().is_empty());
    fs::write(&record, text).unwrap();
    node.0.kubelet.unpublish(&volume).unwrap();
    assert!(!is_mounted(&target));
    node.await_end();
    assert_eq!(node.saved("checkpoint-1", "model"), "one");
}

#[test]
fn checkpoints_that_a_reboot_ended_are_saved_as_sealed_and_no_pod_gets_the_rest() {
    let (mut node, volume, target) = node_with_checkpoints();
    write(&target, "checkpoint-1/model", "one");
    write(&target, "checkpoint-1/.metadata", "");
    eventually("it is saved", || node.is_saved("checkpoint-1"));
    node.crash_agent_and_savers();
    write(&target, "checkpoint-2/model", "torn");
    rustix::mount::unmount(&target, UnmountFlags::DETACH).unwrap();
    for record in node.records() {
        let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        text["record"]["boot"] = json!("another");
        fs::write(&record, text.to_string()).unwrap();
    }
    let record = node.directory().join("saver.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    text["boot"] = json!("another");
    fs::write(&record, text.to_string()).unwrap();
    node.start_agent();
    eventually("it is found", || node.volumes().iter().any(|volume| volume["state"] == "unsaved"));
    let error = node.0.kubelet.publish(&volume).unwrap_err();
    let kept = node.directory().join("checkpoints");
    assert!(error.message().contains(kept.to_str().unwrap()), "{error:?}");
    assert_eq!(fs::read_to_string(kept.join("checkpoint-2/model")).unwrap(), "torn");
    // When the operator has removed it, the pod starts.
    fs::remove_dir_all(node.directory()).unwrap();
    node.0.kubelet.mount(&volume);
    node.0.kubelet.unpublish(&volume).unwrap();
    node.await_end();
}
