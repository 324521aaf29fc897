//! A job's checkpoints after a power cut of the node.

use std::fs;

use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, kill_and_wait, processes_with_open};

use super::kit::{events, text};
use super::saving::{Files, SavingMachine, checkpoints, file, start};

#[test]
fn checkpoints_after_power_cut_are_saved_as_sealed_or_listed_torn() {
    let Some(disk) = LoopDisk::new(1 << 30) else { return };
    let machine = Machine::new()
        .with_cache(&disk.path().join("cache"))
        .env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
    let mut saving = SavingMachine { agent: start(&machine), machine };
    // One of them is saved before, and the mirror is away then.
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "cut",
        &format!(
            "cd $BT_CHECKPOINT_DIR && write() {{ mkdir -p $1 && echo $1 $2 > $1/model && touch $1/.metadata; }}
             write whole one; while [ ! -e {0}/away ]; do sleep 0.1; done; write whole two; write kept; write torn
             while [ ! -e {0}/go ]; do sleep 0.1; done
             echo changed > torn/model; echo changed > whole/model; mkdir late; echo late > late/model; sync; sleep 1000",
            text(&flag)
        ),
    );
    saving.await_event(&number, "saved whole (generation 1, complete)");
    saving.take_mirror_away();
    fs::write(flag.join("away"), "").unwrap();
    eventually("all are sealed", || {
        let all = checkpoints(&saving.status(&number));
        all.len() == 3 && all.iter().all(|(_, state, ..)| state == "sealed")
    });
    let volume = disk.path().join("volumes/default/jobs/cut");
    fs::write(flag.join("go"), "").unwrap();
    eventually("it is on the disk", || volume.join("checkpoints/late/model").exists());
    rustix::fs::sync();
    disk.cut();
    kill_and_wait(&saving.machine.supervisors());
    // The agent, which ends them otherwise, is gone before it is told.
    let is_command = |name: &str| matches!(name, "sh" | "sleep");
    kill_and_wait(&processes_with_open(is_command, |path| path.starts_with(disk.path())));
    saving.machine.reset();
    // The kernel lets the job's namespace go a moment after its processes, and the disk with it.
    eventually("the disk is read again", || {
        disk.restore();
        fs::read_to_string(volume.join("saver.json")).is_ok()
    });
    // What the machine's next boot would be told by.
    let record = fs::read_to_string(volume.join("saver.json")).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(record.contains(boot.trim()));
    fs::write(volume.join("saver.json"), record.replace(boot.trim(), "another")).unwrap();
    saving.bring_mirror_back();
    saving.agent = start(&saving.machine);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    assert_eq!(
        saving.files("bt://p@cut/kept"),
        Some(Files::from([file("model", "kept\n"), file(".metadata", "")]))
    );
    let before = Files::from([file("model", "whole one\n"), file(".metadata", "")]);
    assert_eq!(saving.files("bt://p@cut/whole"), Some(before), "not replaced by a part");
    let torn = saving.files("bt://p@cut/torn");
    assert!(torn.is_none_or(|files| files == Files::from([file(".metadata", "")])), "only what was sealed");
    assert!(saving.files("bt://p@cut/late").is_none(), "never sealed");
    let reported = events(&status);
    assert!(
        reported.iter().any(|event| event.starts_with("torn is torn by a power cut, kept in ")),
        "{reported:?}"
    );
    assert_eq!(fs::read_to_string(volume.join("checkpoints/torn/model")).unwrap(), "changed\n", "kept");
    saving.verify();
}
