//! Agents that are killed while jobs are staged and run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{Rng, content};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::kit::{events, job, mounts_of, secrets, sha256, spec, submitted, text, toml};

/// The files of a source, each of another size, so that a blob tells whose it is.
const FILES: [(&str, usize); 4] =
    [("a", 5 * MIB + 1), ("b", 7 * MIB + 2), ("c", 3 * MIB + 3), ("config.json", 700)];

/// The sizes of the blobs that are whole in a machine's cache.
fn whole_blobs(machine: &Machine) -> BTreeSet<u64> {
    let shards = fs::read_dir(machine.cache().join("tenants/default/blobs")).into_iter().flatten().flatten();
    let blobs = shards.flat_map(|shard| fs::read_dir(shard.path()).into_iter().flatten().flatten());
    let is_whole = |name: &str| !name.ends_with(".part") && !name.ends_with(".map");
    let whole = blobs.filter(|blob| is_whole(&blob.file_name().to_string_lossy()));
    whole.filter_map(|blob| blob.metadata().ok()).map(|meta| meta.len()).collect()
}

/// Kills the agent of a job at a moment of `rng`, whatever that does then; the next agent brings it to its end.
fn kill_once(rng: &mut Rng) {
    let env = TestEnv::new();
    for (name, len) in FILES {
        env.put(&format!("model/{name}"), len);
    }
    let machine = &env.machine;
    let secrets = secrets(machine);
    let config = format!("secrets = [\"{}\"]", text(&secrets));
    let agent = machine.agent(&config);
    env.proxy.set(NetworkFault { rate: Some(24 * MIB as u64), ..NetworkFault::default() });
    let weights =
        "[[weights]]\nsource = \"s3://bucket/model\"\nmount_location = \"/m\"\nauth_secret_name = \"s3\"\n";
    let commands = ["sha256sum /m/*", "sleep 0.3; sha256sum /m/*"];
    let file = spec(machine, "job.toml", &(toml(&[], &commands) + weights));
    let id = submitted(machine, &["--no-mirror", "--secrets", text(&secrets), text(&file)]);
    sleep(Duration::from_millis(rng.below(1500)));
    let had = whole_blobs(machine);
    let gets = |name: &str| env.fetched(&format!("model/{name}")).requests;
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
fn job_running_when_agent_dies_completes() {
    let mut rng = Rng(1);
    for _ in 0..3 {
        kill_once(&mut rng);
    }
}

#[test]
#[ignore = "takes minutes; for a change of what an agent keeps: cargo nextest run --test jobs --run-ignored all a_hundred_agent_kills"]
fn jobs_under_a_hundred_agent_kills_complete() {
    let mut rng = Rng(100);
    for number in 0..100 {
        eprintln!("round {number}");
        kill_once(&mut rng);
    }
}

/// Submits a job that reads the bucket of `env`, whose keys lie in `secrets`, and runs `command`.
fn submit_of(env: &TestEnv, agent: &AgentProcess, secrets: &Path, command: &str) -> String {
    let access = json!({
        "s3": {"endpoint": env.proxy.url(), "region": "us-east-1"},
        "credentials": secrets.join("s3"),
    });
    let request = json!({
        "weights": [{"source": "s3://bucket", "mountpoint": "/m", "access": access}],
        "start_commands": [command], "workdir": "/", "direct": true,
    });
    let answer = agent.ask("POST", "/v1/jobs", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    answer.json()["id"].to_string()
}

/// Waits until something has happened to a job whose text has these `words`.
fn wait_for_event(agent: &AgentProcess, id: &str, words: &str) {
    eventually(words, || {
        let job = agent.get(&format!("/v1/jobs/{id}")).json();
        assert!(job["ended"].is_null(), "{job:#}");
        events(&job).iter().any(|event| event.contains(words))
    });
}

#[test]
fn supervisor_killed_before_the_commands_run_fails_the_job_and_how_it_ended_is_told() {
    let env = TestEnv::new();
    env.put("weights", MIB);
    let machine = &env.machine;
    let (secrets, agent) = (secrets(machine), machine.agent(""));
    let frozen = NetworkFault { frozen: true, ..NetworkFault::default() };
    env.proxy.set(frozen);
    let access = json!({
        "s3": {"endpoint": env.proxy.url(), "region": "us-east-1"},
        "credentials": secrets.join("s3"),
    });
    let request = json!({
        "weights": [{"source": "s3://bucket", "mountpoint": "/m", "access": access}],
        "start_commands": ["true"], "workdir": "/", "direct": true, "attached": true,
    });
    let answer = agent.ask("POST", "/v1/jobs", &request.to_string());
    assert_eq!(answer.code, 200, "{}", answer.body);
    let id = answer.json()["id"].to_string();
    eventually("its supervisor waits for its order", || machine.supervisors().len() == 1);
    let supervisor = machine.supervisors()[0];
    kill_process(supervisor, Signal::STOP).unwrap();
    env.proxy.set(NetworkFault::default());
    wait_for_event(&agent, &id, "all local and verified");
    kill_process(supervisor, Signal::KILL).unwrap();
    let job = || agent.get(&format!("/v1/jobs/{id}")).json();
    eventually("it has failed", || !job()["ended"].is_null());
    let why = job()["why"]["message"].as_str().unwrap_or_default().to_owned();
    let end = "its supervisor ended before the commands ran (signal: 9 (SIGKILL))";
    assert!(why.contains(end), "{why}\n{}", agent.log());
    assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    agent.end();
}

#[test]
fn job_admitted_before_crash_keeps_its_admission() {
    let (stays, early, late) = (TestEnv::new(), TestEnv::new(), TestEnv::new());
    stays.put("weights", 4 * MIB);
    early.put("early", 6 * MIB);
    late.put("late", 4 * MIB);
    let machine = &stays.machine;
    let (secrets, config) = (secrets(machine), "cache_size = \"13MiB\"");
    let agent = machine.agent(config);
    let go = machine.directory("flags").join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done", text(&go));
    let staying = submit_of(&stays, &agent, &secrets, &wait);
    wait_for_event(&agent, &staying, "its commands run");
    // The earlier job hears nothing of its source until the later one has its room, and is being staged.
    let (frozen, fair) = (NetworkFault { frozen: true, ..NetworkFault::default() }, NetworkFault::default());
    early.proxy.set(frozen);
    let first = submit_of(&early, &agent, &secrets, "sha256sum /m/early");
    late.proxy.set(NetworkFault { rate: Some(256 << 10), ..fair });
    let second = submit_of(&late, &agent, &secrets, "sha256sum /m/late");
    eventually("the later one is staged", || {
        let mounts = agent.status()["mounts"].as_array().unwrap().clone();
        mounts.iter().any(|mount| mount["stage"]["state"] == "running")
    });
    late.proxy.set(frozen);
    early.proxy.set(fair);
    wait_for_event(&agent, &first, "waits for room in the cache");
    agent.crash();
    late.proxy.set(fair);
    let agent = machine.agent(config);
    for (id, name, len) in [(&second, "late", 4 * MIB), (&first, "early", 6 * MIB)] {
        let mut job = Value::Null;
        eventually("both jobs end", || {
            job = agent.get(&format!("/v1/jobs/{id}?seen=1000")).json();
            !job["ended"].is_null()
        });
        assert_eq!(job["state"], "TRAINING_JOB_COMPLETED", "{job:#}\n{}", agent.log());
        let printed = agent.get(&format!("/v1/jobs/{id}/log")).body;
        assert_eq!(printed, format!("{}  /m/{name}\n", sha256(&content(name, len))));
    }
    fs::write(&go, "").unwrap();
    job(machine, &["wait", &staying, "--timeout", "60s"]).succeeds();
    assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    agent.end();
}

#[test]
fn job_mounts_after_its_end_are_removed() {
    let (env, other) = (TestEnv::new(), TestEnv::new());
    env.put("weights", 4 * MIB);
    other.put("weights", 10 * MIB);
    let machine = &env.machine;
    let (secrets, config) = (secrets(machine), "cache_size = \"13MiB\"");
    let agent = machine.agent(config);
    let go = machine.directory("flags").join("go");
    let id = submit_of(&env, &agent, &secrets, &format!("while [ ! -e {} ]; do sleep 0.02; done", text(&go)));
    wait_for_event(&agent, &id, "its commands run");
    let records =
        || fs::read_dir(machine.cache().join("state/mounts")).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = records().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    assert_eq!(kept.len(), 1);
    fs::write(&go, "").unwrap();
    job(machine, &["wait", &id, "--timeout", "60s"]).succeeds();
    agent.crash();
    // As if it had died when it had written down the end of the job, and not yet that its mount was gone.
    for (path, record) in &kept {
        fs::write(path, record).unwrap();
    }
    let agent = machine.agent(config);
    let status = agent.status();
    assert!(status["lost"].is_null() && status["mounts"] == json!([]), "{status:#}");
    assert_eq!(records().count(), 0);
    // Nor does it take any room.
    let id = submit_of(&other, &agent, &secrets, "sha256sum /m/weights");
    job(machine, &["wait", &id, "--timeout", "60s"]).succeeds();
    assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    agent.end();
}

/// How many sources there are, each of so many files of this size, for a cache that has room for three.
const SOURCES: usize = 5;
const SMALL_FILES: (usize, usize) = (64, 64 << 10);

/// What a job prints that reads all of source `number`.
fn sums(number: usize) -> String {
    let line = |file: String| format!("{}  /m/s{number}/{file}\n", sha256(&content(&file, SMALL_FILES.1)));
    (0..SMALL_FILES.0).map(|file| line(format!("{number}-{file:02}"))).collect()
}

/// Kills the agent again and again while it evicts for the sake of one job what it brought for another. Beside them one job
/// runs all the time, and reads all of its source in each round.
fn kill_while_evicting(rounds: usize, seed: u64) {
    let env = TestEnv::new();
    for (number, file) in (0..SOURCES).flat_map(|number| (0..SMALL_FILES.0).map(move |file| (number, file))) {
        env.put(&format!("s{number}/{number}-{file:02}"), SMALL_FILES.1);
    }
    let machine = &env.machine;
    let secrets = secrets(machine);
    let config = format!("cache_size = \"13MiB\"\nsecrets = [\"{}\"]", text(&secrets));
    let mut agent = machine.agent(&config);
    let submit = |number: usize, command: &str| {
        let weights = format!(
            "[[weights]]\nsource = \"s3://bucket/s{number}\"\nmount_location = \"/m/s{number}\"\nauth_secret_name = \"s3\"\n"
        );
        let file = spec(machine, "job.toml", &(toml(&[], &[command]) + &weights));
        submitted(machine, &["--no-mirror", "--secrets", text(&secrets), text(&file)])
    };
    let flags = machine.directory("flags");
    let (round, last) = (flags.join("round"), flags.join("last"));
    let stays = format!(
        "while [ ! -e {last} ]; do rm {round} && sha256sum /m/s0/*; sleep 0.05; done 2>/dev/null; sha256sum /m/s0/*",
        last = text(&last),
        round = text(&round)
    );
    let staying = submit(0, &stays);
    machine.run(&["wait", &staying, "--timeout", "60s"]).succeeds();
    let fetched = || env.fetched("").requests;
    let of_first = |file: usize| env.fetched(&format!("s0/0-{file:02}")).requests;
    let first = || (0..SMALL_FILES.0).map(of_first).sum::<u64>();
    let before = first();
    let mut rng = Rng(seed);
    for number in 0..rounds {
        fs::write(&round, "").unwrap();
        let asked = fetched();
        let jobs: Vec<_> = (1..SOURCES)
            .map(|source| (source, submit(source, &format!("sha256sum /m/s{source}/*"))))
            .collect();
        // Once it has begun to evict, or has nothing more to do.
        eventually("it evicts", || {
            let evicted = agent.status()["daemon"]["usage"]["evicted"].as_u64() > Some(0);
            let left =
                jobs.iter().any(|(_, id)| agent.get(&format!("/v1/jobs/{id}")).json()["ended"].is_null());
            evicted || !left
        });
        sleep(Duration::from_millis(rng.below(30)));
        agent.crash();
        agent = machine.agent(&config);
        for (source, id) in jobs {
            let mut job = Value::Null;
            eventually("a job ends", || {
                job = agent.get(&format!("/v1/jobs/{id}?seen=1000")).json();
                !job["ended"].is_null()
            });
            assert_eq!(job["state"], "TRAINING_JOB_COMPLETED", "round {number}: {job:#}\n{}", agent.log());
            assert_eq!(agent.get(&format!("/v1/jobs/{id}/log")).body, sums(source), "round {number}");
        }
        eventually("the job that stays has read all", || !round.exists());
        assert!(fetched() > asked, "nothing had been evicted in round {number}");
    }
    fs::write(&last, "").unwrap();
    job(machine, &["wait", &staying, "--timeout", "60s"]).succeeds();
    let printed = agent.get(&format!("/v1/jobs/{staying}/log")).body;
    assert_eq!(printed, sums(0).repeat(rounds + 1), "what it read each time");
    assert_eq!(first(), before, "what is leased was fetched again");
    agent.end();
}

#[test]
#[ignore = "takes minutes; for a change of what is evicted: cargo nextest run --test jobs --run-ignored all killed_while_evicting"]
fn agent_killed_while_evicting_keeps_what_is_leased() {
    kill_while_evicting(100, std::env::var("SEED").map_or(7, |seed| seed.parse().expect("a number")));
}

#[test]
fn job_ended_without_agent_is_known_to_the_next() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let go = machine.directory("flags").join("go");
    let wait = |code: u32| {
        format!("echo begun; while [ ! -e {} ]; do sleep 0.02; done; echo done; exit {code}", text(&go))
    };
    let submit = |name: &str, code| {
        let file = spec(&machine, name, &toml(&[], &[&wait(code)]));
        submitted(&machine, &[text(&file)])
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
    kill_process(victim.expect("the supervisor"), Signal::KILL).unwrap();
    fs::write(&go, "").unwrap();
    eventually("they have ended", || machine.supervisors().is_empty());
    let agent = machine.agent("");
    job(&machine, &["wait", &good]).succeeds();
    job(&machine, &["wait", &bad]).fails(&["exited with 7"]);
    job(&machine, &["wait", &killed]).fails(&["supervisor was killed"]);
    assert_eq!(job(&machine, &["logs", &good]).succeeds(), "begun\ndone\n");
    drop(agent);
}

#[test]
fn job_run_killed_without_agent_leaves_no_process_and_no_mount() {
    let env = TestEnv::new();
    env.put("weights", MIB);
    let machine = &env.machine;
    let flags = machine.directory("flags");
    // One command that ignores to be asked, and one process that has left its group.
    let command = format!(
        "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo $$ > {0}/escaped; exec sleep 1000' &); \
         echo $$ > {0}/pid.new; mv {0}/pid.new {0}/pid; while :; do sleep 0.05; done",
        text(&flags)
    );
    let file = spec(machine, "job.toml", &toml(&[("s3://bucket", "/m")], &[&command]));
    let run =
        ["job", "run", "--no-mirror", "--grace", "1000", "--cache-dir", text(machine.cache()), text(&file)];
    for asked_first in [false, true] {
        for name in ["pid", "escaped"] {
            let _ = fs::remove_file(flags.join(name));
        }
        let mut command = machine.command(&run);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("bdnfs");
        let pid_in = |name: &str| fs::read_to_string(flags.join(name)).unwrap_or_default().trim().to_owned();
        eventually("its commands run", || !pid_in("pid").is_empty() && !pid_in("escaped").is_empty());
        assert_eq!(mounts_of(machine).len(), 1);
        if asked_first {
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for name in ["pid", "escaped"] {
            eventually("its processes are gone", || !Path::new("/proc").join(pid_in(name)).exists());
        }
        eventually("its supervisor is gone", || machine.supervisors().is_empty());
        assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    }
    assert!(machine.agent_pids().is_empty());
}
