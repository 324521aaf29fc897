//! An agent that publishes, and what it has published.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::agent::{AgentProcess, ApiResponse};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::mount_points;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use serde_json::{Value, json};

/// Where the targets of a machine's agent are.
pub fn targets(machine: &Machine) -> PathBuf {
    machine.directory("targets")
}

/// The configuration of an agent that publishes there.
pub fn config(machine: &Machine) -> String {
    format!("[publications]\ntargets = [{:?}]", targets(machine))
}

/// A request for `prefix` of the bucket, by an administrator.
pub fn request(env: &TestEnv, prefix: &str) -> Value {
    let Keys { access: id, secret, .. } = Keys::sample();
    json!({
        "source": format!("s3://bucket{prefix}"), "trusted": true,
        "access": {"s3": {
            "endpoint": env.proxy.url(), "region": "us-east-1", "access_key_id": id, "secret_access_key": secret,
        }},
    })
}

/// The same, bound to the target `name`.
pub fn bound(env: &TestEnv, prefix: &str, name: &str) -> (Value, PathBuf) {
    let (mut request, target) = (request(env, prefix), targets(&env.machine).join(name));
    request["target"] = target.to_str().unwrap().into();
    (request, target)
}

/// Asks for a publication, and waits at most `wait` seconds.
pub fn put(agent: &AgentProcess, key: &str, request: &Value, wait: u64) -> ApiResponse {
    agent.ask("PUT", &format!("/v1/publications/{key}?wait={wait}"), &request.to_string())
}

/// Publishes, and answers with the status.
pub fn publish(agent: &AgentProcess, key: &str, request: &Value) -> Value {
    let answer = put(agent, key, request, 50);
    assert_eq!(answer.code, 200, "{}\n{}", answer.body, agent.log());
    answer.json()
}

/// Ends a publication.
pub fn unpublish(agent: &AgentProcess, key: &str) {
    let answer = agent.ask("DELETE", &format!("/v1/publications/{key}"), "");
    assert_eq!(answer.code, 200, "{}\n{}", answer.body, agent.log());
}

/// The bases that are mounted.
pub fn bases(machine: &Machine) -> Vec<PathBuf> {
    let directory = machine.cache().join("bases");
    mount_points().into_iter().filter(|point| point.starts_with(&directory)).collect()
}

/// The records of what is published.
pub fn records(machine: &Machine) -> Vec<PathBuf> {
    entries(&machine.cache().join("state/publications"))
}

/// What a directory has.
pub fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Asserts that nothing is left of any publication.
pub fn assert_nothing_left(env: &TestEnv) {
    let machine = &env.machine;
    assert_eq!(bases(machine), Vec::<PathBuf>::new(), "bases");
    assert_eq!(records(machine), Vec::<PathBuf>::new(), "records");
    assert_eq!(entries(&targets(machine)), Vec::<PathBuf>::new(), "targets");
    assert_eq!(entries(&machine.cache().join("bases")), Vec::<PathBuf>::new(), "directories of bases");
}
