//! Jobs whose mirror is damaged.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use bdnfs_tests::MIB;
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::{flip_byte, largest_file};
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::content;
use rustix::io::Errno;
use serde_json::Value;

use crate::kit::{events, job, spec, submitted, text, toml};

/// A mirror of a repository of the Hub with one byte flipped, and the specification of a job that reads that.
struct DamagedMirror {
    machine: Machine,
    hub: HubServer,
    spec: PathBuf,
    _env: TestEnv,
}

impl DamagedMirror {
    fn new() -> Self {
        let (env, hub) = (TestEnv::new(), HubServer::start());
        hub.publish("models/o/r", "main", &[("weights", &content("weights", 3 * MIB + 9))]);
        let machine = env.second_machine().env("HF_ENDPOINT", hub.url());
        let mirror = env.bucket().with_file_name("mirror");
        fs::create_dir(&mirror).unwrap();
        machine.run(&["mirror", "add", "hf://o/r@main", "--mirror", "s3://mirror"]).succeeds();
        let blob = largest_file(&mirror);
        let mut bytes = fs::read(&blob).unwrap();
        bytes[MIB + 7] ^= 1;
        fs::write(&blob, bytes).unwrap();
        let text = toml(&[("hf://o/r@main", "/m")], &["cmp /m/weights /m/weights"]);
        let spec = spec(&machine, "job.toml", &text);
        Self { machine, hub, spec, _env: env }
    }
}

#[test]
fn job_with_damaged_mirror_and_origin_away_fails_naming_both() {
    let DamagedMirror { machine, hub, spec, _env } = DamagedMirror::new();
    drop(hub);
    let ran = job(&machine, &["run", text(&spec), "--mirror", "s3://mirror"]);
    assert_ne!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    for part in ["block 1 does not hash to its check value", "s3://mirror/"] {
        assert!(ran.err.contains(part), "{}{}", ran.out, ran.err);
    }
    let point = machine.directory("mnt");
    machine.try_mount("hf://o/r@main", &point, &["--mirror", "s3://mirror"]).succeeds();
    let error = fs::read(point.join("weights")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::BADMSG.raw_os_error()), "{error}");
}

#[test]
fn job_with_damaged_mirror_and_healthy_origin_runs_and_repairs_it() {
    let DamagedMirror { machine, hub: _hub, spec, _env } = DamagedMirror::new();
    let agent = machine.agent("");
    let id = submitted(&machine, &[text(&spec), "--mirror", "s3://mirror"]);
    job(&machine, &["wait", &id, "--timeout", "60s"]).succeeds();
    let shown =
        || -> Value { serde_json::from_str(&job(&machine, &["show", &id, "--json"]).succeeds()).unwrap() };
    let is_told = |begin: &str| events(&shown()).iter().any(|event| event.starts_with(begin));
    assert!(is_told("the mirror is damaged"), "{}", shown());
    // Until then a verification finds the damage.
    eventually("the mirror is repaired", || is_told("repaired"));
    machine.run(&["mirror", "verify", "--deep", "--mirror", "s3://mirror"]).succeeds();
    drop(agent);
}

#[test]
fn job_with_damaged_cache_reports_it_while_its_commands_run() {
    let env = TestEnv::new();
    env.put("weights", 17 * MIB);
    let agent = env.machine.agent("");
    let flag = env.machine.directory("flag").join("go");
    let command = format!("while [ ! -e {} ]; do sleep 0.05; done", text(&flag));
    let job_spec = spec(&env.machine, "job.toml", &toml(&[("s3://bucket", "/m")], &[command.as_str()]));
    let submit = || submitted(&env.machine, &[text(&job_spec), "--no-mirror"]);
    fs::write(&flag, "").unwrap();
    job(&env.machine, &["wait", &submit(), "--timeout", "60s"]).succeeds();
    fs::remove_file(&flag).unwrap();
    let blob = largest_file(&env.machine.cache().join("tenants"));
    flip_byte(&blob, MIB as u64);
    fs::File::open(&blob).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let id = submit();
    let is_told = || {
        let shown = job(&env.machine, &["show", &id, "--json"]).succeeds();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown["state"] == "TRAINING_JOB_RUNNING"
            && events(&shown).iter().any(|event| event.starts_with("damaged in the cache"))
    };
    eventually("it is told", is_told);
    agent.crash();
    let _agent = env.machine.agent("");
    assert!(is_told(), "the next agent tells it, too");
    fs::write(&flag, "").unwrap();
    job(&env.machine, &["wait", &id, "--timeout", "60s"]).succeeds();
}

#[test]
fn job_with_damaged_cache_reports_it_before_it_completes() {
    // A native mount reads a copy of small files.
    for (via, files, size) in [("fuse", 1, 17 * MIB), ("native", 9, MIB / 2)] {
        let env = TestEnv::new();
        (0..files).for_each(|number| drop(env.put(&format!("weights{number}"), size)));
        let agent = env.machine.agent(&format!("via = \"{via}\"\n"));
        let job_spec = toml(&[("s3://bucket", "/m")], &["cat /m/* > /dev/null"]);
        let job_spec = spec(&env.machine, "job.toml", &job_spec);
        let run = |expected: usize| {
            let id = submitted(&env.machine, &[text(&job_spec), "--no-mirror"]);
            job(&env.machine, &["wait", &id, "--timeout", "60s"]).succeeds();
            let output: Value =
                serde_json::from_str(&job(&env.machine, &["show", &id, "--json"]).succeeds()).unwrap();
            let damaged =
                events(&output).iter().filter(|event| event.starts_with("damaged in the cache")).count();
            assert_eq!(damaged, expected, "{via}: {output}");
        };
        run(0);
        let blob = largest_file(&env.machine.cache().join("tenants"));
        assert!(blob.metadata().unwrap().len() >= (files * size) as u64);
        flip_byte(&blob, MIB as u64);
        run(0);
        // As if it had been verified long ago.
        fs::File::open(&blob).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        run(1);
        run(0);
        drop(agent);
    }
}
