//! Training caches: who shares them, who doesn't, how long they last, and the commands that manage them.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::{Value, json};

use super::kit::{events, job, spec, submitted, text};

/// A job of truss's kind with a training cache, below a directory of this machine's own.
fn cached(machine: &Machine, name: &str, config: Value, command: &str) -> PathBuf {
    let mut cache = json!({"enabled": true, "mount_base_path": base(machine)});
    cache.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let runtime = json!({"start_commands": [command], "cache_config": cache});
    let body = json!({"image": {"base_image": "x"}, "runtime": runtime, "weights": []});
    spec(machine, name, &body.to_string())
}

fn base(machine: &Machine) -> PathBuf {
    machine.directory("base")
}

fn run(machine: &Machine, more: &[&str], spec: &Path) -> (Option<i32>, String) {
    let words = [&["run", "--no-mirror", "--cache-dir", text(machine.cache())], more, &[text(spec)]].concat();
    let output = job(machine, &words);
    (output.code, output.err)
}

#[test]
fn training_cache_is_found_by_later_jobs_of_its_project_or_team_and_no_others() {
    let machine = Machine::new();
    let seen = machine.directory("seen");
    let first = format!(
        "echo project > $BT_PROJECT_CACHE_DIR/file && echo team > $BT_TEAM_CACHE_DIR/file && \
         [ $BT_RW_CACHE_DIR = $BT_PROJECT_CACHE_DIR ] && [ $BT_PROJECT_CACHE_DIR = {base}/user_artifacts ] && \
         [ $BT_TEAM_CACHE_DIR = {base}/team_artifacts ] && stat -c %a $BT_PROJECT_CACHE_DIR && [ ! -e {base}/huggingface ]",
        base = text(&base(&machine)),
    );
    let file = cached(&machine, "first.json", json!({}), &first);
    let (code, output) = run(&machine, &["--project", "p", "--team", "t"], &file);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("the cache of the project p begins empty"), "{output}");
    let look = format!(
        "cat $BT_PROJECT_CACHE_DIR/file $BT_TEAM_CACHE_DIR/file > {0}/$BT_TRAINING_JOB_ID 2> /dev/null; \
         ls -A {1} >> {0}/$BT_TRAINING_JOB_ID",
        text(&seen),
        text(&machine.volumes())
    );
    let file = cached(&machine, "look.json", json!({}), &look);
    for (id, whose, expected) in [
        ("same", &["--project", "p", "--team", "t"][..], "project\nteam\n"),
        ("team", &["--project", "q", "--team", "t"], "team\n"),
        ("project", &["--project", "p", "--team", "u"], "project\n"),
        ("nobody", &[], ""),
        ("tenant", &["--project", "p", "--team", "t", "--tenant", "other"], ""),
    ] {
        let (code, output) = run(&machine, &[whose, &["--id", id]].concat(), &file);
        assert_eq!(code, Some(0), "{output}");
        assert_eq!(fs::read_to_string(seen.join(id)).unwrap(), expected, "{id}");
        assert_eq!(output.contains("the job names no project"), whose.is_empty(), "{output}");
    }
    // The host has empty directories there.
    assert_eq!(fs::read_dir(base(&machine).join("user_artifacts")).unwrap().count(), 0);
}

#[test]
fn training_cache_is_shared_by_concurrent_jobs_and_has_the_legacy_hub_mount() {
    let machine = Machine::new();
    let _agent = machine.agent("");
    let legacy = json!({"enable_legacy_hf_mount": true});
    let writer = "cd $BT_PROJECT_CACHE_DIR && ( flock 9; touch locked; while [ ! -e go ]; do sleep 0.05; done ) 9> lock";
    let first =
        submitted(&machine, &["--no-mirror", text(&cached(&machine, "a.json", legacy.clone(), writer))]);
    let reader = format!(
        "cd $BT_PROJECT_CACHE_DIR && while [ ! -e locked ]; do sleep 0.05; done; ! flock --nonblock lock true && touch go && \
         flock lock true && echo x > {}/huggingface/file && cat huggingface/file",
        text(&base(&machine))
    );
    job(&machine, &["run", "--no-mirror", text(&cached(&machine, "b.json", legacy, &reader))]).succeeds();
    job(&machine, &["wait", &first]).succeeds();
}

