//! How a machine of the test kit ends what runs on it.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::wait_for_exit;

#[test]
fn kill_savers_ends_one_that_has_not_named_itself_yet() {
    let machine = Machine::new();
    let volume = machine.directory("volumes/default/jobs/new");
    // As the thread of the agent that starts one, whose name it has at first.
    let program = machine.directory("bin").join("tokio-rt-worker");
    fs::copy("/bin/sleep", &program).unwrap();
    let log = File::create(volume.join("saver.log")).unwrap();
    let mut saver = Command::new(program).arg0("sleep").arg("1000").stderr(log).spawn().unwrap();
    machine.kill_savers();
    let status = wait_for_exit(&mut saver, "a saver");
    assert_eq!(status.signal(), Some(9), "{status}");
}
