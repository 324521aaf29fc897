//! Takeover: mounts outlive their agent. It may crash, be replaced, be gone for a while: who reads notices nothing but time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_local, is_mounted};
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::readers::ReaderProcesses;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::program;
use bdnfs_tests::tree::{Rng, assert_same, assert_same_tree, write_tree};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

/// Slow enough that there is always something under way.
pub(super) const SLOW: NetworkFault =
    NetworkFault { refuse: false, frozen: false, delay: Duration::ZERO, rate: Some(6 << 20), cut: None };
const FROZEN: NetworkFault = NetworkFault { rate: None, frozen: true, ..SLOW };
const GONE: NetworkFault = NetworkFault { rate: None, refuse: true, ..SLOW };

fn stage(agent: &AgentProcess, id: u64) {
    assert_eq!(agent.ask("POST", &format!("/v1/mounts/{id}/stage"), "").code, 200, "{}", agent.log());
}

fn fdstore_pid(machine: &Machine) -> Pid {
    let mut fdstores = Vec::new();
    // A mount does not wait for the one that the agent starts.
    eventually("there is one fd store", || {
        fdstores = machine.fdstores();
        fdstores.len() == 1
    });
    fdstores[0]
}

/// Kills and replaces the agent `rounds` times while mounts are read, staged, and read on.
fn rounds(rounds: u64, seed: u64) {
    let env = TestEnv::new();
    for (name, len) in
        [("first", 18 * MIB + 5), ("second", 20 * MIB), ("model/c", 33 * MIB + 4096), ("model/d", 3 * MIB)]
    {
        env.put(name, len);
    }
    write_tree(&env.bucket());
    (0..400).for_each(|number| drop(env.put(&format!("many/{number}"), 900 + number)));
    let machine = &env.machine;
    let agent = machine.agent("");
    // One with files that the kernel reads by itself, one with small files only, which are never opened.
    let large = machine.mount("s3://bucket", "large");
    let small = machine.mount_with("s3://bucket", "small", &["--allow", "sizes/*"]);
    let originals = machine.directory("originals");
    program("cp").arg("-r").arg(env.bucket().join("sizes")).arg(&originals).status().unwrap();
    let mounts = [(env.bucket(), large.clone()), (env.bucket(), large.clone()), (originals, small)];
    env.proxy.set(SLOW);
    let mut readers = ReaderProcesses::start(machine, &mounts, 6, seed);
    let (mut rng, mut agent) = (Rng(seed), Some(agent));
    for round in 0..rounds {
        readers.wait_for_progress();
        let before = agent.take().expect("one");
        if round == rounds / 3 {
            stage(&before, 1);
        }
        if round == rounds / 2 {
            env.proxy.set(NetworkFault::default());
        }
        std::thread::sleep(Duration::from_millis(rng.below(300)));
        if round % 3 == 2 {
            before.end()
        } else {
            before.crash()
        }
        assert_eq!(machine.fdstores().len(), 1);
        std::thread::sleep(Duration::from_millis(rng.below(100)));
        agent = Some(machine.agent(""));
    }
    readers.wait_for_progress();
    let agent = agent.expect("one");
    let path = "/v1/mounts/1/stage";
    eventually("all is local", || agent.get(path).json()["state"] == "done");
    // Nothing that is whole is fetched again, neither by the next agent nor for those who have it open.
    env.s3.requests.clear();
    agent.crash();
    let agent = machine.agent("");
    readers.wait_for_progress();
    readers.end();
    drop_caches();
    assert_same_tree(&env.bucket(), &large);
    assert_eq!(env.fetched("").requests, 0, "{}", agent.log());
    let log = agent.log();
    assert!(!log.contains(" ERROR "), "{log}");
    agent.stop();
    assert!(!is_mounted(&large));
    // It notices the agent's end, and ends after it.
    eventually("the end of the fd store", || machine.fdstores().is_empty());
}

#[test]
fn agent_killed_or_upgraded_under_readers_is_not_noticed() {
    rounds(9, 1);
}

#[test]
#[ignore = "takes some minutes: a hundred kills, for people"]
fn readers_under_a_hundred_agent_kills_see_no_error() {
    rounds(100, std::env::var("SEED").map_or(7, |seed| seed.parse().expect("a number")));
}

/// An environment with an agent whose mount has one file, not local yet.
fn one_file(config: &str) -> (TestEnv, AgentProcess, PathBuf, Vec<u8>) {
    let env = TestEnv::new();
    let bytes = env.put("file", 17 * MIB);
    let agent = env.machine.agent(config);
    let point = env.machine.mount("s3://bucket", "mnt");
    (env, agent, point.join("file"), bytes)
}

/// A process that reads `file` to its end.
fn cat(file: &Path) -> Child {
    Command::new("cat").arg(file).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("cat")
}

/// Waits until the process sleeps in a request to a file system.
pub fn wait_until_blocked(child: &Child) {
    let wchan = format!("/proc/{}/wchan", child.id());
    eventually("a reader waits for the mount", || {
        fs::read_to_string(&wchan).is_ok_and(|at| at.contains("request_wait") || at.contains("folio"))
    });
}

