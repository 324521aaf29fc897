//! Volumes of Docker and podman, by real ones.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kit::{bases, config, entries};
use crate::oci::{ContainerNode, blocks};

/// What Docker says that it takes, and podman does not.
const DOCKER: &str = "Accept: application/vnd.docker.plugins.v1.2+json";

/// A node with Docker. Its daemons end when it is dropped.
struct DockerNode {
    node: ContainerNode,
    containerd: Child,
    dockerd: Child,
}

impl DockerNode {
    /// A node whose agent's configuration has the section `docker`.
    fn new(docker: &str) -> Self {
        let node = ContainerNode::new(docker);
        fs::create_dir_all(node.namespace.path("/run/containerd")).unwrap();
        let state = node.machine.directory("containerd");
        let containerd = daemon(&node, &format!("exec containerd --root {}", state.display()));
        eventually("containerd listens", || node.namespace.path("/run/containerd/containerd.sock").exists());
        let dockerd = Self::start(&node);
        let docker = Self { node, containerd, dockerd };
        docker.node.root("image");
        let root = docker.node.machine.directory("image");
        docker.shell(&format!("tar -C {} -c . | docker import - busybox", root.display())).succeeds();
        docker
    }

    fn start(node: &ContainerNode) -> Child {
        let state = node.machine.directory("docker");
        // A network of its own: what it does there is seen nowhere else.
        let dockerd = daemon(
            node,
            &format!(
                "exec unshare --net dockerd --containerd /run/containerd/containerd.sock --iptables=false \
                 --storage-driver overlay2 --data-root {}",
                state.display()
            ),
        );
        eventually("dockerd answers", || node.shell("docker info").code == Some(0));
        dockerd
    }

    /// Kills dockerd, and starts it again.
    fn restart(&mut self) {
        self.dockerd.kill().unwrap();
        self.dockerd.wait().unwrap();
        fs::remove_file(self.node.namespace.path("/run/docker.pid")).unwrap();
        self.dockerd = Self::start(&self.node);
    }

    fn shell(&self, script: &str) -> CommandOutput {
        self.node.shell(script)
    }

    /// Runs a block of the page, with `source` in place of the page's.
    fn run(&self, block: &str, source: &Path, image: &str) -> CommandOutput {
        let block = block.replace("hf://openai-community/gpt2@main", &format!("file://{}", source.display()));
        self.shell(&block.replace("docker.io/library/busybox", image))
    }
}

impl Drop for DockerNode {
    fn drop(&mut self) {
        let _ = self.shell("docker rm -f $(docker ps -aq)");
        for daemon in [&mut self.dockerd, &mut self.containerd] {
            let _ = kill_process(Pid::from_child(daemon), Signal::TERM);
            let _ = daemon.wait();
        }
    }
}

pub fn daemon(node: &ContainerNode, script: &str) -> Child {
    let log = node.machine.directory("etc").join("daemons.log");
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = node.machine.program("sh", &["-euc", script]);
    command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

#[test]
fn docker_page_blocks_run_from_nothing_to_containers() {
    let found = blocks("docker.md");
    let kinds: Vec<_> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["toml", "sh", "ini", "sh", "yaml", "sh", "toml", "sh"]);
    let [config, docker, containers_conf, podman, compose_file, compose, mirror_config, written] =
        <[String; 8]>::try_from(found.into_iter().map(|(_, text)| text).collect::<Vec<_>>()).unwrap();
    let mirror = TempDir::new().unwrap();
    let mirror_url = format!("file://{}", mirror.path().display());
    let node = DockerNode::new(&(config + &mirror_config.replace("s3://my-mirror", &mirror_url)));
    let source = node.node.source("gpt2", "the weights");
    assert_eq!(node.run(&docker, &source, "busybox").succeeds(), "gpt2\nweights\ngpt2\n");
    node.node.assert_released();

    let root = node.node.root("rootfs");
    let image = format!("--rootfs {}", root.display());
    node.node.install_podman();
    let unknown = node.run(&podman, &source, &image);
    assert!(unknown.err.contains("no volume plugin with name bdnfs available"), "{unknown:?}");
    let path = node.node.namespace.path("/etc/containers/containers.conf");
    fs::write(&path, fs::read_to_string(&path).unwrap() + &containers_conf).unwrap();
    assert_eq!(node.run(&podman, &source, &image).succeeds(), "gpt2\nweights\ngpt2\n");
    node.node.assert_released();

    let file =
        compose_file.replace("hf://openai-community/gpt2@main", &format!("file://{}", source.display()));
    let project = node.node.machine.directory("project");
    fs::write(project.join("compose.yaml"), file).unwrap();
    let output = node.shell(&format!("cd {}\n{compose}", project.display()));
    assert!(output.code == Some(0) && output.out.contains("weights"), "{output:?}");
    node.node.assert_released();

    node.shell(&written).succeeds();
    node.node.assert_saved();
    let machine = &node.node.machine;
    let to = machine.directory("got").join("step-1");
    let words =
        ["checkpoint", "get", "step-1", to.to_str().unwrap(), "--project", "llama", "--mirror", &mirror_url];
    machine.run(&words).succeeds();
    assert_eq!(fs::read_to_string(to.join("model")).unwrap(), "weights\n");
}

