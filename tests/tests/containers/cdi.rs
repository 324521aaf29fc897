//! CDI devices: sources with a name, for podman.

use std::fs;

use bdnfs_tests::process::eventually;
use serde_json::Value;

use crate::oci::{ContainerNode, blocks};

#[test]
fn cdi_page_blocks_run_from_nothing_to_a_container() {
    let [config, run] = <[_; 2]>::try_from(blocks("cdi.md")).unwrap();
    assert_eq!((config.0.as_str(), run.0.as_str()), ("toml", "sh"));
    // The source does not exist yet.
    let home = tempfile::tempdir().unwrap();
    let source = home.path().join("gpt2");
    let config = config.1.replace("hf://openai-community/gpt2@main", &format!("file://{}", source.display()));
    let node = ContainerNode::new(config.trim_start_matches("[publications]\n"));
    node.install_podman();
    let root = node.root("image");
    let file = node.namespace.path("/run/cdi/bdnfs.json");
    let run = run.1.replace("docker.io/library/busybox", &format!("--rootfs {}", root.display()));

    let refused = node.shell(&run);
    assert!(refused.code != Some(0) && refused.err.contains("unresolvable"), "{refused:?}");
    assert!(!file.exists(), "no device before its gate");

    fs::create_dir(&source).unwrap();
    fs::write(source.join("weights"), "text").unwrap();
    eventually("the device is listed", || {
        node.agent.ask("PUT", "/v1/sources/gpt2?wait=50", "");
        file.exists()
    });
    let listed: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(listed["devices"][0]["name"], "gpt2");
    let output = node.shell(&run);
    assert_eq!((output.code, output.out.as_str()), (Some(0), "weights\n"), "{output:?}");

    // Somebody unmounts it by hand: an empty directory is no device.
    let base = node.namespace.mounted().remove(0);
    node.shell(&format!("umount {base}")).succeeds();
    eventually("the device is listed no longer", || !file.exists());
    eventually("it is mounted anew", || {
        node.agent.ask("PUT", "/v1/sources/gpt2?wait=50", "");
        file.exists()
    });
    // What is taken down is no device any more.
    node.shell("bdnfs agent --stop").succeeds();
    assert!(!file.exists());
}
