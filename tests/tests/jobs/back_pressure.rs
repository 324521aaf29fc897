//! Jobs whose checkpoints have no room, or a mirror that is slower than they are.

use std::fs;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use serde_json::Value;

use super::kit::{events, job, spec, submitted, text, toml};
use super::saving::{Files, SavingMachine, checkpoints, file, saved, saving_spec, start};

/// A machine whose volumes are on a disk of their own, of some 60 MB.
fn on_small_disk() -> Option<(SavingMachine, LoopDisk)> {
    let disk = LoopDisk::new(64 << 20)?;
    let machine = Machine::new().env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
    let agent = start(&machine);
    Some((SavingMachine { machine, agent }, disk))
}

#[test]
fn checkpoint_written_before_the_disk_was_full_is_saved_while_it_is_and_later_ones_after_it() {
    let Some((saving, disk)) = on_small_disk() else { return };
    let flags = saving.machine.directory("flags");
    // It fills the disk before the first can be sealed, to the last block, and keeps it full.
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir step-1 tmp-2 && echo one > step-1/model && echo {{}} > step-1/.metadata && \
         for n in 1 2 3 4 5; do cat /dev/zero 2>&1 >> tmp-2/model; echo \"cat: $?\"; sync; done; touch {0}/full; \
         while [ ! -e {0}/go ]; do sleep 0.1; done; rm -r tmp-2 && mkdir step-3 && echo three > step-3/model",
        text(&flags)
    );
    let number = saving.submit("full", &command);
    eventually("the disk is full", || flags.join("full").exists());
    // ext4 keeps some blocks for itself, which nobody gets.
    let is_full = || rustix::fs::statvfs(disk.path()).unwrap().f_bavail == 0;
    assert!(is_full() && fs::write(disk.path().join("more"), [1; 100_000]).is_err());
    eventually("the first is saved", || {
        checkpoints(&saving.status(&number)).contains(&saved("step-1", true, 1))
    });
    assert!(is_full(), "it was full all the time");
    fs::write(flags.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    let log = job(&saving.machine, &["logs", &number]).succeeds();
    assert!(log.contains("No space left on device") && log.contains("cat: 1"), "{log}");
    let first = Files::from([file("model", "one\n"), file(".metadata", "{}\n")]);
    assert_eq!(saving.files("bt://p@full/step-1"), Some(first));
    assert_eq!(saving.files("bt://p@full/step-3"), Some(Files::from([file("model", "three\n")])));
    saving.verify();
}

#[test]
fn job_that_fails_on_a_full_disk_has_what_it_closed_saved() {
    let Some((saving, disk)) = on_small_disk() else { return };
    let number = saving.submit(
        "failed",
        "cd $BT_CHECKPOINT_DIR && mkdir step-1 && echo one > step-1/model && echo {} > step-1/.metadata && \
         mkdir tmp-2 && cat /dev/zero > tmp-2/model",
    );
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    assert_eq!(checkpoints(&status)[0], saved("step-1", true, 1), "{status}");
    let first = Files::from([file("model", "one\n"), file(".metadata", "{}\n")]);
    assert_eq!(saving.files("bt://p@failed/step-1"), Some(first));
    // Nothing holds the space any more.
    eventually("the disk is free again", || {
        let stat = rustix::fs::statvfs(disk.path()).unwrap();
        stat.f_bfree * stat.f_frsize > 40 << 20
    });
}

#[test]
fn checkpoints_over_their_volume_size_fail_the_job() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let path = text(&flags);
    // Space that is taken and never written, in a file that stays open.
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir step-1 tmp-2 && echo one > step-1/model && echo {{}} > step-1/.metadata && \
         exec 3> tmp-2/model && fallocate -l 900MiB tmp-2/model && while [ ! -e {path}/go ]; do sleep 0.1; done; \
         fallocate -l 1200MiB tmp-2/model && sleep 1000"
    );
    let config = "[runtime.checkpointing_config]\nenabled = true\nvolume_size_gib = 1\ncheckpoint_path = \"/mnt/saved\"\n";
    let file = spec(&saving.machine, "job.toml", &(toml(&[], &[&command]) + config));
    let number = submitted(&saving.machine, &["--id", "large", "--project", "p", text(&file)]);
    // It may be measured while the file grows.
    saving.await_event(&number, "/mnt/saved occupies ");
    assert_eq!(saving.status(&number)["state"], "TRAINING_JOB_RUNNING", "it is nearly full");
    // The saver has the lowest priority, and what it has not sealed when the job is killed may count as torn.
    saving.await_event(&number, "saved step-1 (generation 1, complete)");
    fs::write(flags.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    let why = status["why"]["message"].as_str().unwrap();
    assert!(why.starts_with("/mnt/saved occupies 1.") && why.contains("raise volume_size_gib"), "{why}");
    assert_eq!(checkpoints(&status)[0], saved("step-1", true, 1), "{status}");
}

#[test]
fn mirror_slower_than_the_job_is_told_in_bytes_and_minutes() {
    let env = TestEnv::new();
    env.put("any", 10);
    env.mirror();
    let machine = &env.machine;
    let agent: AgentProcess = machine.agent("[mirror]\nurl = \"s3://mirror\"\n");
    let flags = machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir step-1 && head -c 4000000 /dev/urandom > step-1/model && touch step-1/.metadata && \
         while [ ! -e {}/go ]; do sleep 0.1; done; \
         mkdir step-2 && head -c 60000000 /dev/urandom > step-2/model && touch step-2/.metadata && sleep 10",
        text(&flags)
    );
    env.proxy.set(NetworkFault { rate: Some(1_000_000), ..NetworkFault::default() });
    let number = submitted(
        machine,
        &["--id", "slow", "--project", "p", text(&saving_spec(machine, "slow", &command))],
    );
    let status = || -> Value { agent.get(&format!("/v1/jobs/{number}")).json() };
    eventually("the first is saved", || checkpoints(&status()).contains(&saved("step-1", true, 1)));
    let rate = status()["saving"]["rate"].as_f64().unwrap();
    assert!((100_000.0..2_000_000.0).contains(&rate), "the mirror takes a megabyte a second: {rate}");
    fs::write(flags.join("go"), "").unwrap();
    eventually("what is still to be saved is told", || {
        status()["saving"]["backlog"].as_u64() > Some(30_000_000)
    });
    let shown = job(machine, &["show", &number]).succeeds();
    let line = shown.lines().find(|line| line.starts_with("saved 4.0 MB at ")).expect("a line of the rate");
    let (_, rest) = line.split_once("still to be saved ").expect("what is left");
    let words: Vec<_> = rest.split(' ').collect();
    let [bytes, "MB", "in", minutes, "minutes"] = words[..] else { panic!("{line}") };
    let (bytes, minutes): (f64, f64) = (bytes.parse().unwrap(), minutes.parse().unwrap());
    let expected = bytes * 1e6 / rate / 60.0;
    assert!((30.0..=60.0).contains(&bytes) && (minutes - expected).abs() < 0.2, "{line}, at {rate}");
    let listed = job(machine, &["ls"]).succeeds();
    assert!(listed.contains(" MB, ") && listed.contains(" min"), "{listed}");
    env.proxy.set(NetworkFault::default());
    eventually("the job ends", || !status()["ended"].is_null());
    assert_eq!(checkpoints(&status()), [saved("step-1", true, 1), saved("step-2", true, 1)], "{}", status());
    assert!(!events(&status()).iter().any(|event| event.starts_with("cannot save")), "{}", status());
}
