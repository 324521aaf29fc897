//! Repositories shown as `huggingface_hub` keeps them in its cache, with the real binary.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::MIB;
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tree::{assert_same_tree, content};

/// A Hub with one model, a directory with the same files, and the model's commit.
fn hub(machine: &Machine) -> (HubServer, PathBuf, String) {
    let hub = HubServer::start();
    let weights = content("weights", 3 * MIB);
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("sub/weights.bin", &weights),
        ("sub/deep/again.bin", &weights),
        ("none", b""),
    ];
    let expected = machine.directory("expected");
    for (path, bytes) in files {
        let path = expected.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let commit = hub.publish("models/owner/repo", "main", &files);
    (hub, expected, commit)
}

/// Compares what the links of the snapshot at `point` lead to with the files in `expected`.
fn assert_shows(point: &Path, commit: &str, reference: &str, expected: &Path, machine: &Machine) {
    let repository = point.join("models--owner--repo");
    assert_eq!(fs::read_to_string(repository.join("refs").join(reference)).unwrap(), commit);
    let snapshot = repository.join("snapshots").join(commit);
    for path in ["config.json", "sub/weights.bin", "sub/deep/again.bin", "none"] {
        let target = fs::read_link(snapshot.join(path)).unwrap();
        assert!(target.to_str().unwrap().contains("../blobs/"), "{target:?}");
    }
    // The contents of the two equal files are one.
    assert_eq!(fs::read_dir(repository.join("blobs")).unwrap().count(), 3);
    let copy = machine.directory("copies").join(reference);
    let _ = fs::remove_dir_all(&copy);
    let mut command = machine.program("cp", &["-rL"]);
    machine.run_command({
        command.args([&snapshot, &copy]);
        command
    });
    assert_same_tree(expected, &copy);
    fs::remove_dir_all(copy).unwrap();
}

#[test]
fn hub_cache_layout_shows_references_blobs_and_links_from_origin_and_mirror() {
    let machine = Machine::new();
    let (mut hub, expected, commit) = hub(&machine);
    let machine = machine.env("HF_ENDPOINT", hub.url());
    let to = format!("file://{}", machine.directory("mirror").display());
    machine.run(&["mirror", "add", "hf://owner/repo", "--mirror", &to]).succeeds();

    let lazy = machine.mount_with("hf://owner/repo", "lazy", &["--layout", "hf-cache"]);
    assert_shows(&lazy, &commit, "main", &expected, &machine);
    let staged = machine.mount_with("hf://owner/repo@main", "staged", &["--wait", "--layout", "hf-cache"]);
    // What is mounted as it is shares all content with it.
    hub.storage.server.stop();
    let flat = machine.mount("hf://owner/repo@main", "flat");
    assert_same_tree(&expected, &flat);
    let native = ["--wait", "--via", "native", "--layout", "hf-cache"];
    let native = machine.mount_with(format!("hf://owner/repo@{commit}"), "native", &native);
    hub.server.stop();
    for point in [&staged, &native] {
        assert_shows(point, &commit, "main", &expected, &machine);
    }
    // Of the mirror, where small files lie in packs, and with another cache.
    let other = machine.directory("other-cache");
    let arguments = ["--layout", "hf-cache", "--cache-dir", other.to_str().unwrap(), "--mirror", &to];
    let point = machine.directory("mirrored");
    let words = [&["mount", "--wait", "hf://owner/repo", point.to_str().unwrap()], &arguments[..]].concat();
    machine.run(&words).succeeds();
    assert_shows(&point, &commit, "main", &expected, &machine);
    machine.umount(&point);
}

#[test]
fn hub_cache_layout_comes_back_with_its_agent() {
    let machine = Machine::new();
    let (mut hub, expected, commit) = hub(&machine);
    let machine = machine.env("HF_ENDPOINT", hub.url());
    let agent = machine.agent("");
    let point = machine.directory("mnt");
    let words = ["mount", "--wait", "--layout", "hf-cache", "hf://owner/repo@main", point.to_str().unwrap()];
    machine.run(&words).succeeds();
    hub.server.stop();
    hub.storage.server.stop();
    agent.stop();
    assert!(!is_mounted(&point));
    let agent = machine.agent("");
    eventually("the mount is back", || is_mounted(&point));
    assert_shows(&point, &commit, "main", &expected, &machine);
    agent.stop();
}

#[test]
fn hub_cache_layout_of_a_configuration_is_obeyed_and_of_others_refused_by_name() {
    let machine = Machine::new();
    let (hub, expected, commit) = hub(&machine);
    let tag = hub.publish("models/owner/repo", "v1", &[("config.json", b"old")]);
    let machine = machine.env("HF_ENDPOINT", hub.url());
    let (root, file) = (machine.directory("root"), machine.directory("config").join("weights.toml"));
    let entry = |source: &str, extra: &str| {
        let text = format!("[[weights]]\nsource = {source:?}\nmount_location = \"/hub\"\n{extra}\n");
        fs::write(&file, text).unwrap();
        let words =
            ["mount", "--config", file.to_str().unwrap(), "--root", root.to_str().unwrap(), "--cache-dir"];
        machine.run(&[&words[..], &[machine.cache().to_str().unwrap()]].concat())
    };
    entry("hf://owner/repo", "layout = \"hf-cache\"").succeeds();
    assert_shows(&root.join("hub"), &commit, "main", &expected, &machine);
    machine.umount(&root.join("hub"));
    entry("hf://owner/repo@v1", "layout = \"hf-cache\"").succeeds();
    for reference in ["v1", "main"] {
        let path = root.join("hub/models--owner--repo/refs").join(reference);
        assert_eq!(fs::read_to_string(path).unwrap(), tag);
    }
    machine.umount(&root.join("hub"));
    entry("hf://owner/repo", "layout = \"flat\"").fails(&["layout", "\"flat\" is not a layout"]);
    entry("s3://bucket", "layout = \"hf-cache\"").fails(&["layout", "hf:// sources only"]);
    let point = machine.directory("mnt");
    machine
        .try_mount("hf://owner/repo@main/sub", &point, &["--layout", "hf-cache"])
        .fails(&["whole repositories"]);
}
