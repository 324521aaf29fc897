//! Training caches that are saved in a mirror: begun on another node, merged, removed everywhere.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::{Value, json};

use super::kit::{events, job, spec, submitted, text};

/// Nodes that save into one mirror.
pub(super) struct SavingNodes {
    pub(super) one: Machine,
    pub(super) other: Machine,
}

impl SavingNodes {
    pub(super) fn new() -> Self {
        Self { one: Machine::new(), other: Machine::new() }
    }

    pub(super) fn mirror(&self) -> PathBuf {
        self.one.directory("home").join("mirror")
    }

    /// Starts an agent on `machine` that saves into the mirror.
    pub(super) fn agent(&self, machine: &Machine) -> AgentProcess {
        machine.agent(&format!("[mirror]\nurl = \"file://{}\"\n", self.mirror().display()))
    }

    /// The cache of the project `p` as `machine` shows it.
    pub(super) fn shown_by(&self, machine: &Machine) -> Value {
        let mirror = self.mirror();
        let words = ["project", "show", "p", "--mirror", text(&mirror), "--json"];
        serde_json::from_str(&machine.run(&words).succeeds()).unwrap()
    }

    /// Runs a job of the project `p` with a training cache on `machine`, and answers with its status.
    pub(super) fn run(&self, machine: &Machine, command: &str) -> Value {
        self.try_run(machine, &cached(machine, command)).unwrap()
    }

    /// As [`run`](Self::run), with whatever state the cache is in.
    pub(super) fn run_anyway(&self, machine: &Machine, command: &str) -> Value {
        let file = cached_with(machine, &json!({"require_cache_affinity": false}), command);
        self.try_run(machine, &file).unwrap()
    }

    /// Runs the job `file` of the project `p`; what it printed where it failed.
    pub(super) fn try_run(&self, machine: &Machine, file: &Path) -> Result<Value, String> {
        let (cache, mirror) = (machine.cache().to_owned(), self.mirror());
        let words =
            ["run", "--json", "--project", "p", "--cache-dir", text(&cache), "--mirror", text(&mirror)];
        let output = job(machine, &[&words[..], &[text(file)]].concat());
        match output.code {
            Some(0) => Ok(serde_json::from_str(output.out.lines().last().unwrap()).unwrap()),
            _ => Err(output.err + &output.out),
        }
    }
}

/// A job with a training cache below a directory of the machine's own.
pub(super) fn cached(machine: &Machine, command: &str) -> PathBuf {
    cached_with(machine, &json!({}), command)
}

/// As [`cached`], with more in its `cache_config`.
pub(super) fn cached_with(machine: &Machine, config: &Value, command: &str) -> PathBuf {
    let base = machine.directory("base");
    let mut cache = json!({"enabled": true, "mount_base_path": base});
    cache.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let runtime = json!({"start_commands": [command], "cache_config": cache});
    let body = json!({"image": {"base_image": "x"}, "runtime": runtime, "weights": []});
    spec(machine, "job.json", &body.to_string())
}

/// The home of the cache of the project `p`.
pub(super) fn tree(machine: &Machine) -> PathBuf {
    machine.volumes().join("default/caches/project/p/tree")
}

fn read(machine: &Machine, path: &str) -> Option<String> {
    fs::read_to_string(tree(machine).join(path)).ok()
}

pub(super) fn has_event(status: &Value, begin: &str) -> bool {
    events(status).iter().any(|event| event.starts_with(begin))
}

