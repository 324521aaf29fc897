//! Agent and fd store in containers of their own, with process ids and mounts that the other does not see, as in two pods.

use std::fs;
use std::path::PathBuf;

use bdnfs_tests::process::eventually;
use bdnfs_tests::repository;
use bdnfs_tests::tools::{program, run, target};
use serde_json::{Value, json};

use crate::docker::daemon;
use crate::oci::ContainerNode;

/// Where the kubelet has its pods.
const KUBELET: &str = "/srv/kubelet";

/// A node whose agent and fd store are containers of the image.
struct ContainerAgent {
    node: ContainerNode,
    image: PathBuf,
}

impl ContainerAgent {
    fn new() -> Self {
        let node = ContainerNode::new("");
        node.shell("bdnfs agent --stop").succeeds();
        node.install_podman();
        let image = node.machine.directory("image");
        let script = repository().join("scripts/image");
        run(program("bash").arg(script).arg(&image).arg(target().join("bdnfs")));
        let config = format!(
            "cache_dir = \"/var/cache/bdnfs\"\nsocket = \"/run/bdnfs/agent.sock\"\n\
             fdstore = \"/run/bdnfs/fdstore.sock\"\nhold = \"24h\"\n\
             [publications]\ntargets = [\"{KUBELET}/pods\"]\nbases = \"{KUBELET}/bases\"\n"
        );
        fs::create_dir(image.join("etc/bdnfs")).unwrap();
        fs::write(image.join("etc/bdnfs/agent.toml"), config).unwrap();
        node.shell(&format!(
            "mkdir -p {KUBELET} && mount --bind {KUBELET} {KUBELET} && mount --make-rshared {KUBELET} && mkdir {KUBELET}/pods"
        ))
        .succeeds();
        Self { node, image }
    }

    fn start_fdstore(&self) {
        self.start(
            "fdstore",
            "--cap-drop all --security-opt no-new-privileges",
            "fdstore --listen /run/bdnfs/fdstore.sock",
        );
    }

    fn start_agent(&self) {
        let options = format!(
            "--privileged -v {home}:{home} -v {home}/cache:/var/cache/bdnfs \
             --mount type=bind,source={KUBELET},target={KUBELET},bind-propagation=rshared",
            home = self.node.machine.directory("").display()
        );
        self.start("agent", &options, "agent --config /etc/bdnfs/agent.toml");
        eventually("the agent is ready", || {
            let running = self.node.shell("podman ps --quiet --filter name=agent").out;
            assert!(!running.is_empty(), "the agent has ended: {}", self.logs());
            self.ask("GET", "/readyz", &Value::Null).0
        });
    }

    fn start(&self, name: &str, options: &str, command: &str) {
        let image = self.image.display();
        self.node
            .shell(&format!(
                "podman run -d --name {name} {options} -v /run/bdnfs:/run/bdnfs --rootfs {image} /usr/bin/bdnfs {command}"
            ))
            .succeeds();
    }

    /// Ends a container by `signal`, and removes it.
    fn end(&self, name: &str, signal: &str) {
        self.node
            .shell(&format!("podman kill --signal {signal} {name} && podman wait {name} && podman rm {name}"))
            .succeeds();
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (bool, String) {
        let curl = format!(
            "curl -s --fail-with-body --unix-socket /run/bdnfs/agent.sock -X {method} 'http://bdnfs{path}' -d '{body}'"
        );
        let output = self.node.shell(&curl);
        (output.code == Some(0), output.out)
    }

    /// The device that is mounted at the pod's volume.
    fn device(&self) -> u64 {
        rustix::fs::stat(self.node.namespace.path(KUBELET).join("pods/pod")).unwrap().st_dev
    }

    fn logs(&self) -> String {
        self.node.shell("podman logs agent; podman logs fdstore").err
    }
}

impl Drop for ContainerAgent {
    fn drop(&mut self) {
        self.node.shell("podman rm --all --force --time 1");
    }
}

#[test]
fn pod_goes_on_reading_while_the_containers_of_agent_and_fdstore_are_replaced() {
    let agent = ContainerAgent::new();
    let source = agent.node.source("source", "the weights");
    for number in 0..4 {
        fs::write(source.join(format!("late-{number}")), number.to_string()).unwrap();
    }
    agent.start_fdstore();
    agent.start_agent();
    // Lazy, so that reads need the agent.
    let request = json!({"source": format!("file://{}", source.display()), "trusted": true, "staging": "lazy",
        "target": format!("{KUBELET}/pods/pod")});
    let (published, said) = agent.ask("PUT", "/v1/publications/pod?wait=50", &request);
    assert!(published, "{said}{}", agent.logs());
    let root = agent.node.root("pod");
    let reader = "while cat /m/weights >/dev/null; do busybox sleep 0.05; done; echo failed";
    let pod = format!(
        "podman run -d --name pod -v {KUBELET}/pods/pod:/m:ro --rootfs {} sh -c '{reader}'",
        root.display()
    );
    agent.node.shell(&pod).succeeds();
    let device = agent.device();
    let mut late = 0..4;
    let mut reads = |what: &str| {
        let number = late.next().unwrap();
        let read = agent.node.shell(&format!("podman exec pod cat /m/late-{number}; podman logs pod"));
        assert_eq!(read.out, number.to_string(), "{what}: {read:?}\n{}", agent.logs());
        assert_eq!(agent.device(), device, "{what}: it is another mount");
    };
    reads("at first");
    for signal in ["KILL", "TERM"] {
        agent.end("agent", signal);
        agent.start_agent();
        reads(signal);
    }
    // Another fd store is given all, and serves the next agent.
    agent.end("fdstore", "KILL");
    agent.start_fdstore();
    eventually("the new one has the mount", || agent.logs().contains("another fd store has 1 of 1 mounts"));
    agent.end("agent", "KILL");
    agent.start_agent();
    reads("after both");
    let (ended, said) = agent.ask("DELETE", "/v1/publications/pod", &Value::Null);
    assert!(ended, "{said}");
    agent.node.shell("podman rm --force --time 0 pod").succeeds();
    eventually("no base is mounted", || agent.node.namespace.mounted().is_empty());
}

#[test]
fn agent_in_a_container_is_continued_by_an_fdstore_without_capabilities() {
    let agent = ContainerAgent::new();
    let source = agent.node.source("source", "the weights");
    // As the chart has it: it sees the processes of the node, and has no privileges. podman does not do that without cgroups.
    let mut fdstore = daemon(
        &agent.node,
        "exec unshare --mount setpriv --bounding-set -all --inh-caps -all --no-new-privs \
         /usr/local/bin/bdnfs fdstore --listen /run/bdnfs/fdstore.sock",
    );
    agent.start_agent();
    let request = json!({"source": format!("file://{}", source.display()), "trusted": true, "staging": "lazy",
        "target": format!("{KUBELET}/pods/pod")});
    let (published, said) = agent.ask("PUT", "/v1/publications/pod?wait=50", &request);
    assert!(published, "{said}{}", agent.logs());
    agent.node.shell("podman kill --signal STOP agent").succeeds();
    let read = agent.node.shell(&format!("cat {KUBELET}/pods/pod/weights"));
    assert_eq!(read.out, "the weights", "{read:?}\n{}", agent.logs());
    let (ended, said) = agent.ask("DELETE", "/v1/publications/pod", &Value::Null);
    assert!(ended, "{said}");
    drop(agent);
    fdstore.kill().unwrap();
    fdstore.wait().unwrap();
}