#[test]
fn volume_that_cannot_be_created_says_why_and_leaves_nothing() {
    let node = DockerNode::new("[docker]");
    let source = node.node.source("source", "text");
    let create = |options: &str| node.shell(&format!("docker volume create -d bdnfs {options} volume"));
    for (options, words) in [
        ("", "option source: is missing"),
        ("-o source=file:///nowhere", "/nowhere"),
        ("-o source=hf://o/m -o secret=absent", "no such secret: \"absent\""),
        ("-o source=hf://o/m -o sauce=1", "option sauce: no such attribute"),
        ("-o source=https://h/x?sig=hush", "option source: a signed URL expires"),
    ] {
        let output = create(options);
        assert!(output.code != Some(0) && output.err.contains(words), "{options}: {output:?}");
        assert!(!output.err.contains("hush"));
        assert_eq!(node.shell("docker volume ls -q").succeeds(), "");
        node.node.assert_released();
    }
    let good = format!("-o source=file://{}", source.display());
    create(&good).succeeds();
    create(&good).succeeds();
    let other = node.shell(
        "curl -s --unix-socket /run/docker/plugins/bdnfs.sock http://plugin/VolumeDriver.Create \
         -d '{\"Name\": \"volume\", \"Opts\": {\"source\": \"file:///\"}}'",
    );
    assert!(other.out.contains("the volume volume exists with other options"), "{other:?}");
    // Read-only, whatever the container asks for.
    let run = "docker run --rm -v volume:/m busybox sh -c 'cat /m/weights; touch /m/new || echo refused'";
    assert_eq!(node.shell(run).succeeds(), "textrefused\n");
    node.shell("docker volume rm volume").succeeds();
    node.node.assert_released();
    let unknown = node.shell("docker volume create -d another");
    assert!(unknown.err.contains("plugin \"another\" not found"), "{unknown:?}");
}