#[test]
fn training_cache_on_another_node_begins_as_the_last_job_left_it() {
    let nodes = SavingNodes::new();
    let write = "cd $BT_PROJECT_CACHE_DIR && mkdir -p bin lib/empty && head -c 5000000 /dev/urandom > lib/large && \
                 for n in $(seq 200); do echo $n > lib/$n; done && printf '#!/bin/sh\necho tool' > bin/tool && chmod 755 bin/tool && \
                 ln -s /usr/bin/env bin/env && ln -s ../lib/large bin/large && touch -d @60 lib/7 && mkfifo pipe && \
                 echo team > $BT_TEAM_CACHE_DIR/file";
    let status = nodes.run(&nodes.one, write);
    assert!(has_event(&status, "the cache of the project p begins empty"), "{status}");
    assert!(has_event(&status, "saved the cache of the project p: 202 files"), "{status}");
    assert!(has_event(&status, "saved the cache of the team default: 1 file"), "{status}");
    assert!(has_event(&status, "the cache of the project p is saved without 1 entry"), "{status}");

    let look = "cd $BT_PROJECT_CACHE_DIR && [ $(bin/tool) = tool ] && [ $(readlink bin/env) = /usr/bin/env ] && [ -d lib/empty ] && \
                [ $(stat -c %Y lib/7) = 60 ] && cat lib/7 $BT_TEAM_CACHE_DIR/file && cmp lib/large bin/large && echo new > lib/new";
    let status = nodes.run(&nodes.other, look);
    assert!(has_event(&status, "updated the cache of the project p to the state that is saved"), "{status}");
    assert!(has_event(&status, "saved the cache of the project p: 203 files"), "{status}");
    assert!(!has_event(&status, "saved the cache of the team"), "nothing was changed: {status}");
    assert_eq!(
        fs::read(tree(&nodes.one).join("lib/large")).unwrap(),
        fs::read(tree(&nodes.other).join("lib/large")).unwrap()
    );

    let status = nodes.run(&nodes.one, "[ $(cat $BT_PROJECT_CACHE_DIR/lib/new) = new ]");
    assert!(
        has_event(&status, "updated the cache of the project p to the state that is saved: 1 entry"),
        "{status}"
    );
    assert!(!has_event(&status, "saved"), "nothing was changed: {status}");
    let url = format!("file://{}", nodes.mirror().display());
    nodes.one.run(&["mirror", "verify", "--deep", "--mirror", &url]).succeeds();
}

#[test]
fn training_cache_changed_on_two_nodes_is_merged_and_conflicts_are_reported() {
    let nodes = SavingNodes::new();
    nodes.run(
        &nodes.one,
        "cd $BT_PROJECT_CACHE_DIR && echo first > both && echo first > gone && echo first > kept",
    );
    nodes.run(&nodes.other, "true");
    // The mirror is away at the end of this one, so it is saved on this node alone.
    let (mirror, away) = (nodes.mirror(), nodes.mirror().with_extension("away"));
    let command = format!(
        "cd $BT_PROJECT_CACHE_DIR && echo other > both && touch -d '+1 hour' both && echo other > theirs && mv {0} {1} && touch {0}",
        text(&mirror),
        text(&away)
    );
    let status = nodes.run(&nodes.other, &command);
    assert!(
        has_event(&status, "cannot save the cache of the project p, which stays on this node"),
        "{status}"
    );
    fs::remove_file(&mirror).unwrap();
    fs::rename(&away, &mirror).unwrap();
    nodes.run_anyway(&nodes.one, "cd $BT_PROJECT_CACHE_DIR && echo one > both && rm gone && echo one > mine");

    let saved = nodes.other.run(&["project", "save", "p", "--mirror", text(&mirror), "--json"]).succeeds();
    let saved: Value = serde_json::from_str(&saved).unwrap();
    assert_eq!((&saved["changed"], &saved["conflicts"]), (&json!(true), &json!(["both"])), "{saved}");
    // The cache of the team could not be saved either.
    let status = nodes.run_anyway(&nodes.one, "true");
    assert!(has_event(&status, "updated the cache of the project p"), "{status}");
    for node in [&nodes.one, &nodes.other] {
        let found = ["both", "theirs", "mine", "gone", "kept"].map(|path| read(node, path));
        let expected = [Some("other\n"), Some("other\n"), Some("one\n"), None, Some("first\n")];
        assert_eq!(found, expected.map(|content| content.map(str::to_owned)));
    }
}

/// A job that runs, and writes to the cache of its project when there is a file `go` in the directory `flag`.
fn waiting_job(machine: &Machine, flag: &Path) -> String {
    let wait = format!(
        "touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done; echo last > $BT_PROJECT_CACHE_DIR/last",
        text(flag)
    );
    let id = submitted(machine, &["--project", "p", text(&cached(machine, &wait))]);
    eventually("it runs", || flag.join("runs").exists());
    id
}

