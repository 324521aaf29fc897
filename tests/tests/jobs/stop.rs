//! Jobs that are stopped, by a signal or by a command, wherever they are on their way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::kit::{job, mounts_of, spec, submitted, text, toml};

/// `bdnfs job run` of a job that ends only when it is told to, and what it is seen by.
struct RunningJob {
    child: Child,
    flags: PathBuf,
    said: PathBuf,
}

impl RunningJob {
    fn start(machine: &Machine, name: &str, output: &str) -> Self {
        let flags = machine.directory(name);
        let here = text(&flags);
        let script = format!(
            "trap '{output}' TERM; echo $$ > {here}/pid; touch {here}/runs; while :; do sleep 0.05; done"
        );
        let file = spec(machine, &format!("{name}.toml"), &toml(&[], &[&script]));
        let mut command = machine.command(&[
            "job",
            "run",
            "--grace",
            "1000",
            "--cache-dir",
            text(machine.cache()),
            text(&file),
        ]);
        let said = flags.join("said");
        command.stdout(Stdio::null()).stderr(File::create(&said).unwrap());
        let child = command.spawn().expect("bdnfs");
        eventually("it runs", || flags.join("runs").exists());
        Self { child, flags, said }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it exits with `code`, and makes sure that nothing is left.
    fn stopped(mut self, machine: &Machine, code: i32) {
        let status = wait_for_exit(&mut self.child, "bdnfs job run");
        let said = self.said();
        assert_eq!(status.code(), Some(code), "{said}");
        assert!(said.lines().last().is_some_and(|line| line.ends_with("was stopped")), "{said}");
        let pid = fs::read_to_string(self.flags.join("pid")).unwrap();
        eventually("its process is gone", || !Path::new("/proc").join(pid.trim()).exists());
        eventually("its supervisor is gone", || machine.supervisors().is_empty());
        assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Signals end jobs that run in this machine, with or without an agent.
fn signals(machine: &Machine, kind: &str) {
    for (signal, name) in [(Signal::INT, "int"), (Signal::TERM, "term"), (Signal::HUP, "hup")] {
        let runs = RunningJob::start(machine, &format!("{kind}-{name}"), "exit 0");
        runs.signal(signal);
        // Its commands end in order, and it has not completed.
        runs.stopped(machine, 125);
    }
    // One that does not end by itself, for which its grace is too long.
    let runs = RunningJob::start(machine, &format!("{kind}-twice"), "");
    runs.signal(Signal::INT);
    eventually("it was asked", || runs.said().contains("asked to end"));
    runs.signal(Signal::INT);
    runs.stopped(machine, 128 + Signal::KILL.as_raw());
}

#[test]
fn job_stop_while_its_supervisor_is_stopped_stops_it() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let file = spec(&machine, "job.toml", &toml(&[], &["sleep 1000"]));
    for options in [&["stop"][..], &["stop", "--now"]] {
        let id = submitted(&machine, &[text(&file)]);
        machine.run(&["wait", &id, "--timeout", "60s"]).succeeds();
        let supervisors = machine.supervisors();
        assert_eq!(supervisors.len(), 1);
        kill_process(supervisors[0], Signal::STOP).unwrap();
        let stopped = job(&machine, &[options, &[id.as_str()]].concat()).succeeds();
        assert_eq!(stopped.trim(), format!("job {id}: TRAINING_JOB_STOPPED"));
        eventually("its supervisor is gone", || machine.supervisors().is_empty());
    }
    agent.stop();
}

#[test]
fn job_stop_whose_agent_is_killed_after_its_answer_is_an_event() {
    let machine = Machine::new();
    for (stop, event) in [("stop", "it is asked to stop"), ("stop?now=true", "it is asked to stop at once")] {
        let agent = machine.agent("");
        let file = spec(&machine, "job.toml", &toml(&[], &["sleep 1000"]));
        let id = submitted(&machine, &[text(&file)]);
        machine.run(&["wait", &id, "--timeout", "60s"]).succeeds();
        assert_eq!(agent.ask("POST", &format!("/v1/jobs/{id}/{stop}"), "").code, 200);
        agent.crash();
        let agent = machine.agent("");
        let job = || -> Value { agent.get(&format!("/v1/jobs/{id}")).json() };
        eventually("it has stopped", || job()["state"] == "TRAINING_JOB_STOPPED");
        assert!(job()["events"].as_array().unwrap().iter().any(|said| said["text"] == event), "{}", job());
        agent.stop();
    }
}

#[test]
fn job_stop_without_grace_is_without_grace_for_the_next_agent() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flags = machine.directory("flags");
    let script = format!("trap '' TERM; touch {}/runs; while :; do sleep 0.05; done", text(&flags));
    let file = spec(&machine, "job.toml", &toml(&[], &[&script]));
    let id = submitted(&machine, &["--grace", "1000", text(&file)]);
    eventually("it runs", || flags.join("runs").exists());
    assert_eq!(agent.ask("POST", &format!("/v1/jobs/{id}/stop"), "").code, 200);
    let kept = machine.cache().join(format!("jobs/{id}/events.jsonl"));
    eventually("it is kept that it was asked", || {
        fs::read_to_string(&kept).is_ok_and(|events| events.contains("asked to end"))
    });
    agent.crash();
    let path = machine.cache().join(format!("state/jobs/{id}.json"));
    let record = || -> Value { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
    let stops = |record: &Value| (record["record"]["stop"].clone(), record["record"]["stop_now"].clone());
    let asked = record();
    assert_eq!(stops(&asked), (json!(true), json!(false)));
    // As an earlier version writes it: its stop has grace.
    let mut earlier = asked.clone();
    earlier["record"].as_object_mut().unwrap().remove("stop_now").unwrap();
    fs::write(&path, earlier.to_string()).unwrap();
    let agent = machine.agent("");
    let job_now = || -> Value { agent.get(&format!("/v1/jobs/{id}")).json() };
    eventually("it was asked again", || job_now()["events"].to_string().matches("asked to end").count() == 2);
    assert_eq!(job_now()["state"], "TRAINING_JOB_RUNNING");
    agent.crash();
    // As it is left by an agent that is killed before the supervisor has the second signal.
    let mut now = asked;
    now["record"]["stop_now"] = json!(true);
    fs::write(&path, now.to_string()).unwrap();
    let agent = machine.agent("");
    job(&machine, &["wait", &id]).fails(&["was stopped"]);
    assert!(machine.supervisors().is_empty());
    assert_eq!(stops(&record()), (json!(true), json!(true)), "the end does not forget it either");
    agent.stop();
}

#[test]
fn job_run_on_signal_stops_the_job() {
    let machine = Machine::new();
    signals(&machine, "alone");
    assert!(machine.agent_pids().is_empty());
    let agent = machine.agent("");
    signals(&machine, "agent");
    agent.stop();
}

#[test]
fn job_stop_in_each_state_stops_it() {
    let env = TestEnv::new();
    env.put("large", 9 * MIB);
    let machine = &env.machine;
    fs::create_dir(env.bucket().with_file_name("mirror")).unwrap();
    let agent = machine.agent("cache_size = \"12MiB\"");
    let file = spec(machine, "job.toml", &toml(&[("s3://bucket", "/m")], &["sleep 1000"]));
    let output = |id: &str| -> Value { agent.get(&format!("/v1/jobs/{id}")).json() };
    let stop = |id: &str| {
        let said = job(machine, &["stop", id]).succeeds();
        assert_eq!(said.trim(), format!("job {id}: TRAINING_JOB_STOPPED"));
        job(machine, &["wait", id]).fails(&["was stopped"]);
        assert!(machine.supervisors().is_empty());
        assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    };
    let frozen = NetworkFault { frozen: true, ..NetworkFault::default() };

    env.proxy.set(frozen);
    let id = submitted(machine, &["--mirror", "s3://mirror", text(&file)]);
    assert_eq!(output(&id)["state"], "TRAINING_JOB_CREATED");
    stop(&id);

    let id = submitted(machine, &["--no-mirror", text(&file)]);
    eventually("it is mounted", || output(&id)["state"] == "TRAINING_JOB_DEPLOYING");
    stop(&id);

    env.proxy.set(NetworkFault { rate: Some(MIB as u64), ..NetworkFault::default() });
    let id = submitted(machine, &["--no-mirror", text(&file)]);
    eventually("it is staged", || output(&id)["staging"]["bytes_done"].as_u64() > Some(0));
    stop(&id);

    env.proxy.set(NetworkFault::default());
    let holds = submitted(machine, &["--no-mirror", text(&file)]);
    machine.run(&["wait", &holds, "--timeout", "60s"]).succeeds();
    fs::create_dir(env.bucket().with_file_name("other")).unwrap();
    bdnfs_tests::tree::write_file(&env.bucket().with_file_name("other"), "large", 8 * MIB);
    let other = spec(machine, "other.toml", &toml(&[("s3://other", "/m")], &["true"]));
    let waits = submitted(machine, &["--no-mirror", text(&other)]);
    eventually("it waits for room", || output(&waits)["events"].to_string().contains("waits for room"));
    let said = job(machine, &["stop", &waits]).succeeds();
    assert_eq!(said.trim(), format!("job {waits}: TRAINING_JOB_STOPPED"));
    assert_eq!(output(&holds)["state"], "TRAINING_JOB_RUNNING");
    stop(&holds);

    // One that has ended has ended.
    let quick = spec(machine, "quick.toml", &toml(&[], &["true"]));
    let id = submitted(machine, &[text(&quick)]);
    job(machine, &["wait", &id]).succeeds();
    let said = job(machine, &["stop", &id]).succeeds();
    assert_eq!(said.trim(), format!("job {id}: TRAINING_JOB_COMPLETED"));
    agent.stop();
}

#[test]
fn job_stop_that_could_not_be_recorded_is_recorded_by_the_next() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flags = machine.directory("flags");
    let script = format!("trap '' TERM; touch {}/runs; while :; do sleep 0.05; done", text(&flags));
    let file = spec(&machine, "job.toml", &toml(&[], &[&script]));
    let id = submitted(&machine, &["--grace", "1000", text(&file)]);
    let path = machine.cache().join(format!("state/jobs/{id}.json"));
    eventually("it runs", || {
        flags.join("runs").exists() && fs::read_to_string(&path).unwrap().contains("TRAINING_JOB_RUNNING")
    });
    let stop = || agent.ask("POST", &format!("/v1/jobs/{id}/stop"), "").code;
    // A directory is not replaced.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_ne!(stop(), 200);
    fs::remove_dir(&path).unwrap();
    assert_eq!(stop(), 200);
    let record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(record["record"]["stop"], true);
    job(&machine, &["stop", &id, "--now"]).succeeds();
    agent.stop();
}

#[test]
fn job_submitted_while_an_agent_stops_is_refused() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flags = machine.directory("flags");
    let script = format!(
        "trap 'touch {0}/asked' TERM; touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done",
        text(&flags)
    );
    let file = spec(&machine, "job.toml", &toml(&[], &[&script]));
    submitted(&machine, &["--grace", "1000", text(&file)]);
    eventually("it runs", || flags.join("runs").exists());
    assert_eq!(agent.ask("POST", "/v1/stop", "").code, 200);
    eventually("the agent ends its jobs", || flags.join("asked").exists());
    let request = json!({"weights": [], "start_commands": ["true"], "workdir": "/"}).to_string();
    let refused = agent.ask("POST", "/v1/jobs", &request);
    assert_eq!(refused.code, 503, "{}", refused.body);
    for left in ["jobs/2", "state/jobs/2.json"] {
        assert!(!machine.cache().join(left).exists(), "{left}");
    }
    fs::write(flags.join("go"), "").unwrap();
    agent.gone();
}

