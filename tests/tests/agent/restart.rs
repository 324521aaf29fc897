//! The agent: one a cache, found by the other commands, and back after a restart with all it had.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::process::{eventually, kill_and_wait, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::{TestEnv, machine_with_tree};
use bdnfs_tests::tree::{assert_same, assert_same_file, assert_same_tree, write_tree};

const GONE: NetworkFault =
    NetworkFault { refuse: true, frozen: false, delay: std::time::Duration::ZERO, rate: None, cut: None };

fn text(path: &Path) -> &str {
    path.to_str().expect("ours are text")
}

#[test]
fn agent_on_used_cache_is_refused_with_the_owner() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let pid = agent.pid().to_string();
    let cache = text(machine.cache()).to_owned();
    machine.run(&["agent", "--cache-dir", &cache]).fails(&["in use", &pid, &cache]);
    // Another cache, but the same socket: it serves all the same, unless it was told to have that socket.
    let other = machine.directory("other");
    let socket = machine.socket();
    let arguments = ["agent", "--cache-dir", text(&other), "--socket", text(&socket)];
    machine.run(&arguments).fails(&["socket", &pid]);
    agent.stop();
    assert!(!socket.exists() && !machine.cache().join("control.sock").exists());
}

#[test]
fn agent_with_config_from_pipe_starts() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let cache = text(machine.cache()).to_owned();
    let said = machine.directory("said").join("stderr");
    let mut command = machine.command(&["agent", "--config", "/dev/stdin"]);
    command.stdin(Stdio::piped()).stderr(File::create(&said).expect("a file"));
    let mut second = command.spawn().expect("a second agent");
    let mut pipe = second.stdin.take().expect("its standard input");
    writeln!(pipe, "cache_dir = {cache:?}").expect("it reads");
    drop(pipe);
    assert!(!wait_for_exit(&mut second, "a second agent").success());
    let line = fs::read_to_string(said).expect("its error");
    assert!(line.contains("in use") && line.contains(&cache), "{line}");
    agent.stop();
}

#[test]
fn agent_without_mounts_stays_and_is_found() {
    let (env, machine) = (TestEnv::new(), Machine::new());
    write_tree(&env.bucket());
    let machine = machine.s3(&env.proxy.url(), &Keys::sample());
    let agent = machine.agent("");
    let point = machine.directory("mnt");
    // No cache is named.
    machine.run(&["mount", "s3://bucket", text(&point)]).succeeds();
    assert_eq!(machine.agent_pids(), [agent.pid()]);
    assert_same_tree(&env.bucket(), &point);
    machine.umount(&point);
    assert_eq!(agent.status()["mounts"].as_array().unwrap().len(), 0);
    let again = machine.mount("s3://bucket", "again");
    assert_eq!(machine.agent_pids(), [agent.pid()]);
    let status = machine.run(&["status", "--cache-dir", text(machine.cache())]).succeeds();
    assert!(status.contains(text(&again)), "{status}");
    agent.stop();
    assert!(!is_mounted(&again) && machine.agent_pids().is_empty());
}

/// Mounts two trees, one of them staged, lets `end` end the agent, and finds all back with the network gone.
fn assert_mounts_come_back(end: impl FnOnce(bdnfs_tests::agent::AgentProcess)) {
    let env = TestEnv::new();
    let large = env.put("large", 9 * MIB + 5);
    write_tree(&env.bucket());
    let agent = env.machine.agent("");
    let staged = env.machine.mount_with("s3://bucket", "staged", &["--wait"]);
    let lazy = env.machine.mount_with("s3://bucket", "lazy", &["--allow", "sizes/*"]);
    let ids: Vec<_> = agent.status()["mounts"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    end(agent);

    env.proxy.set(GONE);
    env.s3.requests.clear();
    let agent = env.machine.agent("");
    let status = agent.status();
    let again: Vec<_> = status["mounts"].as_array().unwrap().iter().map(|m| m["id"].clone()).collect();
    assert_eq!(again, ids, "{status}");
    assert_same_tree(&env.bucket(), &staged);
    assert!(is_local(&staged.join("large")));
    assert_same(&large, &fs::read(staged.join("large")).unwrap(), "what was staged");
    assert_same_file(&env.bucket().join("sizes/blocks"), &lazy.join("sizes/blocks"));
    eventually("the stage is known to be done", || agent.status()["mounts"][0]["stage"]["state"] == "done");
    assert_eq!(env.fetched("").requests, 0);
    env.machine.umount(&lazy);
    agent.crash();
    let agent = env.machine.agent("");
    assert!(is_mounted(&staged) && !is_mounted(&lazy), "what was unmounted stays so");
    agent.stop();
}

#[test]
fn agent_after_crash_restores_mounts_offline() {
    assert_mounts_come_back(bdnfs_tests::agent::AgentProcess::crash);
}

#[test]
fn agent_after_stop_restores_mounts_offline() {
    assert_mounts_come_back(bdnfs_tests::agent::AgentProcess::stop);
}

#[test]
fn agent_restarted_resolves_secrets_again() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 * MIB);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    agent.crash();
    // It has them in its memory.
    env.machine.kill_fdstore();
    let agent = env.machine.agent("");
    let error = fs::read(point.join("file")).expect_err("its credentials are gone");
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{}", agent.log());
    env.machine.umount(&point);
    let point = env.machine.mount("s3://bucket", "mnt");
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "with credentials again");
    let secret = Keys::sample().secret;
    let output = bdnfs_tests::tools::program("grep")
        .args(["-r", "-a", "-s", "-l", "-F", "-e", &secret])
        .arg(env.machine.cache())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files that hold the secret");
}

