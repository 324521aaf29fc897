//! The right bytes, however they are read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

use bdnfs_tests::bdnfs::{eventually, local};
use bdnfs_tests::proxy::Weather;
use bdnfs_tests::tree::{Dice, compare_file, content, same};
use bdnfs_tests::world::World;
use memmap2::Mmap;

const MIB: usize = 1 << 20;

/// A bucket with one file of `len` bytes, mounted, nothing of it local.
fn cold(len: usize) -> (World, Vec<u8>, std::path::PathBuf) {
    let world = World::new();
    let bytes = world.put("weights.bin", len);
    let point = world.machine.mount("s3://bucket", "mnt");
    (world, bytes, point.join("weights.bin"))
}

fn map(file: &File) -> Mmap {
    // SAFETY: nobody can write to a file in a read-only file system.
    unsafe { Mmap::map(file).unwrap() }
}

#[test]
fn reads_at_random_are_those_of_the_original() {
    let (_world, bytes, path) = cold(24 * MIB + 12_345);
    let (file, mut dice) = (File::open(path).unwrap(), Dice(1));
    for _ in 0..400 {
        let at = dice.below(bytes.len() as u64 + 4096) as usize;
        let longest = if dice.below(4) == 0 { 5 * MIB as u64 } else { 20_000 };
        let mut read = vec![0; dice.below(longest) as usize];
        let len = file.read_at(&mut read, at as u64).unwrap();
        let expected = &bytes[at.min(bytes.len())..(at + read.len()).min(bytes.len())];
        same(expected, &read[..len], &format!("a read of {} bytes at {at}", read.len()));
    }
}

#[test]
fn a_mapping_made_before_the_file_was_whole_stays_right() {
    let (world, bytes, path) = cold(24 * MIB + 77);
    let early = File::open(&path).unwrap();
    let mapping = map(&early);
    world.proxy.set(Weather { rate: Some(64 << 20), ..Weather::default() });
    let others: Vec<_> = (0..4)
        .map(|seed| {
            let (path, bytes) = (path.clone(), bytes.clone());
            thread::spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..60 {
                    let at = dice.below(bytes.len() as u64 - 10_000) as usize;
                    let mapping = map(&File::open(&path).unwrap());
                    same(&bytes[at..at + 10_000], &mapping[at..at + 10_000], "a mapping while it fills");
                }
            })
        })
        .collect();
    compare_file(&world.bucket().join("weights.bin"), &path);
    for other in others {
        other.join().unwrap();
    }
    eventually("the file is whole", || local(&path));
    let late = File::open(&path).unwrap();
    same(&bytes, &map(&late), "a mapping of the whole file");
    same(&bytes, &mapping, "the mapping from before");
    same(&bytes, &map(&early), "a new mapping of the old descriptor");
    same(&bytes, &fs::read(&path).unwrap(), "a plain read beside them");
}

#[test]
fn a_descriptor_opened_before_the_file_was_whole_stays_right() {
    // The kernel opens small files by itself, large ones through the daemon.
    for len in [8 * MIB + 3, 24 * MIB + 3] {
        opened_early(len);
    }
}

fn opened_early(len: usize) {
    let (world, bytes, path) = cold(len);
    let early = File::open(&path).unwrap();
    let mut read = vec![0; 10_000];
    early.read_exact_at(&mut read, 1000).unwrap();
    compare_file(&world.bucket().join("weights.bin"), &path);
    eventually("the file is whole", || local(&path));
    let late = File::open(&path).unwrap();
    for at in (0..bytes.len() - read.len()).step_by(MIB / 3) {
        for (file, which) in [(&early, "early"), (&late, "late")] {
            file.read_exact_at(&mut read, at as u64).unwrap();
            same(&bytes[at..at + read.len()], &read, which);
        }
    }
}

#[test]
fn sixteen_threads_share_a_descriptor() {
    let (_world, bytes, path) = cold(32 * MIB);
    let file = File::open(path).unwrap();
    thread::scope(|scope| {
        for (number, expected) in bytes.chunks(2 * MIB).enumerate() {
            let file = &file;
            scope.spawn(move || {
                let mut read = vec![0; expected.len()];
                file.read_exact_at(&mut read, (number * 2 * MIB) as u64).unwrap();
                same(expected, &read, &format!("range {number}"));
            });
        }
    });
}

#[test]
fn an_empty_file_reads_and_maps_as_elsewhere() {
    let world = World::new();
    world.put("empty", 0);
    world.put("other", 10);
    let point = world.machine.mount("s3://bucket", "mnt");
    assert!(fs::read(point.join("empty")).unwrap().is_empty());
    assert_eq!(world.fetched("empty").requests, 0);
    same(&content("other", 10), &fs::read(point.join("other")).unwrap(), "other");
}