/// The supervisor of the next job of `agent`, which SIGSTOP stops as soon as it is in the job's `workdir`: from then on it runs the
/// commands whatever the agent does.
fn next_supervisor_stopped(agent: Pid, workdir: &Path) -> Pid {
    let tasks = PathBuf::from(format!("/proc/{}/task", agent.as_raw_nonzero()));
    loop {
        for task in fs::read_dir(&tasks).unwrap().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace() {
                let command = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
                if command == b"bdnfs\0launch\0" {
                    let pid = Pid::from_raw(child.parse().unwrap()).unwrap();
                    while fs::read_link(format!("/proc/{child}/cwd")).is_ok_and(|path| path != workdir) {}
                    let _ = kill_process(pid, Signal::STOP);
                    return pid;
                }
            }
        }
    }
}

#[test]
fn job_stop_while_it_is_launched_stops_it() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let workdir = machine.directory("workdir").canonicalize().unwrap();
    let request = json!({"weights": [], "start_commands": ["sleep 1000"], "workdir": workdir}).to_string();
    let was_launching = || {
        let (id, supervisor) = std::thread::scope(|scope| {
            let supervisor = scope.spawn(|| next_supervisor_stopped(agent.pid(), &workdir));
            let answer = agent.ask("POST", "/v1/jobs", &request);
            assert_eq!(answer.code, 200, "{}", answer.body);
            (answer.json()["id"].to_string(), supervisor.join().unwrap())
        });
        let status = || -> Value { agent.get(&format!("/v1/jobs/{id}")).json() };
        // The agent has sent the order, or has had the answer.
        sleep(Duration::from_millis(500));
        let was_launching = status()["state"] == "TRAINING_JOB_DEPLOYING";
        assert_eq!(agent.ask("POST", &format!("/v1/jobs/{id}/stop"), "").code, 200);
        sleep(Duration::from_millis(500));
        // It may have ended.
        let _ = kill_process(supervisor, Signal::CONT);
        eventually("it has ended", || !status()["ended"].is_null());
        assert_eq!(status()["state"], "TRAINING_JOB_STOPPED");
        eventually("its supervisor is gone", || machine.supervisors().is_empty());
        was_launching
    };
    // Where this process was too slow, its commands ran already.
    assert!((0..30).any(|_| was_launching()), "no launch is as slow as that");
    agent.stop();
}

