//! Jobs whose records can't be read when their agent is started again.

use std::fs;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::TestEnv;
use serde_json::Value;

use super::kit::{events, job, mounts_of, spec, submitted, text, toml};

/// A process of the job whose commands wrote its id to `file`, as long as it lives.
fn lives(file: &Path) -> bool {
    Path::new("/proc").join(fs::read_to_string(file).unwrap().trim()).exists()
}

#[test]
fn job_with_unreadable_record_keeps_its_mounts_and_can_be_stopped() {
    let env = TestEnv::new();
    env.put("file", MIB);
    let machine = &env.machine;
    let flags = machine.directory("flags");
    let (pid, go) = (flags.join("pid"), flags.join("go"));
    let command = format!(
        "echo $$ > {}; while [ ! -e {} ]; do sleep 0.05; done; wc -c < /m/file",
        text(&pid),
        text(&go)
    );
    let file = spec(machine, "job.toml", &toml(&[("s3://bucket", "/m")], &[&command]));
    let other = spec(machine, "other.toml", &toml(&[], &["true"]));
    let mut agent = machine.agent("");
    for damage in ["garbage", "empty", "missing"] {
        for path in [&pid, &go] {
            let _ = fs::remove_file(path);
        }
        let id = submitted(machine, &[text(&file), "--no-mirror", "--id", "run"]);
        eventually("its commands run", || pid.exists() && fs::read_to_string(&pid).unwrap().ends_with('\n'));
        eventually("it is seen", || {
            agent.get(&format!("/v1/jobs/{id}")).json()["state"] == "TRAINING_JOB_RUNNING"
        });
        let mounts = mounts_of(machine).len();
        agent.crash();
        let record = machine.cache().join(format!("state/jobs/{id}.json"));
        match damage {
            "garbage" => fs::write(&record, [0xff, 0xfe, 7]).unwrap(),
            "empty" => fs::write(&record, "").unwrap(),
            _ => fs::remove_file(&record).unwrap(),
        }
        agent = machine.agent("");
        let show = || agent.get(&format!("/v1/jobs/{id}")).json();
        let mut seen = show();
        eventually("it says what is wrong", || {
            seen = show();
            let words = format!("the record {} of the job cannot be read", text(&record));
            events(&seen).last().is_some_and(|event| event.contains(&words))
        });
        assert_eq!(
            (&seen["state"], &seen["training"]["id"]),
            (&"TRAINING_JOB_RUNNING".into(), &"run".into())
        );
        assert_eq!(mounts_of(machine).len(), mounts, "{damage}");
        let next = submitted(machine, &[text(&other), "--no-mirror"]);
        assert!(next.parse::<u64>().unwrap() > id.parse().unwrap(), "{next} after {id}");
        let ended = |state: &str| {
            let mut seen = Value::Null;
            eventually("it ends", || {
                seen = show();
                !seen["ended"].is_null()
            });
            assert_eq!(seen["state"], state, "{damage}: {seen:#}");
            seen
        };
        match damage {
            "garbage" => {
                job(machine, &["stop", &id, "--now"]);
                ended("TRAINING_JOB_STOPPED");
            }
            "empty" => {
                fs::write(&go, "").unwrap();
                let seen = ended("TRAINING_JOB_FAILED");
                assert!(seen["why"]["message"].as_str().unwrap().contains(text(&record)), "{seen:#}");
                assert_eq!(agent.get(&format!("/v1/jobs/{id}/log")).body, "1048576\n");
                // It is not run, and does not end, again.
                agent.crash();
                agent = machine.agent("");
                let again = agent.get(&format!("/v1/jobs/{id}")).json();
                for key in ["state", "why", "events", "exit"] {
                    assert_eq!(again[key], seen[key], "{key}");
                }
            }
            _ => {
                agent.stop();
                agent = machine.agent("");
            }
        }
        assert!(!lives(&pid), "{damage}: its commands run on");
        assert!(mounts_of(machine).is_empty(), "{damage}: {:?}", mounts_of(machine));
        let scratch = machine.volumes();
        assert!(!scratch.join("default/jobs/run/scratch").exists(), "{damage}");
    }
    agent.end();
}
