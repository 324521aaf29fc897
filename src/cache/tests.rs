//! The cache on a real directory: restarts, unclean stops, eviction.

use std::os::unix::fs::FileExt;
use std::sync::mpsc;

use bytes::Bytes;

use super::presence::State;
use super::*;
use crate::block::{Arrival, BLOCK, Verified};
use crate::digest::Digest;

const FREE: Limits = Limits { capacity: None, reserve: 0 };

fn open(root: &Path, limits: Limits) -> Cache {
    let cache = Cache::open(root, "default", limits, SystemTime::now).expect("a cache");
    while cache.room().used().is_none() {
        std::thread::yield_now();
    }
    cache
}

fn content(size: u64, seed: u64) -> Vec<u8> {
    (0..size).map(|i| (i ^ (i >> 7) ^ seed) as u8).collect()
}

fn key(seed: u64) -> Key {
    Key::origin("test://", b"file", &seed.to_le_bytes())
}

fn block(content: &[u8], index: u64) -> Verified {
    let start = (index * BLOCK) as usize;
    let end = content.len().min(start + BLOCK as usize);
    let bytes = Bytes::copy_from_slice(&content[start..end]);
    Arrival { size: content.len() as u64, index, bytes }.verify(None).expect("the right length")
}

fn fill(cache: &Cache, seed: u64, size: u64) -> Result<File> {
    let content = content(size, seed);
    let partial = cache.begin(&key(seed), size)?;
    for index in 0..partial.presence().blocks() {
        partial.put(&block(&content, index))?;
    }
    let (done, whole) = mpsc::channel();
    cache.committer().commit(partial, move |file| done.send(file).expect("the test waits"));
    whole.recv().expect("an answer")
}

#[test]
fn a_part_survives_a_restart_and_becomes_whole() {
    let home = tempfile::tempdir().expect("a directory");
    let size = 3 * BLOCK + 17;
    let bytes = content(size, 1);
    {
        let cache = open(home.path(), FREE);
        cache.begin(&key(1), size).expect("a part").put(&block(&bytes, 3)).expect("room");
    }
    let cache = open(home.path(), FREE);
    assert!(cache.whole(&key(1), size).expect("disk").is_none());
    let partial = cache.resume(&key(1), size).expect("disk").expect("the part is there");
    let states = [0, 1, 2, 3].map(|i| partial.presence().state(i));
    assert_eq!(states, [State::Absent, State::Absent, State::Absent, State::Present]);
    assert_eq!(partial.read(3 * BLOCK, 17).expect("disk"), bytes[3 << 20..]);
    drop(partial);
    let file = fill(&cache, 1, size).expect("committed");
    let mut digest = [0; 32];
    rustix::fs::fgetxattr(&file, commit::DIGEST_XATTR, &mut digest[..]).expect("the note");
    assert_eq!(Digest(digest), Digest::of(&bytes));
    assert!(cache.has(&key(1), size) && !cache.has(&key(1), size + 1));
    assert!(cache.resume(&key(1), size).expect("disk").is_none(), "the map is gone");
}

#[test]
fn after_an_unclean_stop_every_block_is_held_against_its_check() {
    let home = tempfile::tempdir().expect("a directory");
    let size = 3 * BLOCK;
    let bytes = content(size, 2);
    let cache = open(home.path(), FREE);
    let partial = cache.begin(&key(2), size).expect("a part");
    for index in 0..3 {
        partial.put(&block(&bytes, index)).expect("room");
    }
    // What a power cut may leave: a map from another life of the machine, and a block that never reached the disk.
    let map = cache.layout().create_blob(&key(2), Form::Map).expect("the map");
    map.write_all_at(&[7; 32], 24).expect("another stamp");
    partial.file().write_all_at(&[0; 4096], BLOCK + 4096).expect("lost bytes");
    drop(partial);
    let partial = cache.resume(&key(2), size).expect("disk").expect("the part is there");
    assert!((0..3).all(|i| partial.presence().state(i) == State::Doubted));
    partial.settle(0, None);
    partial.settle(1, None);
    drop(partial);
    // A second restart, within this life now: what was settled stays so, and the doubt that is left is still one.
    let partial = cache.resume(&key(2), size).expect("disk").expect("the part is there");
    let states = [0, 1, 2].map(|i| partial.presence().state(i));
    assert_eq!(states, [State::Present, State::Absent, State::Doubted]);
}

#[test]
fn what_was_not_used_for_longest_goes_first_and_what_is_leased_stays() {
    let home = tempfile::tempdir().expect("a directory");
    let cache = open(home.path(), Limits { capacity: Some(8 * BLOCK), reserve: 0 });
    for seed in 1..=4 {
        let file = fill(&cache, seed, 2 * BLOCK).expect("room");
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 1000 * seed as i64, tv_nsec: 0 },
            last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        };
        rustix::fs::futimens(&file, &times).expect("an old time of use");
    }
    let lease = cache.leases().lease(key(1));
    fill(&cache, 5, 2 * BLOCK).expect("room was made");
    let here = |cache: &Cache| [1, 2, 3, 4, 5].map(|seed| cache.has(&key(seed), 2 * BLOCK));
    assert_eq!(here(&cache), [true, false, true, true, true]);
    let all: Vec<_> = (1..=5).map(|seed| cache.leases().lease(key(seed))).collect();
    let error = fill(&cache, 6, 2 * BLOCK).expect_err("all is leased");
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("--cache-size"), "{error}");
    drop((lease, all));
    fill(&cache, 6, 2 * BLOCK).expect("room was made");
    assert_eq!(here(&cache), [false, false, true, true, true]);
}

#[test]
fn a_cache_has_one_owner() {
    let home = tempfile::tempdir().expect("a directory");
    let _first = open(home.path(), FREE);
    let error = Cache::open(home.path(), "default", FREE, SystemTime::now).expect_err("owned");
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().ends_with(&format!("in use by process {}", std::process::id())), "{error}");
}

#[test]
fn a_cache_of_another_format_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join("format"), "bdnfs cache 9\n").expect("written");
    let error = Cache::open(home.path(), "default", FREE, SystemTime::now).expect_err("newer");
    assert_eq!(error.kind(), Kind::Unsupported);
}
