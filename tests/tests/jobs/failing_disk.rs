//! Checkpoints on a disk that fails to write them.

use std::fs;

use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;

use super::kit::{events, text};
use super::saving::{SavingMachine, start};

#[test]
fn checkpoint_that_a_disk_failed_to_write_is_not_saved_before_it_is_written_again() {
    assert_saved_when_written_again(3);
}

#[test]
fn checkpoint_of_many_files_that_a_disk_failed_to_write_is_not_saved_before_it_is_written_again() {
    // Many are made durable together.
    assert_saved_when_written_again(100);
}

/// Asserts that a checkpoint of so many files is not saved as memory still has it where the disk failed to write it, whoever looks, but
/// when it is written again.
fn assert_saved_when_written_again(count: usize) {
    let Some(disk) = LoopDisk::thin(64 << 20) else { return };
    let machine = Machine::new().env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
    let saving = SavingMachine { agent: start(&machine), machine };
    let flags = saving.machine.directory("flags");
    // Its directory is on the disk, and has a writer.
    let number = saving.submit(
        "job",
        &format!(
            "cd $BT_CHECKPOINT_DIR && mkdir one two
             for number in $(seq {count}); do : > one/model-$number; done
             await() {{ touch {0}/$1-awaited; until [ -e {0}/$1 ]; do sleep 0.1; done; }}
             write() {{ for number in $(seq {count}); do head -c 10000 /dev/urandom > one/model-$number; done; : > one/.metadata; }}
             exec 3>> one/model-1; sync; await full; write; exec 3>&-
             await empty; echo two > two/model; await again; write; await end",
            text(&flags)
        ),
    );
    let awaited = |name: &str| flags.join(format!("{name}-awaited")).exists();
    let told = || events(&saving.status(&number));
    let is_told = |begin: &str| told().iter().any(|event| event.starts_with(begin));
    let log = disk.path().join("volumes/default/jobs/job/saver.log");
    let is_logged = || fs::read_to_string(&log).unwrap_or_default().contains("cannot make ");
    eventually("the job has begun", || awaited("full"));
    disk.fill_store();
    fs::write(flags.join("full"), "").unwrap();
    eventually("the saver meets the fault", is_logged);
    disk.empty_store();
    let refused = "\"one\" cannot be saved: the disk failed to write one/model-";
    eventually("it is told", || is_told(refused));
    // The next saver knows it, too.
    saving.machine.kill_savers();
    fs::write(flags.join("empty"), "").unwrap();
    saving.await_event(&number, "saved two (generation 1");
    assert!(!is_told("saved one"), "{:?}", told());
    assert_eq!(saving.files("bt://p@job/one"), None);
    fs::write(flags.join("again"), "").unwrap();
    saving.await_event(&number, "saved one (generation 1, complete)");
    assert_eq!(saving.files("bt://p@job/one").map(|files| files.len()), Some(count + 1));
    saving.machine.run(&["job", "stop", &number]).succeeds();
    saving.ended(&number);
    saving.agent.stop();
}
