//! Errors that readers see, and readers that wait: none is stuck.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use axum::http::StatusCode;
use bdnfs_tests::MIB;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{STUCK_TIMEOUT, program, run, with_timeout};
use bdnfs_tests::tree::{assert_same_file, content};
use rustix::process::Signal;

const FROZEN: NetworkFault =
    NetworkFault { frozen: true, delay: Duration::ZERO, rate: None, cut: None, refuse: false };

/// A reader in a process of its own, which can be killed.
fn cat(path: &Path) -> Child {
    program("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn read_with_refused_keys_or_silence_fails_with_eacces_or_etimedout() {
    let env = TestEnv::new();
    for name in ["refused", "silent"] {
        env.put(name, MIB);
    }
    let point = env.machine.mount("s3://bucket", "mnt");
    let read = |name| {
        let path = point.join(name);
        with_timeout(STUCK_TIMEOUT, move || fs::read(path)).map_err(|error| error.raw_os_error().unwrap())
    };
    env.s3.faults.set(ServerFault::Status(StatusCode::FORBIDDEN, None));
    assert_eq!(read("refused"), Err(libc::EACCES));
    env.s3.faults.clear();
    env.proxy.set(FROZEN);
    assert_eq!(read("silent"), Err(libc::ETIMEDOUT));
    env.proxy.set(NetworkFault::default());
    // Of several requests for one read the kernel repeats only one: for a second the error may still answer.
    eventually("it is read again", || read("silent") == Ok(content("silent", MIB)));
}

#[test]
fn frozen_server_delays_neither_other_files_nor_unmount() {
    let env = TestEnv::new();
    for name in ["frozen", "local"] {
        env.put(name, 2 * MIB);
    }
    let [point, second] = ["mnt", "second"].map(|name| env.machine.mount("s3://bucket", name));
    fs::read(point.join("local")).unwrap();
    env.proxy.set(FROZEN);
    let points = [&point, &second].into_iter().cycle();
    let mut stuck: Vec<Child> = points.take(40).map(|at| cat(&at.join("frozen"))).collect();
    sleep(Duration::from_millis(300));
    env.machine.run(&["umount".as_ref(), "--lazy".as_ref(), second.as_os_str()]).succeeds();
    assert!(!is_mounted(&second));
    let (bucket, local) = (env.bucket(), point.clone());
    with_timeout(STUCK_TIMEOUT, move || {
        assert_same_file(&bucket.join("local"), &local.join("local"));
        run(program("ls").arg("-l").arg(&local));
    });
    assert!(stuck.iter_mut().all(|child| child.try_wait().unwrap().is_none()), "nothing waited for these");
    // SIGTERM ends the agent and its mounts, even if requests wait for them.
    for pid in env.machine.agent_pids() {
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
    }
    eventually("the agent is gone", || env.machine.agent_pids().is_empty());
    for child in &mut stuck {
        wait_for_exit(child, "a reader of a mount that is gone");
    }
    assert!(!is_mounted(&point));
}
