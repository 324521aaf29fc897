//! Pages of a large file that is not local, read at random: no more is fetched than they need.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_local};
use bdnfs_tests::process::eventually;
use bdnfs_tests::requests::RequestCount;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, content, write_file};
use bdnfs_tests::web::WebServer;
use tempfile::TempDir;

const PAGE: usize = 4096;
/// What is fetched for a page.
const FRAGMENT: usize = 64 << 10;
/// Files have so many blocks of 1 MiB.
const BLOCKS: usize = 64;

/// The place of a page in each block of a file, in an order that jumps; the first one lies in the first block.
fn places() -> impl Iterator<Item = usize> {
    (0..BLOCKS).map(|step| step * 37 % BLOCKS * MIB + (3 + step % 9) * FRAGMENT + step % 16 * PAGE)
}

fn assert_page(file: &File, bytes: &[u8], at: usize) {
    let mut page = [0; PAGE];
    file.read_exact_at(&mut page, at as u64).unwrap_or_else(|e| panic!("at {at}: {e}"));
    assert_same(&bytes[at..at + PAGE], &page, "a page");
}

/// Reads pages of the file at `path` at random, then all of it, and counts what is `fetched` for that.
fn read_at_random_then_in_order(bytes: &[u8], path: &Path, fetched: impl Fn() -> RequestCount) {
    let before = fetched();
    let file = File::open(path).unwrap();
    for _ in 0..2 {
        places().for_each(|at| assert_page(&file, bytes, at));
        // A block for the first read, which may be that of a sequence.
        let (requests, sent) = (fetched().requests - before.requests, fetched().bytes - before.bytes);
        assert_eq!(sent, (MIB + (BLOCKS - 1) * FRAGMENT) as u64, "{requests} requests");
        assert_eq!(requests, BLOCKS as u64);
        drop_caches();
    }
    assert_same(bytes, &fs::read(path).unwrap(), "all of it");
    let sent = fetched().bytes - before.bytes;
    assert_eq!(sent, (BLOCKS * MIB + (BLOCKS - 1) * FRAGMENT) as u64, "blocks come whole and once");
    eventually("it is local", || is_local(path));
}

#[test]
fn pages_of_an_object_at_random_are_fetched_by_64_kib() {
    let (env, bytes, path) = TestEnv::mount_cold(BLOCKS * MIB);
    read_at_random_then_in_order(&bytes, &path, || env.fetched("weights.bin"));
}

#[test]
fn pages_of_a_web_file_at_random_are_fetched_by_64_kib() {
    let (root, machine) = (TempDir::new().unwrap(), Machine::new());
    let bytes = write_file(root.path(), "model.bin", BLOCKS * MIB);
    let web = WebServer::start(root.path());
    let path = machine.mount(web.url("model.bin"), "mnt").join("model.bin");
    read_at_random_then_in_order(&bytes, &path, || web.requests.gets("model.bin"));
}

#[test]
fn pages_of_a_mirrored_file_at_random_are_fetched_by_verified_blocks() {
    let env = TestEnv::new();
    let bytes = env.put("weights.bin", BLOCKS * MIB);
    env.mirror();
    let before = env.mirrored().bytes;
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--mirror", "s3://mirror"]);
    let file = File::open(point.join("weights.bin")).unwrap();
    places().take(8).for_each(|at| assert_page(&file, &bytes, at));
    assert!(env.mirrored().bytes - before >= 4 * MIB as u64, "check values are those of blocks");
}

#[test]
fn block_read_often_at_random_becomes_local() {
    let (env, bytes, path) = TestEnv::mount_cold(BLOCKS * MIB);
    let file = File::open(&path).unwrap();
    assert_page(&file, &bytes, 0);
    let before = env.fetched("weights.bin").bytes;
    // Further apart than the reads of a sequence are.
    for fragment in [9, 1, 13, 5, 11, 7, 3, 15] {
        assert_page(&file, &bytes, 40 * MIB + fragment * FRAGMENT);
        assert_page(&file, &bytes, 7 * MIB);
    }
    let sent = (env.fetched("weights.bin").bytes - before) as usize;
    assert_eq!(sent, FRAGMENT + 4 * FRAGMENT + MIB, "a page, four fragments and then the block");
}

#[test]
fn readers_of_one_page_at_once_make_one_request() {
    let (env, bytes, path) = TestEnv::mount_cold(BLOCKS * MIB);
    let direct = || OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let files: Vec<File> = (0..8).map(|_| direct()).collect();
    files.iter().for_each(|file| assert_page(file, &bytes, 0));
    let (before, barrier) = (env.fetched("weights.bin"), Barrier::new(files.len()));
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                barrier.wait();
                assert_page(file, &bytes, 40 * MIB + 5 * FRAGMENT);
            });
        }
    });
    let after = env.fetched("weights.bin");
    assert_eq!((after.requests - before.requests, after.bytes - before.bytes), (1, FRAGMENT as u64));
}

#[test]
fn object_changed_among_random_pages_fails_with_ebadmsg() {
    let (env, bytes, path) = TestEnv::mount_cold(BLOCKS * MIB);
    let file = File::open(&path).unwrap();
    places().take(8).for_each(|at| assert_page(&file, &bytes, at));
    fs::write(env.bucket().join("weights.bin"), content("changed", BLOCKS * MIB)).unwrap();
    drop_caches();
    places().take(8).for_each(|at| assert_page(&file, &bytes, at));
    for at in places().skip(8) {
        let error = file.read_exact_at(&mut [0; PAGE], at as u64).expect_err("another version");
        assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "at {at}: {error}");
    }
}
