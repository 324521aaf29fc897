//! Volumes of Docker and podman that containers write to, asked for as the runtimes do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::filled_disk::FilledDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use serde_json::{Value, json};

/// What Docker says that it takes, and podman does not.
const DOCKER: &str = "Accept: application/vnd.docker.plugins.v1.2+json";
const PODMAN: &str = "Accept:";
/// The id that podman gives every mount.
const PODMAN_ID: &str = "2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2";

/// An agent with the plugin and a mirror.
struct WrittenPlugin {
    machine: Machine,
    agent: Option<AgentProcess>,
    /// The agent's target directory, if not its own.
    targets: Option<PathBuf>,
}

impl WrittenPlugin {
    fn new() -> Self {
        let mut plugin = Self { machine: Machine::new(), agent: None, targets: None };
        plugin.start();
        plugin
    }

    fn start(&mut self) {
        let mirror = self.machine.directory("mirror");
        let config = format!(
            "[mirror]\nurl = \"file://{}\"\n[docker]\nsocket = {:?}",
            mirror.display(),
            self.socket()
        );
        let targets = self.targets.iter().map(|path| format!("[publications]\ntargets = [{path:?}]"));
        self.agent = Some(self.machine.agent(&format!("{config}\n{}", targets.collect::<String>())));
    }

    /// Kills the agent, and starts another.
    fn restart(&mut self) {
        self.agent.take().unwrap().crash();
        self.start();
    }

    fn agent(&self) -> &AgentProcess {
        self.agent.as_ref().expect("an agent")
    }

    fn socket(&self) -> PathBuf {
        self.machine.directory("plugins").join("bdnfs.sock")
    }

