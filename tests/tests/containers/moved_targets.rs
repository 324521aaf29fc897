//! Targets whose directory was renamed: what is bound is found by its mount, and unmounted where it is.

use std::fs;
use std::path::Path;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::TestEnv;
use serde_json::json;

use crate::kit::{assert_nothing_left, bases, bound, config, entries, publish, targets, unpublish};

#[test]
fn publication_in_a_renamed_directory_is_unmounted_where_it_is() {
    let env = TestEnv::new();
    env.put("file", 5);
    let start = || env.machine.agent(&config(&env.machine));
    let (other, other_target) = bound(&env, "", "other");
    let (targets, mut agent) = (targets(&env.machine), start());
    publish(&agent, "other", &other);
    // Nothing is left under the old name; another directory is; and the next agent knows of it, too.
    for (is_made_anew, is_restarted) in [(false, false), (true, false), (false, true)] {
        let (parent, moved) = (targets.join("pod"), targets.join("moved"));
        fs::create_dir(&parent).unwrap();
        publish(&agent, "pod", &bound(&env, "", "pod/mount").0);
        if is_restarted {
            agent.crash();
            agent = start();
            publish(&agent, "pod", &bound(&env, "", "pod/mount").0);
        }
        fs::rename(&parent, &moved).unwrap();
        assert!(is_mounted(&moved.join("mount")));
        if is_made_anew {
            fs::create_dir(&parent).unwrap();
        }
        unpublish(&agent, "pod");
        assert!(!is_mounted(&moved.join("mount")), "{}", agent.log());
        assert!(is_mounted(&other_target) && bases(&env.machine).len() == 1, "others stay");
        fs::remove_dir_all(&moved).unwrap();
        if is_made_anew {
            fs::remove_dir(&parent).unwrap();
        }
    }
    unpublish(&agent, "other");
    assert_nothing_left(&env);
}

#[test]
fn volume_in_a_renamed_directory_is_unmounted_where_it_is_and_saved() {
    let env = TestEnv::new();
    let mirror = format!("[mirror]\nurl = \"file://{}\"", env.machine.directory("mirror").display());
    let agent = env.machine.agent(&format!("{mirror}\n{}", config(&env.machine)));
    let targets = targets(&env.machine);
    let (parent, moved) = (targets.join("pod"), targets.join("moved"));
    fs::create_dir(&parent).unwrap();
    let request = json!({
        "kind": "checkpoints", "name": "llama", "id": "a1b2c3d4", "target": parent.join("ckpts"), "trusted": true,
    });
    let answer = agent.ask("PUT", "/v1/volumes/trainer", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    write_checkpoint(&parent.join("ckpts"));
    fs::rename(&parent, &moved).unwrap();
    let answer = agent.ask("DELETE", "/v1/volumes/trainer", "");
    assert_eq!(answer.code, 200, "{}", answer.body);
    assert!(!is_mounted(&moved.join("ckpts")), "{}", agent.log());
    assert!(entries(&moved.join("ckpts")).is_empty());
    eventually("all is saved", || is_saved(&agent));
}

fn write_checkpoint(directory: &Path) {
    fs::create_dir(directory.join("step-1")).unwrap();
    fs::write(directory.join("step-1/model"), "weights").unwrap();
}

fn is_saved(agent: &AgentProcess) -> bool {
    agent.get("/v1/volumes").json()["volumes"].as_array().unwrap().is_empty()
}