#[test]
fn reader_waiting_for_agent_is_answered_by_the_next_agent() {
    let (env, agent, file, bytes) = one_file("");
    env.proxy.set(FROZEN);
    // Under way when the agent dies, and asked when there is none.
    let under_way = cat(&file);
    wait_until_blocked(&under_way);
    agent.crash();
    let waiting = cat(&file);
    env.proxy.set(NetworkFault::default());
    let agent = env.machine.agent("");
    for mut child in [under_way, waiting] {
        assert!(wait_for_exit(&mut child, "a reader").success());
    }
    // Its credentials were not lost with the agent.
    assert_same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.stop();
}

#[test]
fn reader_waiting_for_agent_when_killed_ends() {
    let (env, agent, file, _) = one_file("");
    // The kernel has the name: else one reader waits for the lookup, and the other for the one reader.
    fs::metadata(&file).unwrap();
    env.proxy.set(FROZEN);
    let under_way = cat(&file);
    wait_until_blocked(&under_way);
    agent.crash();
    let asking = cat(&file);
    wait_until_blocked(&asking);
    for mut child in [under_way, asking] {
        child.kill().unwrap();
        wait_for_exit(&mut child, "a reader that was killed");
    }
    // Also when its request has been taken over and is under way once more.
    let taken_over = cat(&file);
    wait_until_blocked(&taken_over);
    let agent = env.machine.agent("");
    agent.crash();
    let agent = env.machine.agent("");
    let mut child = taken_over;
    child.kill().unwrap();
    wait_for_exit(&mut child, "a reader that was killed");
    agent.stop();
}

#[test]
fn reader_without_agent_after_the_takeover_timeout_fails() {
    let (env, agent, file, bytes) = one_file("hold = \"1s\"");
    assert_same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.crash();
    let reader = cat(&file);
    let output = reader.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("not connected") || said.contains("connection abort"), "{said}");
    eventually("the holder ends", || env.machine.fdstores().is_empty());
    let agent = env.machine.agent("hold = \"1s\"");
    assert_same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    agent.stop();
}

#[test]
fn fdstore_killed_is_replaced() {
    let (env, agent, file, bytes) = one_file("");
    let open = File::open(&file).unwrap();
    let first = fdstore_pid(&env.machine);
    kill_process(first, Signal::KILL).unwrap();
    eventually("there is another one", || env.machine.fdstores().iter().any(|pid| *pid != first));
    eventually("it has the mount", || agent.log().contains("another fd store has 1 of 1 mounts"));
    agent.crash();
    let agent = env.machine.agent("");
    let mut read = vec![0; bytes.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_same(&bytes, &read, "what was open");
    agent.stop();
}

#[test]
fn fdstore_frozen_delays_no_reader() {
    let (env, agent, file, bytes) = one_file("");
    assert_same(&bytes, &fs::read(&file).unwrap(), "file");
    let stuck = fdstore_pid(&env.machine);
    // One that is only stopped is continued.
    let frozen = FrozenProcess::new(stuck);
    agent.crash();
    let agent = env.machine.agent("");
    assert_same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    assert_ne!(fdstore_pid(&env.machine), stuck);
    drop(frozen);
    agent.stop();
}

#[test]
fn agent_terminated_while_starting_keeps_mounts() {
    let (env, mut agent, file, bytes) = one_file("");
    let open = File::open(&file).unwrap();
    for _ in 0..5 {
        agent.end();
        agent = env.machine.agent_not_ready("");
        eventually("it listens", || agent.try_ask("GET", "/healthz", "").is_some());
    }
    let mut read = vec![0; bytes.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_same(&bytes, &read, "what was open");
    agent.stop();
}

#[test]
fn agent_started_after_fdstore_died_mounts_again() {
    let (env, agent, file, bytes) = one_file("");
    assert_same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.crash();
    fdstore_pid(&env.machine);
    env.machine.kill_fdstore();
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    let agent = env.machine.agent("");
    assert_same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    fdstore_pid(&env.machine);
    agent.stop();
}

#[test]
fn mount_unmounted_without_agent_is_restored() {
    let (env, agent, file, bytes) = one_file("");
    let point = file.parent().unwrap();
    assert_same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.crash();
    unmount(point, UnmountFlags::NOFOLLOW).unwrap();
    assert!(!is_mounted(point));
    // It held nothing else.
    eventually("the holder ends", || env.machine.fdstores().is_empty());
    let agent = env.machine.agent("");
    assert_same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    agent.stop();
}

#[test]
fn agent_stopped_unmounts_all_and_restores_all() {
    let (env, agent, file, bytes) = one_file("");
    let point = file.parent().unwrap();
    assert_same(&bytes, &fs::read(&file).unwrap(), "file");
    kill_process(agent.pid(), Signal::HUP).unwrap();
    let _in_use = File::open(&file).unwrap();
    env.machine.run(&["agent", "--stop"]).succeeds();
    assert!(!is_mounted(point));
    eventually("the end of the fd store", || env.machine.fdstores().is_empty());
    env.machine.run(&["agent", "--stop"]).fails(&["no agent"]);
    agent.gone();
    let agent = env.machine.agent("");
    assert!(is_mounted(point));
    env.proxy.set(GONE);
    assert!(is_local(&file));
    agent.stop();
}
