//! The right bytes, however they are read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

use bdnfs_tests::MIB;
use bdnfs_tests::mounts::is_local;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{Rng, assert_same, assert_same_file, content};
use memmap2::Mmap;

fn map(file: &File) -> Mmap {
    // SAFETY: no process can write to a file in a read-only file system.
    unsafe { Mmap::map(file).unwrap() }
}

#[test]
fn read_at_random_offsets_equals_original() {
    let (_env, bytes, path) = TestEnv::mount_cold(24 * MIB + 12_345);
    let (file, mut rng) = (File::open(path).unwrap(), Rng(1));
    for _ in 0..400 {
        let at = rng.below(bytes.len() as u64 + 4096) as usize;
        let longest = if rng.below(4) == 0 { 5 * MIB as u64 } else { 20_000 };
        let mut read = vec![0; rng.below(longest) as usize];
        let len = file.read_at(&mut read, at as u64).unwrap();
        let expected = &bytes[at.min(bytes.len())..(at + read.len()).min(bytes.len())];
        assert_same(expected, &read[..len], &format!("a read of {} bytes at {at}", read.len()));
    }
}

#[test]
fn mmap_before_file_is_local_stays_right() {
    let (env, bytes, path) = TestEnv::mount_cold(24 * MIB + 77);
    let early = File::open(&path).unwrap();
    let mapping = map(&early);
    env.proxy.set(NetworkFault { rate: Some(64 << 20), ..NetworkFault::default() });
    let others: Vec<_> = (0..4)
        .map(|seed| {
            let (path, bytes) = (path.clone(), bytes.clone());
            thread::spawn(move || {
                let mut rng = Rng(seed);
                for _ in 0..60 {
                    let at = rng.below(bytes.len() as u64 - 10_000) as usize;
                    let mapping = map(&File::open(&path).unwrap());
                    assert_same(
                        &bytes[at..at + 10_000],
                        &mapping[at..at + 10_000],
                        "a mapping while it fills",
                    );
                }
            })
        })
        .collect();
    assert_same_file(&env.bucket().join("weights.bin"), &path);
    for other in others {
        other.join().unwrap();
    }
    eventually("the file is whole", || is_local(&path));
    let late = File::open(&path).unwrap();
    assert_same(&bytes, &map(&late), "a mapping of the whole file");
    assert_same(&bytes, &mapping, "the mapping from before");
    assert_same(&bytes, &map(&early), "a new mapping of the old descriptor");
    assert_same(&bytes, &fs::read(&path).unwrap(), "a plain read beside them");
}

#[test]
fn descriptor_opened_before_file_is_local_stays_right() {
    // The kernel opens small files by itself, large ones through the agent.
    for len in [8 * MIB + 3, 24 * MIB + 3] {
        opened_early(len);
    }
}

fn opened_early(len: usize) {
    let (env, bytes, path) = TestEnv::mount_cold(len);
    let early = File::open(&path).unwrap();
    let mut read = vec![0; 10_000];
    early.read_exact_at(&mut read, 1000).unwrap();
    assert_same_file(&env.bucket().join("weights.bin"), &path);
    eventually("the file is whole", || is_local(&path));
    let late = File::open(&path).unwrap();
    for at in (0..bytes.len() - read.len()).step_by(MIB / 3) {
        for (file, which) in [(&early, "early"), (&late, "late")] {
            file.read_exact_at(&mut read, at as u64).unwrap();
            assert_same(&bytes[at..at + read.len()], &read, which);
        }
    }
}

#[test]
fn read_by_sixteen_threads_of_one_descriptor_is_right() {
    let (_env, bytes, path) = TestEnv::mount_cold(32 * MIB);
    let file = File::open(path).unwrap();
    thread::scope(|scope| {
        for (number, expected) in bytes.chunks(2 * MIB).enumerate() {
            let file = &file;
            scope.spawn(move || {
                let mut read = vec![0; expected.len()];
                file.read_exact_at(&mut read, (number * 2 * MIB) as u64).unwrap();
                assert_same(expected, &read, &format!("range {number}"));
            });
        }
    });
}

#[test]
fn empty_file_reads_as_empty_without_request() {
    let env = TestEnv::new();
    env.put("empty", 0);
    env.put("other", 10);
    let point = env.machine.mount("s3://bucket", "mnt");
    assert!(fs::read(point.join("empty")).unwrap().is_empty());
    assert_eq!(env.fetched("empty").requests, 0);
    assert_same(&content("other", 10), &fs::read(point.join("other")).unwrap(), "other");
}