#[test]
fn job_stop_kills_all_descendants() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flags = machine.directory("flags");
    let script = format!(
        "trap '' TERM; (setsid sh -c 'trap \"\" TERM; echo $$ > {0}/escaped; sleep 1000' &) ; (trap 'echo asked > {0}/asked; exit' TERM; \
         touch {0}/listens; while :; do sleep 0.05; done) & while :; do sleep 0.1; done",
        text(&flags)
    );
    let spec = spec(&machine, "job.toml", &toml(&[], &[&script]));
    let id = &submitted(&machine, &["--grace", "2", text(&spec)]);
    eventually("it runs", || flags.join("escaped").exists() && flags.join("listens").exists());
    eventually("its number is written", || !fs::read_to_string(flags.join("escaped")).unwrap().is_empty());
    let escaped = fs::read_to_string(flags.join("escaped")).unwrap();
    assert!(Path::new("/proc").join(escaped.trim()).exists());
    let output = job(&machine, &["stop", id]).succeeds();
    assert_eq!(output.trim(), format!("job {id}: TRAINING_JOB_STOPPED"));
    assert!(flags.join("asked").exists(), "it was asked first");
    eventually("all are gone", || !Path::new("/proc").join(escaped.trim()).exists());
    job(&machine, &["wait", id]).fails(&["was stopped"]);
    // What fails and what can't be is told, too.
    let failing = super::kit::spec(&machine, "failing.toml", &toml(&[], &["exit 3", "echo never"]));
    let ran = job(&machine, &["run", text(&failing)]);
    assert!(!ran.out.contains("never"));
    assert!(ran.code == Some(3) && ran.err.contains("exited with 3"), "{}", ran.err);
    job(&machine, &["show", "99"]).fails(&["no such job: 99"]);
    drop(agent);
}
