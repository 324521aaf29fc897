//! Training caches on a file system that several nodes have: two machines, each with a mount of one directory.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tools::{cannot_run, program, run};
use serde_json::{Value, json};

use super::kit::{events, job, spec, submitted, text, toml};

/// The begin of the event about locks.
const WARNING: &str = "locks (flock) on ";

/// Nodes that have a file system in common.
struct SharingNodes {
    one: Machine,
    other: Machine,
    agents: Vec<AgentProcess>,
}

impl SharingNodes {
    fn new() -> Self {
        Self { one: Machine::new(), other: Machine::new(), agents: Vec::new() }
    }

    /// The directory that both have.
    fn shared(&self) -> PathBuf {
        self.one.directory("server/bdnfs")
    }

    /// Mounts the file system on a node, shared, as mounts of a node are: others are unmounted for jobs.
    fn mount(&self, machine: &Machine) {
        let (server, vast) = (self.shared(), machine.directory("vast"));
        run(program("mount").args(["--bind", "--make-shared"]).arg(server.parent().unwrap()).arg(vast));
    }

    /// Starts the agents, when the file system is mounted.
    fn start(&mut self) {
        for machine in [&self.one, &self.other] {
            self.agents.push(self.agent(machine));
        }
    }

    fn agent(&self, machine: &Machine) -> AgentProcess {
        let mirror = self.one.directory("mirror");
        machine.agent(&format!(
            "[mirror]\nurl = \"file://{}\"\n[projects]\ndir = {:?}\nshared = true\n",
            mirror.display(),
            directory(machine)
        ))
    }

    /// Whether `path` is there in the cache of the project `p`.
    fn has(&self, path: &str) -> bool {
        self.shared().join("default/caches/project/p/tree").join(path).exists()
    }

    /// Removes the cache of the project `p`, by the command of a machine.
    fn remove(machine: &Machine) -> (Option<i32>, String) {
        let output =
            machine.run(&["project", "rm", "p", "--yes", "--volumes-dir", text(&directory(machine))]);
        (output.code, output.err)
    }
}

/// The directory of projects of a machine.
fn directory(machine: &Machine) -> PathBuf {
    machine.directory("vast").join("bdnfs")
}

/// A job with a training cache that must be the newest.
fn cached(machine: &Machine, command: &str) -> PathBuf {
    // Ranks make the directory of the Hub at the same time.
    let cache = json!({
        "enabled": true, "enable_legacy_hf_mount": true, "mount_base_path": machine.directory("base"),
    });
    let runtime = json!({"start_commands": [command], "cache_config": cache});
    let body = json!({"image": {"base_image": "x"}, "runtime": runtime, "weights": []});
    spec(machine, "job.json", &body.to_string())
}

/// The words that submit a rank of a job on two nodes.
fn rank<'a>(number: &'a str, file: &'a Path) -> [&'a str; 9] {
    ["--project", "p", "--id", "shared", "--nodes", "2", "--rank", number, text(file)]
}

fn shown(machine: &Machine, id: &str) -> Value {
    serde_json::from_str(&job(machine, &["show", id, "--json"]).succeeds()).unwrap()
}

#[test]
fn jobs_of_two_nodes_share_a_training_cache_on_a_shared_file_system() {
    let mut nodes = SharingNodes::new();
    for machine in [&nodes.one, &nodes.other] {
        nodes.mount(machine);
    }
    nodes.start();
    let seen = nodes.one.directory("seen").join("all");
    let writer = format!(
        "cd $BT_PROJECT_CACHE_DIR && ( flock 9; touch locked; while [ ! -e go ]; do sleep 0.05; done ) 9> lock && ls -A {} > {}",
        text(&directory(&nodes.one)),
        text(&seen)
    );
    let first = submitted(&nodes.one, &rank("0", &cached(&nodes.one, &writer)));
    eventually("it has the lock", || nodes.has("locked"));
    let (code, error) = SharingNodes::remove(&nodes.other);
    assert!(code != Some(0) && error.contains("is in use by a job"), "{error}");
    let reader = "cd $BT_PROJECT_CACHE_DIR && [ -e locked ] && ! flock --nonblock lock true && touch go && flock lock true && \
                  echo x > file";
    let second = submitted(&nodes.other, &rank("1", &cached(&nodes.other, reader)));
    for (machine, id) in [(&nodes.other, &second), (&nodes.one, &first)] {
        job(machine, &["wait", id]).succeeds();
        let status = shown(machine, id);
        assert!(!events(&status).iter().any(|event| event.starts_with(WARNING)), "{status}");
    }
    assert_eq!(fs::read_to_string(&seen).unwrap(), "", "a job sees its own cache only");
    assert!(nodes.has("file"));
    assert_eq!(fs::read_dir(nodes.one.directory("mirror")).unwrap().count(), 0, "nothing is saved");
    assert!(!nodes.one.volumes().join("default/caches").exists(), "nothing lies on the node's own disk");
    eventually("it is not in use any more", || SharingNodes::remove(&nodes.other).0 == Some(0));
    assert!(!nodes.has("file"));
}