#[test]
fn training_cache_that_a_job_cannot_have_is_refused_with_the_reason() {
    let machine = Machine::new();
    let flag = machine.directory("flag").join("ran");
    let command = format!("touch {}", text(&flag));
    let refused = |config: Value, more: &[&str], words: &str| {
        let (code, output) = run(&machine, more, &cached(&machine, "no.json", config, &command));
        assert!(code == Some(125) && output.contains(words), "{words}: {code:?} {output}");
        assert!(!flag.exists());
    };
    refused(json!({}), &["--nodes", "2"], "the job runs on 2 nodes, which have no cache in common");
    refused(json!({"mount_base_path": "cache"}), &[], "mount_base_path: must be an absolute path");
    refused(json!({"mount_base_path": "/mnt/bt-scratch"}), &[], "/mnt/bt-scratch and the cache at");
    let alone = cached(&machine, "alone.json", json!({"require_cache_affinity": false}), &command);
    let (code, output) = run(&machine, &["--nodes", "2"], &alone);
    assert!(code == Some(0) && flag.exists(), "{output}");
}

#[test]
fn training_cache_over_its_limit_fails_the_job() {
    let machine = Machine::new();
    let agent = machine
        .agent("[volumes]\ncache_limit = \"10MB\"\nproject_limits = { large = \"50MB\", small = \"1MB\" }\n");
    // All at once: what is measured is not half of it.
    let command = "fallocate -l 19000000 $BT_PROJECT_CACHE_DIR/x; sleep 1000";
    let file = cached(&machine, "full.json", json!({}), command);
    let submit = |project| submitted(&machine, &["--no-mirror", "--project", project, text(&file)]);
    // The first is measured before the others.
    let [large, small, id] = ["large", "small", "p"].map(submit);
    let status_of = |id: &str| agent.get(&format!("/v1/jobs/{id}")).json();
    let status = || status_of(&id);
    eventually("it fails", || status()["state"] == "TRAINING_JOB_FAILED");
    eventually("it fails", || status_of(&small)["state"] == "TRAINING_JOB_FAILED");
    assert!(status_of(&small)["why"].to_string().contains("may occupy 1.0 MB"), "{}", status_of(&small));
    assert_eq!(status_of(&large)["state"], "TRAINING_JOB_RUNNING", "it has a limit of its own");
    let why = status()["why"]["message"].as_str().unwrap().to_owned();
    assert!(
        why.starts_with("the cache of the project p occupies 19") && why.contains("raise cache_limit"),
        "{why}"
    );
    assert!(events(&status()).iter().any(|event| event.contains("begins empty")));
}

#[test]
fn training_cache_of_a_team_over_its_limit_fails_the_job() {
    let machine = Machine::new();
    let agent = machine.agent("[volumes]\nteam_limits = { small = \"1MB\" }\n");
    let command = "fallocate -l 3000000 $BT_TEAM_CACHE_DIR/x; sleep 1000";
    let file = cached(&machine, "team.json", json!({}), command);
    let submit = |team| submitted(&machine, &["--no-mirror", "--project", "p", "--team", team, text(&file)]);
    // The other is measured before it.
    let [other, small] = ["other", "small"].map(submit);
    let status_of = |id: &str| agent.get(&format!("/v1/jobs/{id}")).json();
    eventually("it fails", || status_of(&small)["state"] == "TRAINING_JOB_FAILED");
    let why = status_of(&small)["why"]["message"].as_str().unwrap().to_owned();
    assert!(
        why.starts_with("the cache of the team small occupies 3") && why.contains("team_limits"),
        "{why}"
    );
    assert_eq!(status_of(&other)["state"], "TRAINING_JOB_RUNNING", "it has no limit");
}

