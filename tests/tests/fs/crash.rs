//! A process that is killed under its mount.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::{self, sleep};
use std::time::Duration;

use bdnfs_tests::bdnfs::{Machine, mounted};
use bdnfs_tests::proxy::Weather;
use bdnfs_tests::tree::{Dice, compare, grow, same};
use bdnfs_tests::world::World;

const MIB: usize = 1 << 20;

#[test]
fn killed_at_random_points_and_mounted_again() {
    let world = World::new();
    grow(&world.bucket());
    world.put("large", 24 * MIB);
    world.proxy.set(Weather { rate: Some(24 << 20), ..Weather::default() });
    let (point, mut dice) = (world.machine.directory("mnt"), Dice(9));
    for round in 0..6 {
        world.machine.try_mount("s3://bucket", &point, &[]).succeeds();
        let readers: Vec<_> = ["large", "sizes/blocks", "sizes/block+1"]
            .map(|name| (world.bucket().join(name), point.join(name)))
            .into_iter()
            .map(|(original, mounted)| thread::spawn(move || prefix(&original, &mounted)))
            .collect();
        sleep(Duration::from_millis(dice.below(900)));
        world.machine.crash();
        for reader in readers {
            reader.join().unwrap();
        }
        assert!(mounted(&point), "round {round}: a dead mount is there until it is replaced");
    }
    world.proxy.set(Weather::default());
    world.machine.try_mount("s3://bucket", &point, &[]).succeeds();
    compare(&world.bucket(), &point);
}

/// Reads until an error; what came before is right.
fn prefix(original: &Path, mounted: &Path) {
    let mut read = Vec::new();
    let _ = File::open(mounted).and_then(|mut file| file.read_to_end(&mut read));
    same(&fs::read(original).unwrap()[..read.len()], &read, "what was read before the crash");
}

#[test]
fn a_mountpoint_of_a_dead_daemon_is_replaced() {
    let machine = Machine::new();
    let source = machine.directory("source");
    grow(&source);
    let point: PathBuf = machine.mount(&source, "mnt");
    machine.crash();
    assert!(fs::read_dir(&point).is_err());
    machine.try_mount(&source, &point, &[]).succeeds();
    compare(&source, &point);
}
