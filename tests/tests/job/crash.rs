//! Agents that are killed while jobs are staged and run.

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::bdnfs::{Machine, eventually};
use bdnfs_tests::proxy::Weather;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::tree::{Dice, content};
use bdnfs_tests::world::World;
use serde_json::Value;

use super::kit::{MIB, job, mounts_of, sha256, spec, text, toml};

/// The files of a source, each of another size, so that a blob tells whose it is.
const FILES: [(&str, usize); 4] =
    [("a", 5 * MIB + 1), ("b", 7 * MIB + 2), ("c", 3 * MIB + 3), ("config.json", 700)];

/// The sizes of the blobs that are whole in a machine's cache.
fn whole(machine: &Machine) -> BTreeSet<u64> {
    let shards = fs::read_dir(machine.cache().join("tenants/default/blobs")).into_iter().flatten().flatten();
    let blobs = shards.flat_map(|shard| fs::read_dir(shard.path()).into_iter().flatten().flatten());
    let is_whole = |name: &str| !name.ends_with(".part") && !name.ends_with(".map");
    let whole = blobs.filter(|blob| is_whole(&blob.file_name().to_string_lossy()));
    whole.filter_map(|blob| blob.metadata().ok()).map(|meta| meta.len()).collect()
}

/// Kills the agent of a job at a moment of `dice`, whatever that does then; the next agent brings it to its end.
fn round(dice: &mut Dice) {
    let world = World::new();
    for (name, len) in FILES {
        world.put(&format!("model/{name}"), len);
    }
    let machine = &world.machine;
    let keys = Keys::sample();
    let secret = format!(
        r#"{{"aws_access_key_id": "{}", "aws_secret_access_key": "{}", "aws_region": "us-east-1"}}"#,
        keys.access, keys.secret
    );
    let secrets = machine.directory("secrets");
    fs::write(secrets.join("s3"), secret).unwrap();
    let config = format!("secrets = [\"{}\"]", text(&secrets));
    let agent = machine.agent(&config);
    world.proxy.set(Weather { rate: Some(24 * MIB as u64), ..Weather::default() });
    let weights =
        "[[weights]]\nsource = \"s3://bucket/model\"\nmount_location = \"/m\"\nauth_secret_name = \"s3\"\n";
    let commands = ["sha256sum /m/*", "sleep 0.3; sha256sum /m/*"];
    let file = spec(machine, "job.toml", &(toml(&[], &commands) + weights));
    let submitted = ["submit", "--no-mirror", "--secrets", text(&secrets), text(&file)];
    let id = job(machine, &submitted).succeeds();
    let id = id.trim().strip_prefix("job ").unwrap().to_owned();
    sleep(Duration::from_millis(dice.below(1500)));
    let had = whole(machine);
    let gets = |name: &str| world.fetched(&format!("model/{name}")).requests;
    let before: Vec<_> = FILES.iter().map(|(name, _)| gets(name)).collect();
    let state = agent.get(&format!("/v1/jobs/{id}")).json()["state"].clone();
    agent.crash();
    let agent = machine.agent(&config);
    let mut job = Value::Null;
    eventually("the job ends", || {
        job = agent.get(&format!("/v1/jobs/{id}?seen=1000")).json();
        !job["ended"].is_null()
    });
    assert_eq!(job["state"], "TRAINING_JOB_COMPLETED", "killed in {state}: {job:#}\n{}", agent.log());
    let printed = agent.get(&format!("/v1/jobs/{id}/log")).body;
    for (name, len) in FILES {
        let line = format!("{}  /m/{name}\n", sha256(&content(name, len)));
        assert_eq!(printed.matches(&line).count(), 2, "killed in {state}: {printed}");
    }
    for ((name, len), before) in FILES.into_iter().zip(before) {
        if had.contains(&(len as u64)) {
            assert_eq!(gets(name), before, "{name} was whole, and was fetched again");
        }
    }
    assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    agent.end();
}

#[test]
fn jobs_come_through_the_death_of_their_agent() {
    let mut dice = Dice(1);
    for _ in 0..3 {
        round(&mut dice);
    }
}

#[test]
#[ignore = "takes minutes; for a change of what an agent keeps: cargo nextest run --test job --run-ignored all hundred"]
fn jobs_come_through_a_hundred_deaths_of_their_agents() {
    let mut dice = Dice(100);
    for number in 0..100 {
        eprintln!("round {number}");
        round(&mut dice);
    }
}

#[test]
fn a_job_ends_while_there_is_no_agent_and_the_next_one_knows_how() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let go = machine.directory("flags").join("go");
    let wait = |code: u32| {
        format!("echo begun; while [ ! -e {} ]; do sleep 0.02; done; echo done; exit {code}", text(&go))
    };
    let submit = |name: &str, code| {
        let file = spec(&machine, name, &toml(&[], &[&wait(code)]));
        let told = job(&machine, &["submit", text(&file)]).succeeds();
        told.trim().strip_prefix("job ").unwrap().to_owned()
    };
    let (good, bad, killed) = (submit("good.toml", 0), submit("bad.toml", 7), submit("killed.toml", 0));
    for id in [&good, &bad, &killed] {
        machine.run(&["wait", id, "--timeout", "60s"]).succeeds();
    }
    let of_killed = agent.get(&format!("/v1/jobs/{killed}")).json()["events"].to_string();
    agent.crash();
    assert_eq!(machine.supervisors().len(), 3, "they go on");
    let victim = machine
        .supervisors()
        .into_iter()
        .find(|pid| of_killed.contains(&format!("process {}\"", pid.as_raw_nonzero())));
    rustix::process::kill_process(victim.expect("the supervisor"), rustix::process::Signal::KILL).unwrap();
    fs::write(&go, "").unwrap();
    eventually("they have ended", || machine.supervisors().is_empty());
    let agent = machine.agent("");
    job(&machine, &["wait", &good]).succeeds();
    job(&machine, &["wait", &bad]).fails(&["exited with 7"]);
    job(&machine, &["wait", &killed]).fails(&["supervisor was killed"]);
    assert_eq!(job(&machine, &["logs", &good]).succeeds(), "begun\ndone\n");
    drop(agent);
}
