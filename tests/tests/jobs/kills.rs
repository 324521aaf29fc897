//! Jobs of which some process is killed at a random moment: nothing of them is left.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::Rng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::kit::{campaign_rounds, job, mounts_of, secrets, spec, submitted, text, toml};

/// How long the job takes at the most, in milliseconds, when it is not killed.
const JOB_MILLISECONDS: u64 = 2000;
/// How often each process is killed in all runs of the suite, and how often at night.
const ROUNDS: usize = 3;
const NIGHTLY_ROUNDS: usize = 40;

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KillTarget {
    /// `bdnfs job run`, which is its own agent.
    Run,
    /// The agent of the node.
    Agent,
    /// The supervisor, of either.
    Supervisor,
    /// The commands.
    Command,
}

/// A machine whose job is staged for a while and then runs for a while.
struct KillTestEnv {
    env: TestEnv,
    agent: Option<AgentProcess>,
}

impl KillTestEnv {
    fn new() -> Self {
        let env = TestEnv::new();
        for (name, len) in [("a", 5 * MIB + 1), ("b", 3 * MIB), ("config.json", 700)] {
            env.put(name, len);
        }
        env.proxy.set(NetworkFault { rate: Some(24 * MIB as u64), ..NetworkFault::default() });
        secrets(&env.machine);
        Self { env, agent: None }
    }

    fn machine(&self) -> &Machine {
        &self.env.machine
    }

    /// The arguments of the job. Its commands leave a process behind that has left their session and will not end.
    fn arguments(&self) -> Vec<String> {
        let machine = self.machine();
        let commands = [
            "sha256sum /m/* >/dev/null; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &); sleep 0.2",
            "sleep 0.2; sha256sum /m/* >/dev/null",
        ];
        let weights =
            "[[weights]]\nsource = \"s3://bucket\"\nmount_location = \"/m\"\nauth_secret_name = \"s3\"\n";
        let file = spec(machine, "job.toml", &(toml(&[], &commands) + weights));
        let (secrets, work) = (machine.directory("secrets"), machine.directory("work"));
        let words = ["--no-mirror", "--secrets", text(&secrets), "--workdir", text(&work), text(&file)];
        words.map(str::to_owned).to_vec()
    }

    fn start_agent(&mut self) {
        let config = format!("secrets = [\"{}\"]", text(&self.machine().directory("secrets")));
        self.agent = Some(self.machine().agent(&config));
    }

