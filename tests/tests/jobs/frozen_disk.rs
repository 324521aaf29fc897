//! Jobs of an agent whose cache is on a disk that hangs for a while.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::json;

use super::kit::text;

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
    disk.freeze();
    let mut client = UnixStream::connect(agent.socket()).unwrap();
    let length = request.len();
    write!(client, "POST /v1/jobs HTTP/1.1\r\nHost: bdnfs\r\nContent-Length: {length}\r\n\r\n{request}").unwrap();
    // Its directory is about to be made.
    sleep(MOMENT);
    drop(client);
    // The agent has noticed that.
    sleep(MOMENT);
    disk.thaw();
    eventually("the job has completed", || {
        agent.get("/v1/jobs/1").json()["state"] == "TRAINING_JOB_COMPLETED"
    });
    assert!(flag.exists());
    agent.stop();
}