#[test]
fn project_commands_show_a_training_cache_as_truss_does_and_remove_it_when_unused() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flag = machine.directory("flag");
    let command = format!(
        "cd $BT_PROJECT_CACHE_DIR && mkdir -m 755 d && umask 022 && echo 12345 > d/file && touch -d @60 d/file && \
         touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done",
        text(&flag)
    );
    let file = cached(&machine, "use.json", json!({}), &command);
    let id = submitted(&machine, &["--no-mirror", "--project", "a/b", text(&file)]);
    eventually("it runs", || flag.join("runs").exists());
    let project = |words: &[&str]| machine.run(&[&["project"], words].concat());

    let listed: Value = serde_json::from_str(&project(&["ls", "--json"]).succeeds()).unwrap();
    let found: Vec<_> =
        listed.as_array().unwrap().iter().map(|one| (&one["name"], &one["scope"], &one["in_use"])).collect();
    assert_eq!(json!(found), json!([["a/b", "project", true], ["default", "team", true]]));
    let summary: Value =
        serde_json::from_str(&project(&["summarize", "a/b", "-o", "json"]).succeeds()).unwrap();
    let size = json!({"size_bytes": 6, "size_human_readable": "6 B"});
    let [directory, file] = &summary["files"].as_array().unwrap()[..] else { panic!("{summary}") };
    assert_eq!((&summary["total_files"], &summary["total_size_bytes"]), (&json!(2), &json!(6)));
    assert_eq!(
        (&summary["project_id"], &summary["total_size_human_readable"]),
        (&json!("a/b"), &json!("6 B"))
    );
    assert_eq!(
        (&directory["path"], &directory["size_bytes"], &directory["type"]),
        (&json!("d"), &size["size_bytes"], &json!("directory"))
    );
    let mut expected = json!({"path": "d/file", "modified": "1970-01-01 00:01:00", "type": "file", "permissions": "-rw-r--r--"});
    expected.as_object_mut().unwrap().extend(size.as_object().unwrap().clone());
    assert_eq!(*file, expected);
    let csv = project(&["summarize", "a/b", "-o", "csv", "--sort", "type", "--order", "desc"]).succeeds();
    let header = "File Path,Size (bytes),Size (human readable),Modified,Type,Permissions\r\n";
    assert!(
        csv.starts_with(&format!("{header}d/file,6,6 B,1970-01-01 00:01:00,file,-rw-r--r--\r\nd,")),
        "{csv}"
    );

    project(&["rm", "a/b"]).fails(&["standard input is not a terminal, add --yes"]);
    project(&["rm", "a/b", "--yes"])
        .fails(&["the cache of the project a/b is in use by a job or a container on this node"]);
    fs::write(flag.join("go"), "").unwrap();
    job(&machine, &["wait", &id]).succeeds();
    project(&["rm", "a/b", "--yes", "--tenant", "other"]).fails(&["is not on this node"]);
    let home = machine.volumes().join("default/caches/project/a%2Fb");
    for name in ["sync.lock", "turn.lock"] {
        let lock = fs::File::open(home.join(name)).unwrap();
        lock.lock().unwrap();
        let refused = "the cache of the project a/b is being saved, or updated for a job; try again later";
        project(&["rm", "a/b", "--yes"]).fails(&[refused]);
    }
    project(&["rm", "a/b", "--yes"]).succeeds();
    project(&["summarize", "a/b"]).fails(&["the cache of the project a/b is not on this node"]);
    let left: Value = serde_json::from_str(&project(&["ls", "--json"]).succeeds()).unwrap();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(fs::read_dir(machine.volumes().join("default/trash")).unwrap().count(), 0);
    agent.stop();
}

#[test]
fn training_cache_notes_the_boot_in_which_it_is_written_also_for_a_job_without_a_mirror() {
    let machine = Machine::new();
    let flag = machine.directory("flag");
    let wait = format!("touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done", text(&flag));
    let file = cached(&machine, "job.json", json!({}), &wait);
    let agent = machine.agent("");
    let id = submitted(&machine, &["--no-mirror", "--project", "p", text(&file)]);
    eventually("it runs", || flag.join("runs").exists());
    let state = machine.volumes().join("default/caches/project/p/sync.json");
    let boot = || serde_json::from_slice::<Value>(&fs::read(&state).unwrap()).unwrap()["boot"].clone();
    assert!(boot().is_string(), "a reboot now would be seen");
    fs::write(flag.join("go"), "").unwrap();
    job(&machine, &["wait", &id]).succeeds();
    assert!(boot().is_null());
    agent.stop();
}
