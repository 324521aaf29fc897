//! Jobs that are posted to the API by other clients than the command: what the command refuses is refused there.

use std::fs;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use serde_json::{Value, json};

use crate::kit::text;

/// Posts a job that has `more` than a command. Answers with the status and the failure.
fn post(agent: &AgentProcess, more: Value) -> (u16, Value) {
    let mut body = json!({"start_commands": ["true"], "workdir": "/"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = agent.ask("POST", "/v1/jobs", &body.to_string());
    (answer.code, answer.json())
}

fn refused(agent: &AgentProcess, more: Value, words: &str) {
    let (status, output) = post(agent, more.clone());
    let message = output["message"].as_str().unwrap_or_default();
    assert!(
        status == 400 && output["kind"] == "invalid" && message.contains(words),
        "{more}: {status} {output}"
    );
    assert!(message.len() < 400, "{message}");
}

#[test]
fn job_posted_with_a_misspelt_key_is_refused_with_its_name() {
    let machine = Machine::new();
    let agent = machine.agent("");
    refused(&agent, json!({"weightz": []}), "unknown key weightz");
    let weights = json!([{"source": "file:///etc", "mountpoint": "/mnt/x", "allow_pattern": ["*.json"]}]);
    refused(&agent, json!({"weights": weights}), "unknown key weights.0.allow_pattern");
    assert!(agent.get("/v1/jobs").json()["jobs"].as_array().unwrap().is_empty());
    agent.stop();
}

#[test]
fn job_posted_with_what_the_command_refuses_is_refused_at_once() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let work = machine.directory("work");
    fs::write(work.join("file"), "").unwrap();
    for (workdir, words) in [
        (text(&work.join("none")), "cannot use the working directory"),
        (text(&work.join("file")), "is not a directory"),
        ("work", "must be absolute"),
        ("/a\0b", "cannot use the working directory"),
    ] {
        refused(&agent, json!({"workdir": workdir}), words);
    }
    let folder = json!({"checkpoints": {"path": "saved"}});
    refused(&agent, folder, "checkpointing_config.checkpoint_path: must be absolute");
    // Its name is below the scratch directory, and it is not.
    let folder = json!({"checkpoints": {"path": "/mnt/bt-scratch/../saved"}});
    refused(&agent, folder, r#"checkpointing_config.checkpoint_path: has ".." in it"#);
    let folder = json!({"load": {"checkpoints": [], "download_folder": "loaded"}});
    refused(&agent, folder, "load_checkpoint_config.download_folder: must be absolute");
    let folder = json!({"load": {"checkpoints": [], "download_folder": "/mnt/../loaded"}});
    refused(&agent, folder, r#"load_checkpoint_config.download_folder: has ".." in it"#);
    refused(&agent, json!({"start_commands": ["true", "echo a\0b"]}), "start_commands[1] contains a NUL");
    refused(&agent, json!({"environment": {"A": "b\0"}}), "the variable A contains a NUL");
    refused(&agent, json!({"environment": {"A\0": "b"}}), "cannot be the name of a variable");
    for (places, words) in [
        (vec!["/"], "weights[0].mount_location: is the root"),
        (vec!["/mnt/../etc"], r#"has ".." in it"#),
        (vec!["/mnt/a\0b"], "contains a control character"),
        (vec!["models"], "must be absolute"),
        (vec!["/proc/x"], "weights[0].mount_location: lies in /proc/x, which belongs to the kernel"),
        (vec!["/m", "/sys"], "weights[1].mount_location: lies in /sys, which belongs to the kernel"),
        (vec!["/dev"], "weights[0].mount_location: lies in /dev, which belongs to the kernel"),
        (vec!["/m/a", "/m/a/b"], "weights[1].mount_location: lies inside that of weights[0]"),
        (vec!["/m/a", "/m/a"], "weights[1].mount_location: is /m/a, as that of weights[0]"),
        (vec![&format!("/m/{}", "a".repeat(256))], "is too long"),
    ] {
        let source = format!("file://{}", text(&work));
        let weights: Vec<_> =
            places.iter().map(|place| json!({"source": source, "mountpoint": place})).collect();
        refused(&agent, json!({"weights": weights}), words);
    }
    for tenant in ["..", "../../evil", "a/b", "evil/../default", ""] {
        refused(&agent, json!({"tenant": tenant}), "cannot be a tenant");
    }
    for path in ["/", "//", "/./"] {
        let folder = json!({"checkpoints": {"path": path}});
        refused(&agent, folder, "checkpointing_config.checkpoint_path: is the root");
        let folder = json!({"load": {"checkpoints": [], "download_folder": path}});
        refused(&agent, folder, "load_checkpoint_config.download_folder: is the root");
    }
    let folder = json!({"checkpoints": {"path": "/proc/x"}});
    refused(&agent, folder, "checkpointing_config.checkpoint_path: lies in /proc/x");
    let long = "n".repeat(5000);
    refused(&agent, json!({"name": long}), "the name of the job");
    refused(&agent, json!({"name": "a\0b"}), "the name of the job");
    refused(&agent, json!({"training": {"project": long}}), "the name of a project");
    refused(&agent, json!({"training": {"team": long}}), "the name of a team");
    assert!(agent.get("/v1/jobs").json()["jobs"].as_array().unwrap().is_empty());
    // The directory may come with a source.
    let weights = json!([{"source": format!("file://{}", text(&work)), "mountpoint": "/new/m"}]);
    let (status, job) = post(&agent, json!({"weights": weights, "workdir": "/new/m", "direct": true}));
    assert_eq!(status, 200, "{job}");
    agent.stop();
}
