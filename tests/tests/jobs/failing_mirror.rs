//! Checkpoints while the service of their mirror refuses connections, is overloaded, or refuses the agent's key.

use std::fs;

use axum::http::StatusCode;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use serde_json::Value;

use super::kit::{submitted, text};
use super::saving::{checkpoints, saved, saving_spec};

/// Has a job write a checkpoint while `begin` keeps it from being saved, and asserts that it is saved after `end`. Returns the job as it
/// ended.
fn assert_saved_after(env: &TestEnv, begin: impl FnOnce(&TestEnv), end: impl FnOnce(&TestEnv)) -> Value {
    let agent = env.machine.agent("[mirror]\nurl = \"s3://mirror\"\n");
    let flag = env.machine.directory("flag").join("go");
    let command = format!(
        "while [ ! -e {} ]; do sleep 0.1; done; cd $BT_CHECKPOINT_DIR && mkdir a && head -c 20000000 /dev/urandom > a/model && \
         touch a/.metadata; sleep 5",
        text(&flag)
    );
    let number = submitted(&env.machine, &["--id", "s3", text(&saving_spec(&env.machine, "s3", &command))]);
    let status = || agent.get(&format!("/v1/jobs/{number}")).json();
    eventually("it runs", || status()["state"] == "TRAINING_JOB_RUNNING");
    begin(env);
    fs::write(&flag, "").unwrap();
    eventually("it can't be saved", || status()["saving"]["failures"].as_u64() > Some(0));
    end(env);
    eventually("the job ends", || !status()["ended"].is_null());
    let ended = status();
    assert_eq!(checkpoints(&ended), [saved("a", true, 1)], "{ended}");
    agent.stop();
    ended
}

/// An environment with an S3 server that has a mirror, whose keys only the agent has.
fn env() -> TestEnv {
    let env = TestEnv::new();
    env.put("any", 10);
    env.mirror();
    env
}

#[test]
fn checkpoint_is_saved_when_its_mirror_accepts_connections_again() {
    let env = env();
    let refuse = |env: &TestEnv| env.proxy.set(NetworkFault { refuse: true, ..NetworkFault::default() });
    assert_saved_after(&env, refuse, |env| env.proxy.set(NetworkFault::default()));
    let secret = Keys::sample().secret;
    for file in ["saver.json", "seals/a.json"] {
        let volume = env.machine.volumes().join("default/jobs/s3").join(file);
        assert!(!fs::read_to_string(volume).unwrap_or_default().contains(&secret));
    }
}

#[test]
fn checkpoint_is_saved_when_its_mirror_is_no_longer_overloaded() {
    let overload =
        |env: &TestEnv| env.s3.faults.set(ServerFault::Status(StatusCode::SERVICE_UNAVAILABLE, None));
    assert_saved_after(&env(), overload, |env| env.s3.faults.clear());
}

#[test]
fn checkpoint_is_saved_when_its_mirror_accepts_the_key_again() {
    let refuse = |env: &TestEnv| env.s3.allowed_keys().revoke_all();
    let ended = assert_saved_after(&env(), refuse, |env| env.s3.allowed_keys().allow(Keys::sample(), None));
    assert_eq!(ended["state"], "TRAINING_JOB_COMPLETED", "{ended}");
}