#[test]
fn training_cache_is_saved_when_the_last_job_of_its_node_ends() {
    let nodes = SavingNodes::new();
    let (machine, flag) = (&nodes.one, nodes.one.directory("flag"));
    let agent = nodes.agent(machine);
    let last = waiting_job(machine, &flag);
    let first = submitted(
        machine,
        &["--project", "p", text(&cached(machine, "echo first > $BT_PROJECT_CACHE_DIR/first"))],
    );
    job(machine, &["wait", &first]).succeeds();
    let status = |id: &str| agent.get(&format!("/v1/jobs/{id}")).json();
    assert!(
        has_event(&status(&first), "the cache of the project p is saved when the other jobs"),
        "{}",
        status(&first)
    );
    let mirror = nodes.mirror();
    let save = ["project", "save", "p", "--mirror", text(&mirror)];
    machine.run(&save).fails(&["the cache of the project p is in use by a job or a container on this node"]);
    fs::write(flag.join("go"), "").unwrap();
    job(machine, &["wait", &last]).succeeds();
    assert!(has_event(&status(&last), "saved the cache of the project p: 2 files"), "{}", status(&last));
    nodes.run(&nodes.other, "cat $BT_PROJECT_CACHE_DIR/first $BT_PROJECT_CACHE_DIR/last");
    agent.stop();
}

#[test]
fn training_cache_is_saved_by_its_last_user_though_that_is_a_later_node_of_its_job() {
    let nodes = SavingNodes::new();
    let (machine, flag) = (&nodes.one, nodes.one.directory("flag"));
    let agent = nodes.agent(machine);
    let wait = format!("touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done", text(&flag));
    let rank = ["--project", "p", "--id", "ranked", "--rank", "1", "--nodes", "2"];
    let anyway = cached_with(machine, &json!({"require_cache_affinity": false}), &wait);
    let last = submitted(machine, &[&rank[..], &[text(&anyway)]].concat());
    eventually("it runs", || flag.join("runs").exists());
    let first = cached(machine, "echo first > $BT_PROJECT_CACHE_DIR/first");
    job(machine, &["wait", &submitted(machine, &["--project", "p", text(&first)])]).succeeds();
    fs::write(flag.join("go"), "").unwrap();
    job(machine, &["wait", &last]).succeeds();
    nodes.run(&nodes.other, "cat $BT_PROJECT_CACHE_DIR/first");
    agent.stop();
}

#[test]
fn training_cache_is_saved_while_a_job_runs_and_no_job_waits_for_that() {
    let nodes = SavingNodes::new();
    let (machine, flag) = (&nodes.one, nodes.one.directory("flag"));
    let mirror = format!("[mirror]\nurl = \"file://{}\"\n", nodes.mirror().display());
    let agent = machine.agent(&format!("{mirror}[volumes]\nsave_interval = \"1s\"\n"));
    let wait = format!(
        "cd $BT_PROJECT_CACHE_DIR && echo first > first && exec 9> open && echo half >&9 && touch {0}/runs; \
         while [ ! -e {0}/go ]; do sleep 0.05; done; echo rest >&9",
        text(&flag)
    );
    let last = submitted(machine, &["--project", "p", text(&cached(machine, &wait))]);
    eventually("it runs", || flag.join("runs").exists());
    let status = |id: &str| agent.get(&format!("/v1/jobs/{id}")).json();
    eventually("it is saved", || has_event(&status(&last), "saved the cache of the project p: 1 file"));
    assert!(
        has_event(&status(&last), "the cache of the project p is saved without what is being written: open"),
        "{}",
        status(&last)
    );
    let look = "[ $(cat $BT_PROJECT_CACHE_DIR/first) = first ] && [ ! -e $BT_PROJECT_CACHE_DIR/open ]";
    nodes.run_anyway(&nodes.other, look);

    // As while a save is under way, however long that takes.
    let save = fs::File::open(tree(machine).with_file_name("sync.lock")).unwrap();
    save.lock().unwrap();
    let write = cached(machine, "echo second > $BT_PROJECT_CACHE_DIR/second");
    job(machine, &["wait", &submitted(machine, &["--project", "p", text(&write)])]).succeeds();
    drop(save);
    fs::write(flag.join("go"), "").unwrap();
    job(machine, &["wait", &last]).succeeds();
    nodes.run(&nodes.other, "cd $BT_PROJECT_CACHE_DIR && grep rest open && cat first second");
    agent.stop();
}