    fn call(&self, call: &str, header: &str, arguments: &Value) -> (u16, Value) {
        let (socket, url) = (self.socket(), format!("http://plugin/{call}"));
        let body = arguments.to_string();
        let words = [
            "-s",
            "--unix-socket",
            socket.to_str().unwrap(),
            "-H",
            header,
            "-w",
            "%{http_code}",
            "-d",
            &body,
            &url,
        ];
        let out = self.machine.run_command(self.machine.program("curl", &words)).succeeds();
        let (body, code) = out.split_at(out.len() - 3);
        (code.parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    fn succeed(&self, call: &str, header: &str, id: &str) -> Value {
        self.succeed_with(
            call,
            header,
            &json!({"Name": "volume", "ID": id, "Opts": {"checkpoints": "llama"}}),
        )
    }

    fn succeed_with(&self, call: &str, header: &str, arguments: &Value) -> Value {
        let (code, answer) = self.call(&format!("VolumeDriver.{call}"), header, arguments);
        assert_eq!(code, 200, "{call}: {answer}");
        answer
    }

    /// Mounts the volume, and answers with the directory.
    fn mount(&self, header: &str, id: &str) -> PathBuf {
        PathBuf::from(self.succeed("Mount", header, id)["Mountpoint"].as_str().unwrap())
    }

    /// The checkpoints' source as the volume's status has it.
    fn job(&self) -> String {
        let source = &self.succeed("Get", DOCKER, "")["Volume"]["Status"]["checkpoints"];
        source.as_str().unwrap_or_default().to_owned()
    }

    fn volumes(&self) -> usize {
        let list = self.agent.as_ref().unwrap().get("/v1/volumes").json();
        list["volumes"].as_array().unwrap().len()
    }

    fn await_saved(&self) {
        eventually("all is saved", || self.volumes() == 0);
    }

    /// Expects that the newest state of a training cache, which has one file, is saved.
    fn expect_saved_file(&self, cache: &[&str]) {
        let mirror = format!("file://{}", self.machine.directory("mirror").display());
        let show = [&["project", "show", "--json", "--mirror", &mirror], cache].concat();
        let shown: Value = serde_json::from_str(&self.machine.run(&show).succeeds()).unwrap();
        assert_eq!((&shown["saved"]["files"], &shown["nodes"][0]["newest"]), (&json!(1), &json!(true)));
    }

    /// The file `model` of the checkpoint `source`.
    fn saved(&self, source: &str) -> String {
        let to = self.machine.directory("got").join(source.replace('/', "-"));
        let mirror = format!("file://{}", self.machine.directory("mirror").display());
        self.machine
            .run(&["checkpoint", "get", source, to.to_str().unwrap(), "--mirror", &mirror])
            .succeeds();
        fs::read_to_string(to.join("model")).unwrap()
    }
}

fn write(directory: &Path, checkpoint: &str, content: &str) {
    fs::create_dir(directory.join(checkpoint)).unwrap();
    fs::write(directory.join(checkpoint).join("model"), content).unwrap();
}

#[test]
fn written_volume_is_a_job_of_its_own_from_the_first_mount_to_the_last_unmount() {
    let mut plugin = WrittenPlugin::new();
    plugin.succeed("Create", DOCKER, "");
    assert_eq!((plugin.job().as_str(), plugin.volumes()), ("", 0));
    let path = plugin.mount(DOCKER, "0a1b2c3d4e5f00000000");
    assert_eq!(plugin.job(), "bt://llama@0a1b2c3d");
    let cache = plugin.machine.cache().to_str().unwrap();
    let status = plugin.machine.run(&["status", "--cache-dir", cache]).succeeds();
    assert!(status.contains("docker volume volume  llama@0a1b2c3d"), "{status}");
    write(&path, "one", "1");
    assert_eq!(plugin.mount(DOCKER, "ffffffffffff00000000"), path, "containers share it");
    plugin.succeed("Unmount", DOCKER, "0a1b2c3d4e5f00000000");
    let (code, refused) = plugin.call("VolumeDriver.Remove", DOCKER, &json!({"Name": "volume"}));
    assert_eq!((code, &refused["Err"]), (500, &json!("the volume volume is mounted by 1 container")));
    // It goes on under the next agent.
    plugin.agent.take().unwrap().crash();
    plugin.start();
    assert_eq!(plugin.job(), "bt://llama@0a1b2c3d");
    write(&path, "two", "2");
    plugin.succeed("Unmount", DOCKER, "ffffffffffff00000000");
    // The next one begins while that is still saved.
    let next = plugin.mount(DOCKER, "99999999999900000000");
    assert!(next != path && fs::read_dir(&next).unwrap().count() == 0);
    plugin.succeed("Unmount", DOCKER, "99999999999900000000");
    plugin.succeed("Create", DOCKER, "");
    plugin.succeed("Remove", DOCKER, "");
    plugin.await_saved();
    assert_eq!(
        (plugin.saved("bt://llama@0a1b2c3d/one"), plugin.saved("bt://llama@0a1b2c3d/two")),
        ("1".into(), "2".into())
    );
    assert!(!path.exists() && !next.exists());
}

#[test]
fn written_volume_of_podman_has_another_job_each_time() {
    let plugin = WrittenPlugin::new();
    plugin.succeed("Create", PODMAN, "");
    let mut sources = Vec::new();
    for content in ["1", "2"] {
        let path = plugin.mount(PODMAN, PODMAN_ID);
        assert_eq!(plugin.mount(PODMAN, PODMAN_ID), path);
        write(&path, "step", content);
        sources.push(plugin.job() + "/step");
        plugin.succeed("Unmount", PODMAN, PODMAN_ID);
    }
    plugin.await_saved();
    assert_eq!(sources.iter().map(|source| plugin.saved(source)).collect::<Vec<_>>(), ["1", "2"]);
}

#[test]
fn written_volume_whose_target_lies_elsewhere_since_a_restart_goes_on_and_is_unbound() {
    let mut plugin = WrittenPlugin::new();
    plugin.targets = Some(plugin.machine.directory("targets"));
    plugin.restart();
    let target = plugin.machine.directory("targets").join("pod");
    let request =
        json!({"kind": "checkpoints", "name": "llama", "id": "1", "target": target, "trusted": true});
    let answer = plugin.agent().ask("PUT", "/v1/volumes/pod", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    write(&target, "one", "written");
    plugin.targets = Some(plugin.machine.directory("elsewhere"));
    plugin.restart();
    let status = plugin.agent().get("/v1/volumes/pod").json();
    assert_eq!(status["state"], "published", "{status}");
    write(&target, "two", "written, too");
    assert_eq!(plugin.agent().ask("DELETE", "/v1/volumes/pod", "").code, 200);
    assert!(!is_mounted(&target));
    plugin.await_saved();
    assert_eq!(plugin.saved("bt://llama@1/two"), "written, too");
}

#[test]
fn written_volume_that_was_bound_again_while_it_was_ended_is_unbound_by_the_next_unpublish() {
    let mut plugin = WrittenPlugin::new();
    plugin.targets = Some(plugin.machine.directory("targets"));
    plugin.restart();
    let target = plugin.machine.directory("targets").join("pod");
    let request = json!({"kind": "projectCache", "name": "p", "target": target, "trusted": true});
    let unpublish = || assert_eq!(plugin.agent().ask("DELETE", "/v1/volumes/pod", "").code, 200);
    assert_eq!(plugin.agent().ask("PUT", "/v1/volumes/pod", &request.to_string()).code, 200);
    let tree = plugin.machine.volumes().join("default/caches/project/p/tree");
    let mut container = Container::start(&plugin.machine, &tree);
    unpublish();
    assert!(!is_mounted(&target));
    // As a publish does whose client is gone, after the end.
    fs::create_dir(&target).unwrap();
    let bind = ["--bind", tree.to_str().unwrap(), target.to_str().unwrap()];
    plugin.machine.run_command(plugin.machine.program("mount", &bind)).succeeds();
    unpublish();
    assert!(!is_mounted(&target) && !target.exists());
    container.end();
    plugin.await_saved();
}

#[test]
fn written_volume_that_dockerd_forgot_is_ended_when_no_container_has_it() {
    let plugin = WrittenPlugin::new();
    plugin.succeed("Create", DOCKER, "");
    let path = plugin.mount(DOCKER, "0a1b2c3d4e5f00000000");
    let mut container = Container::start(&plugin.machine, &path);
    // A dockerd that was killed introduces itself again, and may have kept its containers.
    plugin.call("Plugin.Activate", DOCKER, &json!({}));
    assert_eq!(plugin.job(), "");
    std::thread::sleep(std::time::Duration::from_secs(3));
    write(&path, "late", "written");
    assert_eq!(plugin.volumes(), 1, "a container has it");
    container.end();
    plugin.await_saved();
    assert_eq!(plugin.saved("bt://llama@0a1b2c3d/late"), "written");
}

#[test]
fn written_volume_of_a_team_is_its_training_cache() {
    let plugin = WrittenPlugin::new();
    let arguments = json!({"Name": "team", "ID": "0a1b2c3d", "Opts": {"teamCache": "research"}});
    let call = |call: &str| plugin.succeed_with(call, DOCKER, &arguments);
    call("Create");
    let path = PathBuf::from(call("Mount")["Mountpoint"].as_str().unwrap());
    assert_eq!(path, plugin.machine.volumes().join("default/caches/team/research/tree"));
    fs::write(path.join("file"), "cached").unwrap();
    call("Unmount");
    plugin.await_saved();
    plugin.expect_saved_file(&["--team", "research"]);
}

#[test]
fn training_cache_that_a_forgotten_container_has_is_neither_removed_nor_saved_for_the_last_time() {
    let mut plugin = WrittenPlugin::new();
    let arguments = json!({"Name": "cache", "ID": "0a1b2c3d", "Opts": {"projectCache": "llama"}});
    plugin.succeed_with("Create", DOCKER, &arguments);
    let mounted = plugin.succeed_with("Mount", DOCKER, &arguments);
    let path = PathBuf::from(mounted["Mountpoint"].as_str().unwrap());
    let mut container = Container::start(&plugin.machine, &path);
    plugin.call("Plugin.Activate", DOCKER, &json!({}));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(plugin.volumes(), 1, "a container has it");
    let is_in_use = ["the cache of the project llama is in use by a job or a container on this node"];
    let remove = ["project", "rm", "llama", "--yes"];
    plugin.machine.run(&remove).fails(&is_in_use);
    plugin.agent.take().unwrap().crash();
    plugin.machine.run(&remove).fails(&is_in_use);
    fs::write(path.join("late"), "written").unwrap();
    plugin.start();
    container.end();
    plugin.await_saved();
    plugin.expect_saved_file(&["llama"]);
    plugin.machine.run(&remove).succeeds();
}

#[test]
fn container_writing_to_a_disk_that_the_cache_has_filled_has_data_evicted() {
    let Some(filled) = FilledDisk::new() else { return };
    let request = json!({"kind": "projectCache", "name": "p", "trusted": true}).to_string();
    let volume = filled.agent.ask("PUT", "/v1/volumes/cache", &request).json();
    let path = Path::new(volume["path"].as_str().unwrap());
    fs::write(path.join("first"), vec![1; 40_000_000]).unwrap();
    eventually("what is not in use is evicted", || filled.usage("evicted") > 0);
    assert_eq!(filled.agent.ask("DELETE", "/v1/volumes/cache", "").code, 200);
}

/// A process with a directory bound in a mount namespace of its own.
struct Container(Child);

impl Container {
    fn start(machine: &Machine, directory: &Path) -> Self {
        let place = machine.directory("place");
        let (directory, place, bound) =
            (directory.display(), place.display(), machine.directory("flag").join("bound"));
        let script = format!("mount --bind {directory} {place}; touch {}; exec sleep 1000", bound.display());
        let child =
            machine.program("unshare", &["-m", "sh", "-euc", &script]).stdout(Stdio::null()).spawn().unwrap();
        eventually("it is bound", || bound.exists());
        Self(child)
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
