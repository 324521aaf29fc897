//! A process that is killed under its mount.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::{TestEnv, machine_with_tree};
use bdnfs_tests::tree::{Rng, assert_same, assert_same_tree, write_tree};

#[test]
fn agent_killed_at_random_mounts_again() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    env.put("large", 24 * MIB);
    env.proxy.set(NetworkFault { rate: Some(24 << 20), ..NetworkFault::default() });
    let (point, mut rng) = (env.machine.directory("mnt"), Rng(9));
    for round in 0..6 {
        env.machine.try_mount("s3://bucket", &point, &[]).succeeds();
        let readers: Vec<_> = ["large", "sizes/blocks", "sizes/block+1"]
            .map(|name| (env.bucket().join(name), point.join(name)))
            .into_iter()
            .map(|(original, mounted)| thread::spawn(move || prefix(&original, &mounted)))
            .collect();
        sleep(Duration::from_millis(rng.below(900)));
        env.machine.crash();
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(is_mounted(&point), "round {round}: a dead mount is there until it is replaced");
    }
    env.proxy.set(NetworkFault::default());
    env.machine.try_mount("s3://bucket", &point, &[]).succeeds();
    assert_same_tree(&env.bucket(), &point);
}

/// Reads until an error; what came before is right.
fn prefix(original: &Path, mounted: &Path) {
    let mut read = Vec::new();
    let _ = File::open(mounted).and_then(|mut file| file.read_to_end(&mut read));
    assert_same(&fs::read(original).unwrap()[..read.len()], &read, "what was read before the crash");
}

#[test]
fn mount_point_of_dead_agent_is_replaced() {
    let (machine, source) = machine_with_tree();
    let point: PathBuf = machine.mount(&source, "mnt");
    machine.crash();
    assert!(fs::read_dir(&point).is_err());
    machine.try_mount(&source, &point, &[]).succeeds();
    assert_same_tree(&source, &point);
}
