//! Killed processes: one that has files of a mount open can be killed while its agent is gone or hangs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::process::wait_for_exit;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::python;

/// What a process does with the file before it is killed. None of these closes a descriptor: the kernel sends FLUSH when a
/// descriptor of a file without OPEN is closed, until the first FLUSH was answered, and a killed process waits for it.
const USES: [&str; 6] = [
    "fd = os.open(path, os.O_RDONLY)",
    "fd = os.open(path, os.O_RDONLY); os.read(fd, 100)",
    "fd = os.open(path, os.O_RDONLY); other = os.dup(fd)",
    "fd = os.open(path, os.O_RDONLY); pages = mmap.mmap(fd, 0, prot=mmap.PROT_READ); pages[0]",
    "fd = os.open(path, os.O_RDONLY | os.O_DIRECT)",
    "fd = os.open(os.path.dirname(path), os.O_RDONLY); os.chdir(fd)",
];

/// A process that does `code` with the file at `path`, says so, and waits to be killed.
fn spawn_user(path: &Path, code: &str) -> Child {
    let script =
        format!("import mmap, os, sys\npath = sys.argv[1]\n{code}\nprint(flush=True)\nsys.stdin.read()");
    let mut command = python(&script);
    let mut user = command.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(user.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "\n", "{code}");
    user
}

/// Kills all users of fresh mounts after `end` has ended the agent or stopped it.
fn assert_killed_users_end(end: impl FnOnce(AgentProcess) -> Option<(AgentProcess, FrozenProcess)>) {
    let env = TestEnv::new();
    env.put("small/file", 10_000);
    env.put("large/file", 17 << 20);
    let agent = env.machine.agent("");
    // One mount whose files the kernel opens by itself, and one where it asks.
    let [stateless, stateful] = ["small", "large"].map(|prefix| {
        let point = env.machine.mount(format!("s3://bucket/{prefix}"), prefix);
        USES.map(|code| spawn_user(&point.join("file"), code))
    });
    let agent = end(agent);
    for (mut user, code) in stateless.into_iter().chain(stateful).zip(USES.iter().cycle()) {
        user.kill().unwrap();
        wait_for_exit(&mut user, code);
    }
    if let Some((agent, frozen)) = agent {
        drop(frozen);
        agent.stop();
    }
}

#[test]
fn process_with_open_files_killed_while_agent_is_gone_ends() {
    assert_killed_users_end(|agent| {
        agent.crash();
        None
    });
}

#[test]
fn process_with_open_files_killed_while_agent_hangs_ends() {
    assert_killed_users_end(|agent| {
        let frozen = FrozenProcess::new(agent.pid());
        Some((agent, frozen))
    });
}
