//! Power cuts: what was called durable is there afterwards, and what was not does no harm.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bdnfs_tests::MIB;
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::wait_for_exit;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{Rng, assert_same_tree, write_file};

/// Room for all that a test writes.
const DISK_BYTES: u64 = 1 << 30;

/// How many cuts are made in the middle of something. More of them: CUTS=50 cargo nextest run -p bdnfs-tests -E
/// 'test(power_loss::)'
fn cut_count() -> u32 {
    std::env::var("CUTS").map_or(3, |cuts| cuts.parse().unwrap())
}

/// Cuts the power of `disk` while `command` runs, which takes about `whole`, or just after.
fn cut_power_during(disk: &LoopDisk, mut command: Command, whole: Duration, rng: &mut Rng) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(whole * rng.below(120) as u32 / 100);
    disk.cut();
    child.kill().unwrap();
    wait_for_exit(&mut child, "a command without a disk");
}

#[test]
fn staged_snapshot_after_power_cut_is_local() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    // Few blobs, which are flushed one by one, and so many that the file system is.
    for (name, blobs) in [("few", 3), ("many", 300)] {
        for number in 0..blobs {
            env.put(&format!("{name}/{number}"), 9000 + number);
        }
        env.put(&format!("{name}/large"), 5 * MIB + 7);
        let source = format!("s3://bucket/{name}");
        machine.mount_with(&source, "mnt", &["--wait"]);
        disk.cut();
        machine.reset();
        disk.restore();
        env.s3.requests.clear();
        let point = machine.mount_with(&source, "mnt", &["--wait"]);
        assert_same_tree(&env.bucket().join(name), &point);
        assert_eq!(env.fetched("").bytes, 0, "{name}: nothing is fetched again");
        machine.umount(&point);
    }
}

#[test]
fn cache_cut_at_random_reads_no_wrong_byte() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    for number in 0..200 {
        env.put(&format!("d{}/{number}", number % 3), 3000 * number);
    }
    env.put("large", 70 * MIB + 7);
    let point = machine.directory("mnt");
    let stage = ["mount", "s3://bucket", point.to_str().unwrap(), "--wait", "--cache-dir"];
    let stage = [&stage[..], &[machine.cache().to_str().unwrap()]].concat();
    let begin = Instant::now();
    machine.run(&stage).succeeds();
    let whole = begin.elapsed();
    machine.umount(&point);
    let mut rng = Rng(7);
    for cut in 0..cut_count() {
        if cut % 2 == 0 {
            fs::remove_dir_all(machine.cache()).unwrap();
        }
        cut_power_during(&disk, machine.command(&stage), whole, &mut rng);
        machine.reset();
        disk.restore();
        let ran = machine.run(&stage);
        assert_eq!(ran.code, Some(0), "after cut {cut}: {}", ran.err);
        assert_same_tree(&env.bucket(), &point);
        machine.umount(&point);
    }
}

#[test]
fn local_mirror_after_power_cut_is_whole() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let machine = Machine::new();
    let (source, mirror) = (machine.directory("source"), disk.path().join("mirror"));
    for number in 0..300 {
        write_file(&source, format!("d{}/{number}", number % 3), 70 * number);
    }
    write_file(&source, "large", 70 * MIB + 7);
    let (from, to) = (source.to_str().unwrap(), format!("file://{}", mirror.display()));
    let add = ["mirror", "add", from, "--mirror", &to, "--memory", "32MiB"];
    let verify = ["mirror", "verify", "--deep", "--mirror", &to];
    let begin = Instant::now();
    machine.run(&add).succeeds();
    let whole = begin.elapsed();
    disk.cut();
    disk.restore();
    machine.run(&verify).succeeds();
    let output = machine.run(&[&add[..], &["--json"]].concat()).succeeds();
    assert!(output.contains("\"read\":0"), "nothing is read again: {output}");

    let mut rng = Rng(8);
    for cut in 0..cut_count() {
        if cut % 2 == 0 {
            fs::remove_dir_all(&mirror).unwrap();
        }
        write_file(&source, format!("new/{cut}"), 3 * MIB);
        cut_power_during(&disk, machine.command(&add), whole, &mut rng);
        disk.restore();
        for command in [&add[..], &verify] {
            let ran = machine.run(command);
            assert_eq!(ran.code, Some(0), "after cut {cut}: {}", ran.err);
        }
    }
}
