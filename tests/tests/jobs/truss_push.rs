//! Jobs as `truss train push` sends them, recorded from truss itself.

use bdnfs_tests::test_env::TestEnv;
use serde_json::{Value, json};

use crate::kit::{events, job, spec, text};

fn bodies(kind: &str) -> Vec<(String, Value)> {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../src/weights/testdata/truss_push.json")).unwrap();
    recorded[kind].as_object().unwrap().clone().into_iter().collect()
}

#[test]
fn pushed_job_in_each_form_runs_and_lists_ignored_keys() {
    let env = TestEnv::new();
    env.put("model/config.json", 700);
    let machine = &env.machine;
    let agent = machine.agent("");
    let (_, body) = bodies("run").into_iter().find(|(name, _)| name == "plain").unwrap();
    let inner = &body["training_job"];
    for document in [body.clone(), inner.clone(), json!({"name": "project", "job": inner})] {
        let spec = spec(machine, "job.json", &document.to_string());
        let out = job(machine, &["run", "--json", "--no-mirror", text(&spec)]).succeeds();
        let ran: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        assert_eq!(ran["state"], "TRAINING_JOB_COMPLETED", "{out}");
        assert_eq!(ran["report"]["total"]["files"], 1, "{out}");
        let first = events(&ran).into_iter().find(|event| event.contains("image, compute")).unwrap();
        assert!(first.ends_with("no effect: the commands run on this machine as it is"), "{first}");
    }
    drop(agent);
}

#[test]
fn job_asking_for_more_than_there_is_does_not_run() {
    let env = TestEnv::new();
    env.put("model/config.json", 700);
    let machine = &env.machine;
    let agent = machine.agent("");
    let flag = machine.directory("flags").join("ran");
    let refused = |mut body: Value, more: &[&str], words: &[&str]| {
        body["training_job"]["runtime"]["start_commands"] = json!([format!("touch {}", text(&flag))]);
        let spec = spec(machine, "job.json", &body.to_string());
        let line = [&["run", "--no-mirror", text(&spec)], more].concat();
        if words.is_empty() {
            job(machine, &line).succeeds();
        } else {
            machine.run(&["check", text(&spec)]).fails(&["is invalid: 1 error"]);
            job(machine, &line).fails(words);
            assert!(!flag.exists(), "{words:?}");
        }
    };
    // What else was recorded as refused is done since: see resume.rs and checkpoints.rs.
    let (_, nodes) = bodies("refuse").into_iter().find(|(name, _)| name == "node_count").unwrap();
    refused(nodes, &[], &["compute.node_count: must be 1"]);
    let (_, plain) = bodies("run").into_iter().find(|(name, _)| name == "plain").unwrap();
    let mut misspelt = plain.clone();
    let weights = misspelt["training_job"].as_object_mut().unwrap().remove("weights").unwrap();
    misspelt["training_job"]["wieghts"] = weights;
    refused(misspelt, &[], &["training_job.wieghts: is not a known key"]);
    let mut newer = plain;
    newer["training_job"]["weights"][0]["colour"] = json!("red");
    refused(newer.clone(), &[], &["training_job.weights[0].colour: is not a known key"]);
    refused(newer, &["--lenient"], &[]);
    assert!(flag.exists());
    drop(agent);
}