    fn end_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.end();
        }
    }

    /// The processes of the job's commands, which run in a directory of their own.
    fn commands(&self) -> Vec<Pid> {
        let work = self.machine().directory("work");
        let pids = fs::read_dir("/proc").expect("a directory").flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let runs_there = |pid: &i32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == work)
                && !name.starts_with("bdnfs")
        };
        pids.filter(runs_there).filter_map(Pid::from_raw).collect()
    }

    fn kill(pids: &[Pid]) {
        for pid in pids {
            // Who has ended meanwhile is as good as killed.
            let _ = kill_process(*pid, Signal::KILL);
        }
    }

    /// Runs the job without an agent. `kill` is called at the moment; it gets the process.
    fn run(&self, moment: Duration, kill: impl FnOnce(Pid)) {
        let machine = self.machine();
        let mut arguments = ["job", "run", "--cache-dir", text(machine.cache())].map(str::to_owned).to_vec();
        arguments.extend(self.arguments());
        let mut command = machine.command(&arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bdnfs");
        sleep(moment);
        kill(Pid::from_child(&child));
        child.wait().expect("it has ended");
    }

    /// Submits the job to the agent, and answers with its number.
    fn submit(&self) -> String {
        let arguments = self.arguments();
        submitted(self.machine(), &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Nothing is left of a job that has ended: no process, no mount, no lease.
    fn assert_nothing_left(&self, what: &str) {
        let machine = self.machine();
        eventually(&format!("the supervisor is gone: {what}"), || machine.supervisors().is_empty());
        eventually(&format!("the commands are gone: {what}"), || self.commands().is_empty());
        eventually(&format!("its mounts are gone: {what}"), || mounts_of(machine).is_empty());
        if self.agent.is_none() {
            assert!(machine.agent_pids().is_empty(), "{what}");
        }
        let evict = ["cache", "evict", "--all", "--json", "--cache-dir", text(machine.cache())];
        let evicted: Value = serde_json::from_str(&machine.run(&evict).succeeds()).expect("JSON");
        assert_eq!(evicted["held"], 0, "{what}: {evicted}");
    }

    fn round(&mut self, victim: KillTarget, number: usize, rng: &mut Rng) {
        let moment = Duration::from_millis(rng.below(JOB_MILLISECONDS));
        let what = format!("{victim:?} killed after {moment:?} in round {number}");
        match victim {
            KillTarget::Run => self.run(moment, |run| Self::kill(&[run])),
            // Without an agent it is there from the start.
            KillTarget::Supervisor if number.is_multiple_of(2) => {
                self.end_agent();
                self.run(moment, |_| Self::kill(&self.machine().supervisors()));
            }
            _ => {
                if self.agent.is_none() {
                    self.start_agent();
                }
                let id = self.submit();
                sleep(moment);
                match victim {
                    KillTarget::Agent => {
                        self.agent.take().expect("an agent").crash();
                        self.start_agent();
                    }
                    KillTarget::Supervisor => Self::kill(&self.machine().supervisors()),
                    _ => Self::kill(&self.commands()),
                }
                let waited = job(self.machine(), &["wait", &id, "--timeout", "60s"]);
                assert_ne!(waited.code, Some(124), "{what}: {}", waited.err);
                assert!(victim != KillTarget::Agent || waited.code == Some(0), "{what}: {}", waited.err);
            }
        }
        self.assert_nothing_left(&what);
    }
}

/// Kills `victim` in each of `rounds`, at a random moment.
fn kill_at_random(victim: KillTarget, rounds: usize) {
    let seed = std::env::var("SEED").map_or(victim as u64 + 1, |seed| seed.parse().expect("a number"));
    let (mut scene, mut rng) = (KillTestEnv::new(), Rng(seed));
    for number in 0..rounds {
        scene.round(victim, number, &mut rng);
    }
    scene.end_agent();
    scene.assert_nothing_left("at the end");
}

#[test]
fn job_run_killed_at_any_moment_leaves_nothing() {
    kill_at_random(KillTarget::Run, ROUNDS);
}

#[test]
fn job_whose_agent_is_killed_at_any_moment_leaves_nothing() {
    kill_at_random(KillTarget::Agent, ROUNDS);
}

#[test]
fn job_whose_supervisor_is_killed_at_any_moment_leaves_nothing() {
    kill_at_random(KillTarget::Supervisor, ROUNDS + 1);
}

#[test]
fn job_whose_commands_are_killed_at_any_moment_leaves_nothing() {
    kill_at_random(KillTarget::Command, ROUNDS);
}

#[test]
#[ignore = "takes minutes; for a change of how jobs end: CAMPAIGN_ROUNDS=200 cargo nextest run --test jobs --run-ignored all many_times"]
fn job_run_killed_many_times_leaves_nothing() {
    kill_at_random(KillTarget::Run, campaign_rounds(NIGHTLY_ROUNDS));
}

#[test]
#[ignore = "takes minutes; for a change of how jobs end: CAMPAIGN_ROUNDS=200 cargo nextest run --test jobs --run-ignored all many_times"]
fn job_agent_killed_many_times_leaves_nothing() {
    kill_at_random(KillTarget::Agent, campaign_rounds(NIGHTLY_ROUNDS));
}

#[test]
#[ignore = "takes minutes; for a change of how jobs end: CAMPAIGN_ROUNDS=200 cargo nextest run --test jobs --run-ignored all many_times"]
fn job_supervisor_killed_many_times_leaves_nothing() {
    kill_at_random(KillTarget::Supervisor, campaign_rounds(NIGHTLY_ROUNDS));
}

#[test]
#[ignore = "takes minutes; for a change of how jobs end: CAMPAIGN_ROUNDS=200 cargo nextest run --test jobs --run-ignored all many_times"]
fn job_commands_killed_many_times_leave_nothing() {
    kill_at_random(KillTarget::Command, campaign_rounds(NIGHTLY_ROUNDS));
}

#[test]
fn job_run_killed_while_it_stages_leaves_no_mount() {
    let scene = KillTestEnv::new();
    scene.env.proxy.set(NetworkFault { rate: Some(MIB as u64), ..NetworkFault::default() });
    let machine = scene.machine();
    scene.run(Duration::ZERO, |run| {
        eventually("it stages", || !mounts_of(machine).is_empty());
        KillTestEnv::kill(&[run]);
    });
    eventually("its mount is gone", || mounts_of(machine).is_empty());
    scene.assert_nothing_left("killed while it staged");
}

#[test]
fn job_run_killed_when_its_commands_have_just_ended_leaves_no_mount() {
    let scene = KillTestEnv::new();
    let machine = scene.machine();
    for round in 0..5 {
        let ended = || {
            let jobs = fs::read_dir(machine.cache().join("jobs")).into_iter().flatten().flatten();
            jobs.filter(|job| job.path().join("ended.json").exists()).count()
        };
        let before = ended();
        scene.run(Duration::ZERO, |run| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while ended() == before {
                assert!(Instant::now() < deadline, "the commands end");
            }
            sleep(Duration::from_millis(2 * round));
            KillTestEnv::kill(&[run]);
        });
        eventually("its mount is gone", || mounts_of(machine).is_empty());
    }
    scene.assert_nothing_left("killed after its commands");
}
