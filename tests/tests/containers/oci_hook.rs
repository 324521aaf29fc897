//! `bdnfs oci-hook`, run by real runtimes.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::oci::{ContainerNode, blocks};

const RUNTIMES: [&str; 2] = ["runc", "crun"];

#[test]
fn container_sees_its_weights_from_its_first_instruction_on() {
    let node = ContainerNode::new("");
    let [one, other] = [("one", "first"), ("other", "second")].map(|(name, text)| node.source(name, text));
    for runtime in RUNTIMES {
        let weights = json!([
            {"source": format!("file://{}", one.display()), "mount_location": "/models/llama"},
            {"source": format!("file://{}", other.display()), "mount_location": "/link/other"},
        ]);
        let script =
            "cat /models/llama/weights; cat /srv/other/weights; touch /models/llama/new || echo refused";
        let bundle = node.bundle(runtime, &weights, &[], script);
        // Links of the image lead to where they lead in the container.
        symlink("/srv", bundle.join("rootfs/link")).unwrap();
        fs::create_dir(bundle.join("rootfs/srv")).unwrap();
        let out = node.run(runtime, &bundle).succeeds();
        assert_eq!(out, "firstsecondrefused\n", "{runtime}");
        assert!(!node.namespace.path("/srv/other").exists());
        node.assert_released();
    }
}

#[test]
fn container_whose_weights_are_refused_is_not_started_and_leaves_nothing() {
    let node = ContainerNode::new("");
    let source = format!("file://{}", node.source("source", "text").display());
    for runtime in RUNTIMES {
        for (name, second, words) in [
            ("scheme", json!({"source": "https://169.254.169.254/x", "mount_location": "/m"}), "source: "),
            ("missing", json!({"source": "file:///nowhere", "mount_location": "/m"}), "/nowhere"),
            (
                "key",
                json!({"source": "hf://o/m", "mount_location": "/m", "endpoint": "http://x"}),
                "endpoint",
            ),
            ("proc", json!({"source": source, "mount_location": "/proc/fs"}), "it lies in /proc or /sys"),
        ] {
            let weights = json!([{"source": source, "mount_location": "/models/llama"}, second]);
            let bundle = node.bundle(&format!("{runtime}-{name}"), &weights, &[], "echo started");
            let output = node.run(runtime, &bundle);
            assert!(output.code != Some(0) && output.out.is_empty(), "{runtime} {name}: {output:?}");
            assert!(output.err.contains(words), "{runtime} {name}: {output:?}");
            node.assert_released();
        }
    }
}

#[test]
fn oci_hook_page_blocks_run_from_nothing_to_a_container() {
    let node = ContainerNode::new("");
    node.install_podman();
    let (source, root) = (node.source("gpt2", "the weights"), node.root("image"));
    let mut succeeded = 0;
    for (kind, text) in blocks("oci-hook.md") {
        match kind.as_str() {
            "json" => {
                fs::write(node.namespace.path("/etc/containers/oci/hooks.d/50-bdnfs.json"), text).unwrap()
            }
            "sh" => {
                let text =
                    text.replace("hf://openai-community/gpt2@main", &format!("file://{}", source.display()));
                let text = text.replace("docker.io/library/busybox", &format!("--rootfs {}", root.display()));
                let output = node.shell(&text);
                succeeded += usize::from(output.code == Some(0) && output.out == "weights\n");
            }
            other => panic!("a block of {other}, which nobody runs"),
        }
    }
    // One block is for this podman, the other for those that read the option in another way.
    assert_eq!(succeeded, 1, "{}", node.agent.log());
    node.assert_released();
}