#[test]
fn shared_training_cache_is_not_removed_while_its_job_lives_whose_agent_was_killed() {
    let mut nodes = SharingNodes::new();
    for machine in [&nodes.one, &nodes.other] {
        nodes.mount(machine);
    }
    nodes.start();
    let command = "cd $BT_PROJECT_CACHE_DIR && touch begun && until [ -e go ]; do sleep 0.1; done";
    let id = submitted(&nodes.one, &["--project", "p", text(&cached(&nodes.one, command))]);
    eventually("it runs", || nodes.has("begun"));
    nodes.agents.remove(0).crash();
    // As if the agent were gone for long: the locks of the job are left.
    let users = nodes.shared().join("default/caches/project/p/users");
    let _ = fs::remove_dir_all(&users);
    let (code, error) = SharingNodes::remove(&nodes.other);
    assert!(code != Some(0) && error.contains("is in use by a job"), "{error}");
    let tree = nodes.shared().join("default/caches/project/p/tree");
    let _next = nodes.agent(&nodes.one);
    fs::write(tree.join("go"), "").unwrap();
    job(&nodes.one, &["wait", &id]).succeeds();
    eventually("it is not in use any more", || SharingNodes::remove(&nodes.other).0 == Some(0));
}

#[test]
fn tenants_of_one_shared_file_system_see_their_own_training_caches_only() {
    let mut nodes = SharingNodes::new();
    nodes.mount(&nodes.one);
    nodes.start();
    for tenant in ["default", "other"] {
        let command = format!("cd $BT_PROJECT_CACHE_DIR && [ ! -e file ] && echo {tenant} > file");
        let file = cached(&nodes.one, &command);
        job(&nodes.one, &["run", "--project", "p", "--tenant", tenant, text(&file)]).succeeds();
        let path = nodes.shared().join(tenant).join("caches/project/p/tree/file");
        assert_eq!(fs::read_to_string(path).unwrap(), format!("{tenant}\n"));
    }
}

#[test]
fn job_sees_nothing_of_a_shared_file_system_that_is_mounted_when_it_runs() {
    let mut nodes = SharingNodes::new();
    let vast = nodes.one.directory("vast");
    // What the host mounts below it comes to the job, as on a node.
    run(program("mount")
        .args(["--bind", "--make-shared"])
        .arg(vast.parent().unwrap())
        .arg(vast.parent().unwrap()));
    nodes.start();
    let (go, seen) = (nodes.one.directory("flags").join("go"), nodes.one.directory("seen").join("all"));
    let command =
        format!("until [ -e {} ]; do sleep 0.1; done; ls -A {} > {}", text(&go), text(&vast), text(&seen));
    let id = submitted(&nodes.one, &[text(&spec(&nodes.one, "none.toml", &toml(&[], &[&command])))]);
    eventually("it runs", || shown(&nodes.one, &id)["state"] == "TRAINING_JOB_RUNNING");
    nodes.mount(&nodes.one);
    assert!(directory(&nodes.one).exists());
    fs::write(&go, "").unwrap();
    job(&nodes.one, &["wait", &id]).succeeds();
    assert_eq!(fs::read_to_string(&seen).unwrap(), "");
}

#[test]
fn job_on_a_shared_file_system_whose_locks_do_not_hold_between_nodes_has_a_warning() {
    let mut nodes = SharingNodes::new();
    // Two overlays with one upper directory: the content is the same, and each has locks of its own.
    let upper = nodes.shared().parent().unwrap().to_owned();
    for machine in [&nodes.one, &nodes.other] {
        let (lower, work) = (
            nodes.one.directory("lower"),
            nodes.one.directory("work").join(text(machine.cache()).replace('/', "-")),
        );
        fs::create_dir(&work).unwrap();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},index=off",
            lower.display(),
            upper.display(),
            work.display()
        );
        let mounted = program("mount")
            .args(["-t", "overlay", "-o", &options, "overlay"])
            .arg(machine.directory("vast"))
            .status()
            .unwrap();
        if !mounted.success() {
            return cannot_run("overlays can't be mounted here");
        }
    }
    nodes.start();
    let command = "until [ -e $BT_PROJECT_CACHE_DIR/go ]; do sleep 0.1; done";
    let id = submitted(&nodes.one, &["--project", "p", text(&cached(&nodes.one, command))]);
    let warned = || events(&shown(&nodes.one, &id)).iter().any(|event| event.starts_with(WARNING));
    eventually("it is warned", warned);
    fs::write(directory(&nodes.one).join("default/caches/project/p/tree/go"), "").unwrap();
    job(&nodes.one, &["wait", &id]).succeeds();
    eventually("it is logged", || nodes.agents[0].log().contains(WARNING));
}

#[test]
fn job_without_the_mounted_shared_file_system_fails_and_writes_nothing() {
    let mut nodes = SharingNodes::new();
    nodes.start();
    let output = job(&nodes.one, &["run", "--project", "p", text(&cached(&nodes.one, "true"))]);
    assert!(
        output.code == Some(125) && output.err.contains("mount the shared file system first"),
        "{output:?}"
    );
    assert!(!directory(&nodes.one).exists());
    let none = toml(&[], &["true"]);
    job(&nodes.one, &["run", text(&spec(&nodes.one, "none.toml", &none))]).succeeds();
}