#[test]
fn training_cache_removed_from_node_and_mirror_is_empty_on_every_node() {
    let nodes = SavingNodes::new();
    nodes.run(&nodes.one, "echo first > $BT_PROJECT_CACHE_DIR/file");
    nodes.run(&nodes.other, "cat $BT_PROJECT_CACHE_DIR/file");
    let listed = |machine: &Machine| -> Value {
        serde_json::from_str(&machine.run(&["project", "ls", "--json"]).succeeds()).unwrap()
    };
    assert!(listed(&nodes.one)[0]["saved"].is_i64(), "{}", listed(&nodes.one));
    let mirror = nodes.mirror();
    let removed =
        nodes.one.run(&["project", "rm", "p", "--yes", "--json", "--mirror", text(&mirror)]).succeeds();
    assert_eq!(serde_json::from_str::<Value>(&removed).unwrap()["saved"], json!(true), "{removed}");
    nodes
        .one
        .run(&["project", "rm", "p", "--yes", "--mirror", text(&mirror)])
        .fails(&["and not saved in this mirror"]);
    let status = nodes
        .run(&nodes.other, "[ ! -e $BT_PROJECT_CACHE_DIR/file ] && echo second > $BT_PROJECT_CACHE_DIR/file");
    assert!(
        has_event(&status, "the cache of the project p was removed elsewhere, and is emptied here"),
        "{status}"
    );
    nodes.run(&nodes.one, "[ $(cat $BT_PROJECT_CACHE_DIR/file) = second ]");
    assert_eq!(read(&nodes.one, "file").as_deref(), Some("second\n"));
}

#[test]
fn training_cache_that_a_job_of_another_node_uses_is_not_removed_from_its_mirror() {
    let nodes = SavingNodes::new();
    let (machine, flag) = (&nodes.one, nodes.one.directory("flag"));
    nodes.run(&nodes.other, "echo first > $BT_PROJECT_CACHE_DIR/file");
    let agent = nodes.agent(machine);
    let last = waiting_job(machine, &flag);
    let mirror = nodes.mirror();
    let remove = ["project", "rm", "p", "--yes", "--mirror", text(&mirror)];
    nodes.other.run(&remove).fails(&["is in use by a job on the node"]);
    assert_eq!(read(&nodes.other, "file").as_deref(), Some("first\n"), "nothing was removed");
    fs::write(flag.join("go"), "").unwrap();
    job(machine, &["wait", &last]).succeeds();
    agent.stop();
    nodes.run(&nodes.other, "cat $BT_PROJECT_CACHE_DIR/last");
    nodes.other.run(&remove).succeeds();
}

#[test]
fn training_cache_after_a_reboot_under_a_job_is_saved_only_by_project_save() {
    let nodes = SavingNodes::new();
    nodes.run(&nodes.one, "echo first > $BT_PROJECT_CACHE_DIR/file");
    // As a job of another boot left it.
    let state = tree(&nodes.one).with_file_name("sync.json");
    let mut text_of: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    text_of["boot"] = json!("another\n");
    fs::write(&state, text_of.to_string()).unwrap();
    let status = nodes.run(&nodes.one, "echo second > $BT_PROJECT_CACHE_DIR/file");
    assert!(
        has_event(
            &status,
            "the cache of the project p is not saved: the node restarted while a job wrote to it"
        ),
        "{status}"
    );
    nodes.one.run(&["project", "save", "p", "--mirror", text(&nodes.mirror())]).succeeds();
    nodes.run(&nodes.other, "[ $(cat $BT_PROJECT_CACHE_DIR/file) = second ]");
    let status = nodes.run(&nodes.one, "echo third > $BT_PROJECT_CACHE_DIR/file");
    assert!(has_event(&status, "saved the cache of the project p"), "{status}");
}
