//! Training caches and the jobs of several nodes that want the newest state: they wait for each other, or fail with the reason.

use std::fs;

use bdnfs_tests::process::eventually;
use serde_json::json;

use super::kit::{age_reports, job, manifests, submitted, text};
use super::saved_caches::{SavingNodes, cached, cached_with, has_event};

#[test]
fn job_with_cache_affinity_fails_where_the_newest_training_cache_cannot_be_fetched() {
    let nodes = SavingNodes::new();
    nodes.run(&nodes.one, "echo first > $BT_PROJECT_CACHE_DIR/file");
    let found = manifests(&nodes.mirror());
    assert!(!found.is_empty());
    found.iter().for_each(|path| fs::remove_file(path).unwrap());
    let output = nodes.try_run(&nodes.other, &cached(&nodes.other, "true")).unwrap_err();
    assert!(output.contains("cannot get the newest state of the cache of the project p"), "{output}");
    let states = [nodes.other.volumes().join("default/caches/project/p/tree/file")];
    assert!(states.iter().all(|path| !path.exists()));
}

#[test]
fn job_with_cache_affinity_waits_while_a_job_of_another_node_has_unsaved_changes() {
    let nodes = SavingNodes::new();
    let flag = nodes.one.directory("flag");
    nodes.run(&nodes.other, "echo first > $BT_PROJECT_CACHE_DIR/file");
    let show = || nodes.shown_by(&nodes.one);
    let shown = show();
    assert_eq!(
        (&shown["saved"]["files"], shown["nodes"].as_array().unwrap().len()),
        (&json!(1), 1),
        "{shown}"
    );
    let [node] = &shown["nodes"].as_array().unwrap()[..] else { panic!("{shown}") };
    let expected = json!([false, true, null, false]);
    assert_eq!(
        json!([node["this"], node["newest"], node["unsaved_since"], node["in_use"]]),
        expected,
        "{shown}"
    );

    let agent = nodes.agent(&nodes.one);
    let wait = format!(
        "echo second > $BT_PROJECT_CACHE_DIR/file && touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done",
        text(&flag)
    );
    let writer = submitted(&nodes.one, &["--project", "p", text(&cached(&nodes.one, &wait))]);
    eventually("it runs", || flag.join("runs").exists());
    let shown = show();
    let one = shown["nodes"].as_array().unwrap().iter().find(|node| node["this"] == true).unwrap().clone();
    assert!(one["unsaved_since"].is_string() && one["in_use"] == true, "{shown}");
    let status = nodes.run_anyway(&nodes.other, "[ $(cat $BT_PROJECT_CACHE_DIR/file) = first ]");
    assert!(has_event(&status, "the cache of the project p begins without the newest changes"), "{status}");
    let other = nodes.agent(&nodes.other);
    let read = cached(&nodes.other, "[ $(cat $BT_PROJECT_CACHE_DIR/file) = second ]");
    let reader = submitted(&nodes.other, &["--project", "p", text(&read)]);
    let host = one["host"].as_str().unwrap();
    let waits = format!(
        "waits until other nodes have saved the cache of the project p: the node {host} has changes that are not saved, the first "
    );
    eventually("it waits", || {
        let status = job(&nodes.other, &["show", "--json", &reader]).succeeds();
        has_event(&serde_json::from_str(&status).unwrap(), &waits)
    });
    fs::write(flag.join("go"), "").unwrap();
    job(&nodes.one, &["wait", &writer]).succeeds();
    job(&nodes.other, &["wait", &reader]).succeeds();
    agent.stop();
    other.stop();
    assert!(
        show()["nodes"].as_array().unwrap().iter().all(|node| node["unsaved_since"].is_null()),
        "{}",
        show()
    );
}

