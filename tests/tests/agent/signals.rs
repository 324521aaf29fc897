//! Agents that are stopped, killed or get SIGHUP: what their users see.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::{eventually, wait_for_exit, waits_in};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{program, with_timeout};
use bdnfs_tests::tree::{assert_same_tree, write_file};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FROZEN: NetworkFault =
    NetworkFault { frozen: true, delay: Duration::ZERO, rate: None, cut: None, refuse: false };

/// The ten seconds after which a command gives up an agent that hangs, and what a busy machine adds.
const HUNG_AGENT_TIMEOUT: Duration = Duration::from_secs(25);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn status_of_a_hung_agent_names_it_and_fails() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    let point = machine.mount(&source, "mnt");
    let agent = machine.agent_pids()[0];
    let process = format!("(process {})", agent.as_raw_nonzero());
    let frozen = FrozenProcess::new(agent);
    for (arguments, named) in [
        (&["status"][..], format!("{}: bdnfs {process} does not respond", text(&point))),
        (&["status", "--cache-dir", text(machine.cache())], format!("{process} does not respond within 2 s")),
    ] {
        // At least one run is as quick as that, however busy the machine is; one after the other they take four seconds each time.
        eventually("the mount and the socket are waited for at once", || {
            let begin = Instant::now();
            let ran = machine.run(arguments);
            let took = begin.elapsed();
            assert_eq!(ran.code, Some(1), "{}{}", ran.out, ran.err);
            assert!(ran.err.contains(&named), "{named}: {}", ran.err);
            assert!(!ran.out.contains("no mounts"), "{}", ran.out);
            took < Duration::from_millis(3500)
        });
    }
    let ran = machine.run(&["status", "--json", "--cache-dir", text(machine.cache())]);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(report["unresponsive"][0].as_str().unwrap().contains(&process), "{report}");
    drop(frozen);
    machine.run(&["status", "--cache-dir", text(machine.cache())]).succeeds();
}

#[test]
fn agent_check_of_a_hung_or_missing_agent_fails() {
    let machine = Machine::new();
    let socket = machine.socket();
    let checks = ["live", "ready"].map(|state| ["agent", "--socket", text(&socket), "--check", state]);
    for check in &checks {
        machine.run(check).fails(&["no agent listens"]);
    }
    let agent = machine.agent("");
    for check in &checks {
        machine.run(check).succeeds();
    }
    let frozen = FrozenProcess::new(agent.pid());
    machine.run(&checks[0]).fails(&["the agent does not respond"]);
    drop(frozen);
    machine.run(&checks[1]).succeeds();
    agent.stop();
}

#[test]
fn commands_for_a_hung_agent_fail_and_name_it() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    let point = machine.mount(&source, "mnt");
    let second = machine.directory("second");
    let job = machine.directory("etc").join("job.toml");
    fs::write(&job, "[runtime]\nstart_commands = [\"true\"]\n").unwrap();
    let cache = text(machine.cache());
    let frozen = FrozenProcess::new(machine.agent_pids()[0]);
    let late = format!("the agent at {cache}/control.sock does not respond within 10 s");
    let gone = format!("{}: mount does not respond", text(&point));
    let of_agent = [
        &["mount", text(&source), text(&second)][..],
        &["cache", "summarize"],
        &["cache", "verify"],
        &["cache", "pin", text(&source)],
        &["cache", "unpin", text(&source)],
        &["cache", "evict", text(&source)],
        &["job", "run", text(&job)],
        &["job", "submit", text(&job)],
        &["job", "ls"],
        &["job", "show", "1"],
        &["job", "wait", "1"],
        &["job", "logs", "1"],
        &["job", "stop", "1"],
        &["wait", "1"],
        &["wait", "name"],
    ];
    let of_agent = of_agent.map(|words| ([words, &["--cache-dir", cache]].concat(), late.as_str()));
    let others = [
        (vec!["top", "--once", "--cache-dir", cache], "does not respond"),
        (vec!["umount", text(&point)], "mount does not respond; use `bdnfs umount --lazy"),
        (vec!["wait", text(&point)], &gone),
    ];
    // All at once: most of them take their ten seconds.
    thread::scope(|scope| {
        for (arguments, named) in of_agent.into_iter().chain(others) {
            let machine = &machine;
            scope.spawn(move || {
                let begin = Instant::now();
                let ran = machine.run(&arguments);
                assert!(begin.elapsed() < HUNG_AGENT_TIMEOUT, "{arguments:?}: {:?}", begin.elapsed());
                assert!(ran.code != Some(0) && ran.err.contains(named), "{arguments:?}: {ran:?}");
                ran.fails(&[named]);
            });
        }
    });
    drop(frozen);
    machine.run(&["cache", "summarize", "--cache-dir", cache]).succeeds();
    machine.umount(&point);
}

