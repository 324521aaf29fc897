//! What the suites of jobs share.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tree::total_bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub fn text(path: &Path) -> &str {
    path.to_str().expect("ours are text")
}

/// `bdnfs job`.
pub fn job(machine: &Machine, arguments: &[&str]) -> CommandOutput {
    machine.run(&[&["job"], arguments].concat())
}

/// Submits a job, and answers with its number.
pub fn submitted(machine: &Machine, arguments: &[&str]) -> String {
    let output = job(machine, &[&["submit"], arguments].concat()).succeeds();
    output.trim().strip_prefix("job ").expect("a number").to_owned()
}

/// A directory with one secret, called `s3`: what lets its jobs read and write buckets, whoever is the agent.
pub fn secrets(machine: &Machine) -> PathBuf {
    let keys = Keys::sample();
    let secret = json!({
        "aws_access_key_id": keys.access, "aws_secret_access_key": keys.secret, "aws_region": "us-east-1",
    });
    let directory = machine.directory("secrets");
    fs::write(directory.join("s3"), secret.to_string()).expect("written");
    directory
}

/// A file with a specification.
pub fn spec(machine: &Machine, name: &str, content: &str) -> PathBuf {
    let path = machine.directory("specs").join(name);
    fs::write(&path, content).expect("written");
    path
}

/// A job in our own TOML: sources, each with its place, and commands.
pub fn toml(sources: &[(&str, &str)], commands: &[&str]) -> String {
    let mut text = format!("[runtime]\nstart_commands = {}\n", json!(commands));
    for (source, place) in sources {
        text.push_str(&format!("[[weights]]\nsource = \"{source}\"\nmount_location = \"{place}\"\n"));
    }
    text
}

/// A training job just as truss_train dumps it, in one of its shapes, with other sources and another command.
pub fn truss(shape: &str, sources: &[&str], command: &str) -> String {
    let recorded: Value =
        serde_json::from_str(include_str!("../../../src/weights/testdata/truss_train_job.json"))
            .expect("JSON");
    let mut job = recorded[shape].clone();
    // One shape was recorded as text.
    if let Value::String(text) = &job {
        job = serde_json::from_str(text).expect("JSON");
    }
    job["runtime"]["start_commands"] = json!([command]);
    // It was recorded with what a job can't do here.
    job["compute"]["node_count"] = json!(1);
    for key in ["cache_config", "checkpointing_config"] {
        job["runtime"][key]["enabled"] = json!(false);
    }
    for (weights, source) in job["weights"].as_array_mut().expect("weights").iter_mut().zip(sources) {
        weights["source"] = json!(source);
        for key in ["auth", "allow_patterns", "ignore_patterns"] {
            weights[key] = Value::Null;
        }
    }
    job.to_string()
}

/// The states that a job went through.
pub fn states(job: &Value) -> Vec<String> {
    let mut states: Vec<_> = job["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| event["state"].as_str().expect("a state").to_owned())
        .collect();
    states.dedup();
    states
}

/// What happened to a job.
pub fn events(job: &Value) -> Vec<String> {
    let events = job["events"].as_array().expect("events");
    events.iter().map(|event| event["text"].as_str().expect("a text").to_owned()).collect()
}

/// What is mounted for jobs of this machine.
pub fn mounts_of(machine: &Machine) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a table");
    let jobs = machine.cache().join("jobs");
    table.lines().filter(|line| line.contains(text(&jobs))).map(str::to_owned).collect()
}

/// The bytes of all files below directories.
pub fn summed(directories: &[&Path]) -> u64 {
    directories.iter().map(|directory| total_bytes(directory)).sum()
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How many rounds a campaign has: `CAMPAIGN_ROUNDS` of the environment, or `nightly`.
pub fn campaign_rounds(nightly: usize) -> usize {
    std::env::var("CAMPAIGN_ROUNDS").map_or(nightly, |rounds| rounds.parse().expect("a number"))
}

/// Makes all that nodes have reported in a mirror years old, as if they were gone.
pub fn age_reports(mirror: &Path) {
    for path in objects(mirror, "homes") {
        let text = fs::read_to_string(&path).unwrap();
        let (all, _) = text.rsplit_once(",\n  \"check\": ").unwrap();
        let mut report: Value = serde_json::from_str(&format!("{all}\n}}")).unwrap();
        report["reported"] = json!("2020-01-01T00:00:00Z");
        let text = serde_json::to_string_pretty(&report).unwrap();
        let all = text.strip_suffix("\n}").unwrap();
        fs::write(
            path,
            format!("{all},\n  \"check\": \"{}\"\n}}\n", bdnfs::digest::Digest::of(all.as_bytes())),
        )
        .unwrap();
    }
}

/// The manifests in a mirror.
pub fn manifests(mirror: &Path) -> Vec<PathBuf> {
    objects(mirror, "manifests")
}

/// The objects of a mirror below the directories called `kind`.
fn objects(mirror: &Path, kind: &str) -> Vec<PathBuf> {
    let (mut found, mut todo) = (Vec::new(), vec![mirror.to_owned()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if path.components().any(|part| part.as_os_str() == kind) {
                found.push(path);
            }
        }
    }
    found
}
