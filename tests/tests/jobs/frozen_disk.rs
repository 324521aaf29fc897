//! Jobs of an agent whose cache is on a disk that hangs for a while.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::json;

use super::kit::{events, spec, submitted, text, toml};

/// Time enough for what is done at once.
const MOMENT: Duration = Duration::from_secs(1);

#[test]
fn job_whose_client_goes_away_while_it_is_accepted_runs() {
    let Some(disk) = LoopDisk::new(256 << 20) else { return };
    let machine = Machine::new().with_cache(&disk.path().join("cache"));
    let agent = machine.agent("");
    let flag = machine.directory("flags").join("ran");
    let command = format!("touch {}", text(&flag));
    let request = json!({"weights": [], "start_commands": [command], "workdir": "/"}).to_string();
    let frozen = disk.freeze();
    let mut client = UnixStream::connect(agent.socket()).unwrap();
    let length = request.len();
    write!(client, "POST /v1/jobs HTTP/1.1\r\nHost: bdnfs\r\nContent-Length: {length}\r\n\r\n{request}")
        .unwrap();
    // Its directory is about to be made.
    sleep(MOMENT);
    drop(client);
    // The agent has noticed that.
    sleep(MOMENT);
    drop(frozen);
    eventually("the job has completed", || {
        agent.get("/v1/jobs/1").json()["state"] == "TRAINING_JOB_COMPLETED"
    });
    assert!(flag.exists());
    agent.stop();
}

#[test]
fn job_event_while_the_disk_hangs_keeps_no_client_waiting() {
    let Some(disk) = LoopDisk::new(256 << 20) else { return };
    let machine = Machine::new().with_cache(&disk.path().join("cache"));
    let agent = machine.agent("");
    let id = submitted(&machine, &[text(&spec(&machine, "job.toml", &toml(&[], &["sleep 1000"])))]);
    let status = || agent.get(&format!("/v1/jobs/{id}")).json();
    eventually("it runs", || status()["state"] == "TRAINING_JOB_RUNNING");
    let frozen = disk.freeze();
    std::thread::scope(|scope| {
        // It is answered when it is on the disk.
        let stopped = scope.spawn(|| agent.ask("POST", &format!("/v1/jobs/{id}/stop"), "").code);
        eventually("it is asked to end", || {
            events(&status()).iter().any(|event| event.contains("asked to end"))
        });
        for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
            assert_eq!(agent.get("/v1/jobs").code, 200);
        }
        drop(frozen);
        assert_eq!(stopped.join().unwrap(), 200);
    });
    eventually("it has ended", || status()["state"] == "TRAINING_JOB_STOPPED");
    let (before, number) = (status()["events"].clone(), id.clone());
    agent.crash();
    let agent = machine.agent("");
    assert_eq!(agent.get(&format!("/v1/jobs/{number}")).json()["events"], before, "all are on the disk");
    agent.stop();
}