#[test]
fn job_with_cache_affinity_waits_while_older_jobs_of_its_node_keep_the_cache_from_being_updated() {
    let nodes = SavingNodes::new();
    let flag = nodes.one.directory("flag");
    nodes.run(&nodes.one, "echo first > $BT_PROJECT_CACHE_DIR/file");
    let agent = nodes.agent(&nodes.one);
    let wait = format!("touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done", text(&flag));
    let anyway = cached_with(&nodes.one, &json!({"require_cache_affinity": false}), &wait);
    let old = submitted(&nodes.one, &["--project", "p", text(&anyway)]);
    eventually("it runs", || flag.join("runs").exists());
    nodes.run_anyway(&nodes.other, "echo second > $BT_PROJECT_CACHE_DIR/file");
    let read = cached(&nodes.one, "[ $(cat $BT_PROJECT_CACHE_DIR/file) = second ]");
    let reader = submitted(&nodes.one, &["--project", "p", text(&read)]);
    eventually("it waits", || {
        let status = job(&nodes.one, &["show", "--json", &reader]).succeeds();
        let waits = "waits until others on this node no longer use the cache of the project p";
        has_event(&serde_json::from_str(&status).unwrap(), waits)
    });
    fs::write(flag.join("go"), "").unwrap();
    job(&nodes.one, &["wait", &old]).succeeds();
    job(&nodes.one, &["wait", &reader]).succeeds();
    agent.stop();
}

#[test]
fn job_stopped_before_its_commands_run_leaves_no_training_cache_in_use() {
    let nodes = SavingNodes::new();
    let flag = nodes.one.directory("flag");
    let (agent, other) = (nodes.agent(&nodes.one), nodes.agent(&nodes.other));
    let wait = format!("touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done", text(&flag));
    let writer =
        submitted(&nodes.other, &["--project", "q", "--team", "t", text(&cached(&nodes.other, &wait))]);
    eventually("it runs", || flag.join("runs").exists());
    // It has the cache of its project, and waits for that of its team.
    let stopped =
        submitted(&nodes.one, &["--project", "p", "--team", "t", text(&cached(&nodes.one, "true"))]);
    eventually("it waits", || {
        let status = job(&nodes.one, &["show", "--json", &stopped]).succeeds();
        let waits = "waits until other nodes have saved the cache of the team t";
        has_event(&serde_json::from_str(&status).unwrap(), waits)
    });
    let shown = || nodes.shown_by(&nodes.other);
    let is_left = |is_left: bool| {
        let node = &shown()["nodes"][0];
        (node["in_use"] == is_left) && (node["unsaved_since"].is_string() == is_left)
    };
    assert!(is_left(true), "{}", shown());
    job(&nodes.one, &["stop", &stopped]).succeeds();
    eventually("it is stopped", || is_left(false));
    fs::write(flag.join("go"), "").unwrap();
    job(&nodes.other, &["wait", &writer]).succeeds();
    agent.stop();
    other.stop();
}

#[test]
fn project_forget_gives_up_the_unsaved_changes_of_a_node_that_is_gone() {
    let nodes = SavingNodes::new();
    let (mirror, away) = (nodes.mirror(), nodes.mirror().with_extension("away"));
    nodes.run(&nodes.other, "echo first > $BT_PROJECT_CACHE_DIR/file");
    // The mirror is away at its end, so that nothing is saved.
    let command = format!(
        "echo second > $BT_PROJECT_CACHE_DIR/file && mv {0} {1} && touch {0}",
        text(&mirror),
        text(&away)
    );
    nodes.run(&nodes.other, &command);
    fs::remove_file(&mirror).unwrap();
    fs::rename(&away, &mirror).unwrap();
    age_reports(&mirror);
    let file = cached(&nodes.one, "[ $(cat $BT_PROJECT_CACHE_DIR/file) = first ]");
    let output = nodes.try_run(&nodes.one, &file).unwrap_err();
    assert!(output.contains("has changes that are not saved, the first "), "{output}");
    let shown = nodes.shown_by(&nodes.one);
    // What could not begin here has nothing to save.
    let gone = shown["nodes"].as_array().unwrap().iter().find(|node| node["this"] == false).unwrap();
    let forget = |node: &str, more: &[&str]| {
        let words = ["project", "forget", "p", "--node", node, "--mirror", text(&mirror)];
        nodes.one.run(&[&words[..], more].concat())
    };
    forget("nobody", &[]).fails(&["no node nobody has reported on the cache of the project p"]);
    for team in [false, true] {
        let (name, more) = if team { ("default", &["--team"][..]) } else { ("p", &[][..]) };
        let words =
            ["project", "forget", name, "--node", gone["node"].as_str().unwrap(), "--mirror", text(&mirror)];
        nodes.one.run(&[&words[..], more].concat()).succeeds();
    }
    nodes.try_run(&nodes.one, &file).unwrap();
}