#[test]
fn mount_that_cannot_be_restored_is_reported_and_removable() {
    let (machine, source) = machine_with_tree();
    let agent = machine.agent("");
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    agent.stop();
    fs::remove_dir(&point).unwrap();
    let agent = machine.agent("");
    let status = agent.status();
    assert_eq!(status["lost"][0]["mountpoint"], text(&point), "{status}");
    let ran = machine.run(&["status", "--cache-dir", text(machine.cache())]);
    assert!(ran.out.contains("not restored: "), "{}{}", ran.out, ran.err);
    ran.fails(&[text(&point), "not restored: "]);
    let reason = format!("cannot be mounted at {}", text(&point));
    eventually("it is logged", || agent.log().contains(&reason));
    assert!(!agent.log().contains("***"), "{}", agent.log());
    let id = status["lost"][0]["id"].to_string();
    assert_eq!(agent.ask("DELETE", &format!("/v1/mounts/{id}"), "").code, 200);
    assert!(agent.status().get("lost").is_none());
    agent.stop();
    let agent = machine.agent("");
    assert!(agent.status().get("lost").is_none());
    // What comes in its place ends it, too.
    let point = machine.mount(&source, "mnt");
    agent.stop();
    fs::remove_dir(&point).unwrap();
    let agent = machine.agent("");
    assert_eq!(agent.status()["lost"].as_array().unwrap().len(), 1);
    let point = machine.mount(&source, "mnt");
    assert!(agent.status().get("lost").is_none());
    agent.stop();
    let agent = machine.agent("");
    assert!(is_mounted(&point), "{}", agent.log());
    assert_same_tree(&source, &point);
}

#[test]
fn mount_whose_record_cannot_be_read_is_reported_until_it_is_unmounted() {
    let (machine, source) = machine_with_tree();
    for (number, (content, survives)) in [("", true), ("{", false)].into_iter().enumerate() {
        let agent = machine.agent("");
        let point = machine.mount(&source, &format!("mnt{number}"));
        if survives {
            agent.crash()
        } else {
            agent.stop()
        }
        let mut records = fs::read_dir(machine.cache().join("state/mounts")).unwrap();
        let record = records.next().unwrap().unwrap().path();
        fs::write(&record, content).unwrap();
        let agent = machine.agent("");
        // The fd store knows where a mount was that outlived its agent.
        let shown = if survives { point } else { record.clone() };
        let status = || machine.run(&["status", "--cache-dir", text(machine.cache())]);
        status().fails(&[text(&shown), "not restored: ", "cannot be read"]);
        machine.run(&["umount", text(&shown)]).succeeds();
        status().succeeds();
        assert!(!record.exists());
        agent.stop();
    }
}

#[test]
fn wait_for_a_mount_whose_agent_is_gone_says_so() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    // First, or it would start the next agent.
    machine.kill_fdstore();
    kill_and_wait(&machine.agent_pids());
    machine.run(&["wait", text(&point)]).fails(&["the agent of the mount is gone; unmount it with"]);
    machine.umount(&point);
}

#[test]
fn umount_of_what_an_agent_with_a_socket_of_its_own_has_lost_ends_it() {
    let (machine, source) = machine_with_tree();
    let config = format!("socket = {:?}", machine.directory("run").join("own.sock"));
    let agent = machine.agent(&config);
    let [dead, lost, kept] = ["dead", "lost", "kept"].map(|name| machine.mount(&source, name));
    agent.crash();
    machine.kill_fdstore();
    eventually("no process serves it", || {
        fs::metadata(&dead).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
    machine.umount(&dead);
    machine.umount(&lost);
    fs::remove_dir(&lost).unwrap();
    // There is a record of it still.
    let agent = machine.agent(&config);
    assert!(is_mounted(&kept), "{}", agent.log());
    assert_eq!(agent.status()["lost"][0]["mountpoint"], text(&lost));
    machine.run(&["umount", text(&lost)]).succeeds();
    assert!(agent.status().get("lost").is_none());
    machine.run(&["umount", text(&lost)]).fails(&["does not exist"]);
    agent.stop();
}
