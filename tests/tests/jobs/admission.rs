//! Admission: many jobs on a cache that holds few of their sources.

use std::fs;

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tmpfs::Tmpfs;
use bdnfs_tests::tree::content;
use serde_json::{Value, json};

use super::kit::{events, job, mounts_of, sha256, spec, submitted, text, toml};
use super::saving::SavingMachine;

const SOURCE_BYTES: usize = 4 * MIB;

/// Submits by the socket: a command for each would take its time.
fn submit(env: &TestEnv, agent: &AgentProcess, sources: &[&str], command: &str) -> String {
    let keys = bdnfs_tests::s3::Keys::sample();
    let access = json!({"s3": {
        "endpoint": env.proxy.url(), "region": "us-east-1", "anonymous": false,
        "access_key_id": keys.access, "secret_access_key": keys.secret,
    }});
    let weights = sources.iter().map(|source| {
        json!({"source": format!("s3://bucket/{source}"), "mountpoint": format!("/m/{source}"), "access": access})
    });
    let weights: Vec<_> = weights.collect();
    let request = json!({"weights": weights, "start_commands": [command], "workdir": "/", "direct": true});
    let answer = agent.ask("POST", "/v1/jobs", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    answer.json()["id"].to_string()
}

fn ended(agent: &AgentProcess, id: &str) -> Value {
    let mut job = Value::Null;
    eventually("a job ends", || {
        job = agent.get(&format!("/v1/jobs/{id}?seen=1000")).json();
        !job["ended"].is_null()
    });
    job
}

#[test]
fn jobs_beyond_cache_size_run_one_after_another() {
    let env = TestEnv::new();
    for number in 0..5 {
        env.put(&format!("s{number}/weights{number}"), SOURCE_BYTES);
    }
    let agent = env.machine.agent("cache_size = \"13MiB\"");
    let jobs: Vec<_> = (0..20)
        .map(|number| {
            let source = format!("s{}", number % 5);
            let id = submit(&env, &agent, &[&source], &format!("sha256sum /m/{source}/*; sleep 0.2"));
            (number % 5, id)
        })
        .collect();
    // What is about to be stored counts before it has its room: two blocks a core.
    let claims = 2 * std::thread::available_parallelism().unwrap().get() * MIB;
    let mut waited = 0;
    for (number, id) in &jobs {
        let job = ended(&agent, id);
        assert_eq!(job["state"], "TRAINING_JOB_COMPLETED", "{job}");
        let printed = agent.get(&format!("/v1/jobs/{id}/log")).body;
        let sum = sha256(&content(&format!("weights{number}"), SOURCE_BYTES));
        assert_eq!(printed, format!("{sum}  /m/s{number}/weights{number}\n"));
        waited += usize::from(events(&job).iter().any(|event| event.starts_with("waits for room")));
        let used = agent.status()["daemon"]["usage"]["used"].as_u64().unwrap_or(0);
        assert!(used <= (13 * MIB + claims) as u64, "{used}");
    }
    assert!(waited > 0, "none had to wait");
    assert!(agent.status()["daemon"]["usage"]["evicted"].as_u64().unwrap() > 0);
    assert!(mounts_of(&env.machine).is_empty(), "{:?}", mounts_of(&env.machine));
}

#[test]
fn job_that_never_fits_is_refused_with_lease_holders() {
    let env = TestEnv::new();
    for number in 0..4 {
        env.put(&format!("s{number}/weights"), SOURCE_BYTES);
    }
    let agent = env.machine.agent("cache_size = \"13MiB\"");
    let why = |id: &str| {
        let job = ended(&agent, id);
        assert_eq!(job["state"], "TRAINING_JOB_FAILED", "{job}");
        job["why"]["message"].as_str().unwrap().to_owned()
    };
    // Larger than the cache.
    let id = submit(&env, &agent, &["s0", "s1", "s2", "s3"], "true");
    let output = why(&id);
    assert!(output.contains("needs 16777216 bytes") && output.contains("room for 13631488"), "{output}");
    assert_eq!(env.fetched("weights").bytes, 0, "refused before anything was fetched");
    // Held by a mount, which does not end by itself.
    env.machine.mount_with("s3://bucket/s0", "mnt", &["--wait"]);
    let id = submit(&env, &agent, &["s1", "s2", "s3"], "true");
    let output = why(&id);
    assert!(output.contains("held by s3://bucket/s0 ") && output.contains("(4194304 bytes)"), "{output}");
    assert_eq!(env.fetched("s1/weights").bytes, 0);
    // What is in the way is named to people, too.
    let file = spec(&env.machine, "large.toml", &toml(&[("s3://bucket", "/m/all")], &["true"]));
    let ran = job(&env.machine, &["run", "--no-mirror", text(&file)]);
    assert!(ran.code == Some(125) && ran.err.contains("room for"), "{}", ran.err);
    assert!(fs::read_dir(env.machine.cache().join("jobs")).unwrap().count() > 0);
}

/// A disk of its own, so that what others write or remove meanwhile makes no volume fit or not, and a machine with an agent whose
/// cache and volumes lie there.
fn on_own_disk() -> (Tmpfs, SavingMachine) {
    let disk = Tmpfs::new("12g");
    let machine = Machine::new().with_cache(&disk.path().join("cache"));
    let machine = machine.env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
    let agent = super::saving::start(&machine);
    (disk, SavingMachine { machine, agent })
}

/// Submits a job with a volume of so many GiB.
fn submit_sized(machine: &Machine, name: &str, gib: u64, command: &str) -> String {
    let lines = format!("[runtime.checkpointing_config]\nenabled = true\nvolume_size_gib = {gib}\n");
    let file = spec(machine, &format!("{name}.toml"), &(toml(&[], &[command]) + &lines));
    submitted(machine, &["--id", name, text(&file)])
}

/// The GiB that volumes may have.
fn free_gib(agent: &AgentProcess) -> u64 {
    let usage = &agent.status()["daemon"]["usage"];
    let bytes = |key: &str| usage[key].as_u64().unwrap();
    (bytes("free") - bytes("reserve")) >> 30
}

#[test]
fn job_whose_volume_does_not_fit_waits_for_others_or_is_refused() {
    let (_disk, saving) = on_own_disk();
    let machine = &saving.machine;
    let submit = |name: &str, gib: u64, command: &str| submit_sized(machine, name, gib, command);
    let refused = saving.ended(&submit("huge", 1 << 20, "true"));
    let why = refused["why"]["message"].as_str().unwrap();
    assert!(
        why.starts_with("volume_size_gib in checkpointing_config: needs 1125899906842624 bytes"),
        "{why}"
    );
    assert!(refused["started"].is_null(), "{refused}");
    let most = free_gib(&saving.agent);
    let flag = machine.directory("flag");
    let first =
        submit("first", most * 2 / 3, &format!("while [ ! -e {}/go ]; do sleep 0.1; done", text(&flag)));
    eventually("the first runs", || saving.status(&first)["state"] == "TRAINING_JOB_RUNNING");
    let second = submit("second", most / 2, "true");
    saving
        .await_event(&second, "waits for room in the cache: volume_size_gib in checkpointing_config: needs");
    assert_eq!(saving.status(&second)["state"], "TRAINING_JOB_DEPLOYING");
    fs::write(flag.join("go"), "").unwrap();
    for number in [first, second] {
        let status = saving.ended(&number);
        assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    }
}

#[test]
fn volume_of_an_admitted_job_has_its_space_before_the_job_goes_on_after_a_restart() {
    let (_disk, SavingMachine { machine, agent }) = on_own_disk();
    let most = free_gib(&agent);
    let go = machine.directory("flag").join("go");
    let command = format!("while [ ! -e {} ]; do sleep 0.1; done", text(&go));
    let first = submit_sized(&machine, "first", most * 2 / 3, &command);
    let status = || agent.get(&format!("/v1/jobs/{first}")).json();
    eventually("the first runs", || status()["state"] == "TRAINING_JOB_RUNNING");
    agent.crash();
    // Its commands are about to start, as far as the next agent can see.
    let started = machine.cache().join(format!("jobs/{first}/started.json"));
    let hidden = started.with_file_name("hidden");
    fs::rename(&started, &hidden).unwrap();
    let agent = super::saving::start(&machine);
    let saving = SavingMachine { machine, agent };
    let second = submit_sized(&saving.machine, "second", most / 2, "true");
    saving
        .await_event(&second, "waits for room in the cache: volume_size_gib in checkpointing_config: needs");
    fs::rename(&hidden, &started).unwrap();
    fs::write(go, "").unwrap();
    for number in [first, second] {
        let status = saving.ended(&number);
        assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    }
}