#[test]
fn status_of_a_cache_whose_agent_was_killed_names_its_mounts_and_fails() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    let agent = machine.agent("");
    let point = machine.mount(&source, "mnt");
    agent.crash();
    let ran = machine.run(&["status", "--cache-dir", text(machine.cache())]);
    assert!(ran.out.contains(text(&point)), "{}{}", ran.out, ran.err);
    ran.fails(&[text(&point), "does not respond"]);
    let other = machine.directory("other");
    assert_eq!(machine.run(&["status", "--cache-dir", text(&other)]).succeeds(), "no mounts\n");
    machine.agent("").stop();
}

#[test]
fn status_of_a_cache_whose_on_demand_agent_was_killed_names_its_dead_mount_until_it_is_unmounted() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    let (point, second) = (machine.mount(&source, "mnt"), machine.mount(&source, "second"));
    machine.run(&["unmount", text(&second)]).succeeds();
    machine.crash();
    let status = || machine.run(&["status", "--cache-dir", text(machine.cache())]);
    status().fails(&[text(&point), "dead: its agent is gone"]);
    // Another agent of this cache does not make it alive.
    machine.mount(&source, "third");
    status().fails(&[text(&point), "dead: its agent is gone"]);
    assert!(!status().err.contains(text(&second)), "{}", status().err);
    machine.run(&["unmount", text(&point)]).succeeds();
    assert!(!status().succeeds().contains(text(&point)));
}

#[test]
fn read_under_way_when_its_agent_is_killed_fails_with_econnaborted() {
    let env = TestEnv::new();
    env.put("file", 1 << 20);
    let point = env.machine.mount("s3://bucket", "mnt");
    env.proxy.set(FROZEN);
    let file = point.join("file");
    // Not through the page cache, which asks again and hears of the end.
    let mut reader = program("dd");
    reader.args(["iflag=direct", "bs=4096", "of=/dev/null"]).arg(format!("if={}", text(&file)));
    let reader = reader.env("LC_ALL", "C").stderr(Stdio::piped()).spawn().unwrap();
    let process = Pid::from_child(&reader);
    let call = || fs::read_to_string(format!("/proc/{}/syscall", reader.id())).unwrap_or_default();
    eventually("it waits for the agent, in read(2)", || {
        waits_in(process, "request_wait_answer") && call().starts_with(&format!("{} ", libc::SYS_read))
    });
    env.machine.crash();
    let read = with_timeout(Duration::from_secs(100), move || reader.wait_with_output().unwrap());
    let said = String::from_utf8_lossy(&read.stderr).into_owned();
    // strerror(ECONNABORTED)
    assert!(said.contains("Software caused connection abort"), "{said}");
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
}

#[test]
fn foreground_mount_after_sighup_goes_on_until_sigterm() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    let point = machine.directory("mnt");
    let mut command = machine.command(&["mount", "--foreground", text(&source), text(&point), "--cache-dir"]);
    let mut mount = command.arg(machine.cache()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("it is mounted", || is_mounted(&point));
    let process = Pid::from_raw(mount.id() as i32).unwrap();
    kill_process(process, Signal::HUP).unwrap();
    for _ in 0..50 {
        assert!(mount.try_wait().unwrap().is_none(), "SIGHUP ended it");
        sleep(Duration::from_millis(10));
    }
    assert_same_tree(&source, &point);
    kill_process(process, Signal::TERM).unwrap();
    wait_for_exit(&mut mount, "bdnfs mount --foreground");
    assert!(!is_mounted(&point));
}