#[test]
fn container_goes_on_reading_while_agent_and_dockerd_are_killed() {
    let mut node = DockerNode::new("[docker]");
    let source = node.node.source("source", "text").display().to_string();
    node.shell(&format!("docker volume create -d bdnfs -o source=file://{source} volume")).succeeds();
    let start = "docker run -d --name reader -v volume:/m busybox sh -c 'while cat /m/weights >/dev/null; do busybox sleep 0.05; done; echo failed'";
    node.shell(start).succeeds();
    let reads = |node: &DockerNode| {
        assert_eq!(node.shell("docker exec reader cat /m/weights").succeeds(), "text");
        assert_eq!(node.shell("docker logs reader").succeeds(), "");
    };
    reads(&node);
    for signal in [Signal::KILL, Signal::TERM] {
        // Docker waits for a plugin that is not there for a while.
        let other = node.node.restart_agent(signal, |node| {
            let run = "docker run --rm -v volume:/m busybox cat /m/weights";
            let mut command = node.machine.program("sh", &["-euc", run]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        let other = other.wait_with_output().unwrap();
        assert_eq!(other.stdout, b"text", "{other:?}");
        reads(&node);
        let refused = node.shell("docker volume rm volume");
        assert!(refused.err.contains("volume is in use"), "{refused:?}");
    }
    // Without live restore, containers end with dockerd. It does not unmount what they had.
    node.restart();
    node.shell("docker start reader").succeeds();
    reads(&node);
    node.shell("docker rm -f reader && docker volume rm volume").succeeds();
    node.node.assert_released();
}

/// An agent with the plugin, and a bucket that it reads through a proxy.
struct Plugin {
    env: TestEnv,
    agent: AgentProcess,
    socket: PathBuf,
}

impl Plugin {
    fn new() -> Self {
        let env = TestEnv::new();
        env.put("file", 2 << 20);
        let Keys { access, secret, .. } = Keys::sample();
        let secrets = env.machine.directory("secrets");
        let keys =
            json!({"aws_access_key_id": access, "aws_secret_access_key": secret, "aws_region": "us-east-1"});
        fs::write(secrets.join("keys"), keys.to_string()).unwrap();
        let socket = env.machine.directory("plugins").join("bdnfs.sock");
        let agent = env.machine.agent(&Self::config(&env, &socket));
        Self { env, agent, socket }
    }

    fn config(env: &TestEnv, socket: &Path) -> String {
        let secrets = env.machine.directory("secrets");
        let config = config(&env.machine);
        format!("secrets = [{secrets:?}]\n{config}\n[docker]\nsocket = {socket:?}\npodman_timeout = \"2s\"")
    }

    /// Calls the plugin as curl does; answers with the status code, and the answer.
    fn call(&self, call: &str, header: &str, arguments: &Value) -> (u16, Value) {
        let (socket, url) = (self.socket.to_str().unwrap(), format!("http://plugin/{call}"));
        let body = arguments.to_string();
        let words = ["-s", "--unix-socket", socket, "-H", header, "-w", "%{http_code}", "-d", &body, &url];
        let out = self.env.machine.run_command(self.env.machine.program("curl", &words)).succeeds();
        let (body, code) = out.split_at(out.len() - 3);
        (code.parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    /// The same of a volume called `volume`, which succeeds.
    fn succeed(&self, call: &str, header: &str, id: &str) -> Value {
        let source = json!({"source": "s3://bucket", "secret": "keys", "endpoint": self.env.proxy.url()});
        let arguments = json!({"Name": "volume", "ID": id, "Opts": source});
        let (code, answer) = self.call(&format!("VolumeDriver.{call}"), header, &arguments);
        assert_eq!(code, 200, "{call}: {answer} {}", self.agent.log());
        answer
    }

    fn refused(&self, call: &str, header: &str) -> String {
        let (code, answer) =
            self.call(&format!("VolumeDriver.{call}"), header, &json!({"Name": "volume", "ID": "late"}));
        assert_eq!(code, 500, "podman does not look for errors elsewhere: {answer}");
        answer["Err"].as_str().unwrap().to_owned()
    }

    fn restart(self) -> Self {
        let Self { env, agent, socket } = self;
        agent.crash();
        let agent = env.machine.agent(&Self::config(&env, &socket));
        Self { env, agent, socket }
    }
}

#[test]
fn volume_mount_beyond_podmans_timeout_fails_with_progress_and_staging_goes_on() {
    let plugin = Plugin::new();
    let slow = NetworkFault { rate: Some(200 << 10), ..NetworkFault::default() };
    plugin.env.proxy.set(slow);
    plugin.succeed("Create", DOCKER, "");
    let message = plugin.refused("Mount", "Accept:");
    assert!(message.starts_with("staging s3://bucket") && message.ends_with("; it goes on"), "{message}");
    plugin.env.proxy.set(NetworkFault::default());
    let path = plugin.succeed("Mount", DOCKER, "one")["Mountpoint"].as_str().unwrap().to_owned();
    assert_eq!(bases(&plugin.env.machine), [PathBuf::from(path)]);
}

#[test]
fn volume_whose_create_was_given_up_is_created_and_can_be_removed() {
    let plugin = Plugin::new();
    plugin.env.proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    let source = json!({"source": "s3://bucket", "secret": "keys", "endpoint": plugin.env.proxy.url()});
    let body = json!({"Name": "volume", "Opts": source}).to_string();
    let socket = plugin.socket.to_str().unwrap();
    let url = "http://plugin/VolumeDriver.Create";
    let words = ["-s", "-m", "1", "--unix-socket", socket, "-H", DOCKER, "-d", &body, url];
    let given_up = plugin.env.machine.run_command(plugin.env.machine.program("curl", &words));
    assert_eq!(given_up.code, Some(28), "curl has timed out: {given_up:?}");
    plugin.env.proxy.set(NetworkFault::default());
    eventually("it is published", || {
        let volumes = plugin.succeed("List", DOCKER, "")["Volumes"].take();
        volumes[0]["Status"]["state"] == "published"
    });
    plugin.succeed("Remove", DOCKER, "");
    assert_eq!(bases(&plugin.env.machine), Vec::<PathBuf>::new());
}

#[test]
fn volume_mounted_twice_with_one_id_is_unmounted_by_one_call() {
    let plugin = Plugin::new();
    let (code, answer) = plugin.call("Plugin.Activate", DOCKER, &json!({}));
    assert_eq!((code, answer), (200, json!({"Implements": ["VolumeDriver"]})));
    assert_eq!(plugin.succeed("Capabilities", DOCKER, "")["Capabilities"]["Scope"], "local");
    assert_eq!(plugin.refused("Get", DOCKER), "no such volume: volume");
    for _ in 0..2 {
        plugin.succeed("Create", DOCKER, "");
        plugin.succeed("Mount", DOCKER, "one");
    }
    let requests = plugin.env.s3.requests.all().requests;
    let volume = plugin.succeed("Get", DOCKER, "")["Volume"].take();
    assert_eq!(
        (volume["Name"].as_str(), volume["Status"]["state"].as_str()),
        (Some("volume"), Some("published"))
    );
    assert_eq!(plugin.succeed("List", DOCKER, "")["Volumes"], json!([volume]));
    assert_eq!(plugin.succeed("Path", DOCKER, "")["Mountpoint"], volume["Mountpoint"]);
    assert_eq!(plugin.env.s3.requests.all().requests, requests, "they are answered from memory");
    assert_eq!(plugin.refused("Remove", "Accept:"), "the volume volume is mounted by 1 container");
    plugin.succeed("Unmount", DOCKER, "another");
    plugin.succeed("Unmount", DOCKER, "one");
    plugin.succeed("Remove", DOCKER, "");
    plugin.succeed("Remove", DOCKER, "");
    assert_eq!(bases(&plugin.env.machine), Vec::<PathBuf>::new());
    assert_eq!(entries(&plugin.env.machine.cache().join("state/docker")), Vec::<PathBuf>::new());
}

#[test]
fn volume_and_its_mounts_outlive_the_agent_and_mounts_of_docker_end_with_dockerd() {
    let plugin = Plugin::new();
    plugin.succeed("Create", DOCKER, "");
    plugin.succeed("Mount", DOCKER, "of docker");
    plugin.succeed("Mount", "Accept:", "of podman");
    plugin.env.s3.requests.clear();
    let plugin = plugin.restart();
    assert_eq!(plugin.refused("Remove", DOCKER), "the volume volume is mounted by 2 containers");
    plugin.call("Plugin.Activate", DOCKER, &json!({}));
    assert_eq!(plugin.refused("Remove", DOCKER), "the volume volume is mounted by 1 container");
    plugin.call("Plugin.Activate", "Accept:", &json!({}));
    plugin.succeed("Unmount", "Accept:", "of podman");
    assert_eq!(plugin.env.s3.requests.all().requests, 0, "what is published is resumed");
    // One that was removed while the agent died is ended.
    fs::remove_file(&entries(&plugin.env.machine.cache().join("state/docker"))[0]).unwrap();
    let plugin = plugin.restart();
    eventually("its publication ends", || bases(&plugin.env.machine).is_empty());
}

#[test]
fn volume_after_a_reboot_is_published_again_and_mounted_by_no_container() {
    let plugin = Plugin::new();
    plugin.succeed("Create", DOCKER, "");
    plugin.succeed("Mount", DOCKER, "one");
    let Plugin { env, agent, socket } = plugin;
    agent.crash();
    env.machine.kill_fdstore();
    rustix::mount::unmount(&bases(&env.machine)[0], rustix::mount::UnmountFlags::DETACH).unwrap();
    let state = env.machine.cache().join("state");
    for record in [state.join("docker"), state.join("publications")].iter().flat_map(|kind| entries(kind)) {
        let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        text["record"]["boot"] = json!("another");
        fs::write(&record, text.to_string()).unwrap();
    }
    let agent = env.machine.agent(&Plugin::config(&env, &socket));
    let plugin = Plugin { env, agent, socket };
    eventually("it is published without being asked for", || {
        plugin.succeed("Get", DOCKER, "")["Volume"]["Status"]["state"] == "published"
    });
    plugin.succeed("Remove", DOCKER, "");
    assert_eq!(bases(&plugin.env.machine), Vec::<PathBuf>::new());
}
