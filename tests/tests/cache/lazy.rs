//! Lazy reads: what no process reads is not fetched, and nothing is fetched twice.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use bdnfs_tests::MIB;
use bdnfs_tests::mounts::{drop_caches, is_local};
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{program, run};
use bdnfs_tests::tree::{assert_same, assert_same_tree, regular_files, total_bytes, write_tree};

#[test]
fn file_never_opened_is_never_fetched() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let point = env.machine.mount("s3://bucket", "mnt");
    run(program("find").arg(&point).args(["-type", "f", "-size", "+0", "-ls"]));
    run(program("du").arg("-a").arg(&point));
    drop(File::open(point.join("config.json")).unwrap());
    assert_eq!(env.fetched("").bytes, 0);
    fs::read(point.join("sizes/block")).unwrap();
    assert_eq!(env.fetched("").bytes, MIB as u64);
}

#[test]
fn file_read_in_part_is_fetched_in_part() {
    let env = TestEnv::new();
    let bytes = env.put("large", 64 * MIB);
    let point = env.machine.mount("s3://bucket", "mnt");
    let mut read = vec![0; 4096];
    for at in [60 * MIB, 30 * MIB, 5] {
        File::open(point.join("large")).unwrap().read_exact_at(&mut read, at as u64).unwrap();
        assert_same(&bytes[at..at + 4096], &read, "4 KiB");
    }
    let fetched = env.fetched("large").bytes;
    assert!(fetched < 32 * MIB as u64, "{fetched} bytes for three pages");
}

#[test]
fn small_files_read_in_order_are_fetched_ahead() {
    let env = TestEnv::new();
    for number in 0..200 {
        env.put(&format!("opened/small/{number:03}"), 5000);
        env.put(&format!("stateless/small/{number:03}"), 5000);
    }
    // Beside a large file the files of a mount are opened by requests, without one they are not.
    env.put("opened/large", 17 * MIB);
    for source in ["opened", "stateless"] {
        let small = env.machine.mount(format!("s3://bucket/{source}"), source).join("small");
        let read = |number: u32| drop(fs::read(small.join(format!("{number:03}"))).unwrap());
        let requests = |number: u32| env.fetched(&format!("{source}/small/{number:03}")).requests;
        [190, 150, 110, 170, 130].into_iter().for_each(read);
        (0..8).for_each(read);
        eventually("the next ones are fetched", || (8..24).all(|number| requests(number) == 1));
        (8..100).for_each(read);
        eventually("all of them are local", || is_local(&small.join("099")));
        for number in 0..200 {
            let most = u64::from(number < 100 + 64 || [170, 190].contains(&number));
            assert!(requests(number) <= most, "{source}: {number}: {} requests", requests(number));
        }
    }
}

#[test]
fn small_files_that_cannot_be_stored_are_not_fetched_ahead_for_long() {
    let env = TestEnv::new();
    for number in 0..200 {
        env.put(&format!("small/{number:03}"), 5000);
    }
    env.put("large", 17 * MIB);
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--cache-size", "4MiB"]);
    // As long as it is open, what is here of it fills the cache.
    let mut large = File::open(point.join("large")).unwrap();
    io::copy(&mut large, &mut io::sink()).unwrap();
    for number in 0..200 {
        fs::read(point.join(format!("small/{number:03}"))).unwrap();
    }
    let requests: u64 = (0..200).map(|number| env.fetched(&format!("small/{number:03}")).requests).sum();
    assert!((200..=240).contains(&requests), "{requests} requests for 200 files");
}

#[test]
fn block_in_cache_after_restart_is_not_fetched() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let point = env.machine.mount("s3://bucket", "mnt");
    assert_same_tree(&env.bucket(), &point);
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()));
    eventually("all is local", || regular_files(&point).iter().all(|(path, _)| is_local(&point.join(path))));

    let second = env.machine.mount("s3://bucket", "second");
    assert_same_tree(&env.bucket(), &second);
    env.machine.umount(&point);
    env.machine.umount(&second);
    let again = env.machine.mount("s3://bucket", "again");
    assert_same_tree(&env.bucket(), &again);
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()), "after mounting again");

    env.machine.crash();
    let after = env.machine.mount("s3://bucket", "after");
    assert_same_tree(&env.bucket(), &after);
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()), "after a crash");
}

#[test]
fn prefix_and_bucket_mounted_together_are_separate() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let all = env.machine.mount("s3://bucket", "all");
    let part = env.machine.mount("s3://bucket/sizes", "part");
    assert_same_tree(&env.bucket().join("sizes"), &part);
    assert_same_tree(&env.bucket(), &all);
}

#[test]
fn block_read_by_many_readers_is_fetched_once() {
    let env = TestEnv::new();
    for name in ["one", "two"] {
        env.put(name, 24 * MIB + 5);
    }
    let points = ["first", "second"].map(|name| env.machine.mount("s3://bucket", name));
    let readers: Vec<_> = (0..16)
        .map(|number| {
            let (bucket, point): (PathBuf, PathBuf) = (env.bucket(), points[number % 2].clone());
            thread::spawn(move || assert_same_tree(&bucket, &point))
        })
        .collect();
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()));
}

#[test]
fn stage_finished_makes_every_file_local() {
    let mut env = TestEnv::new();
    write_tree(&env.bucket());
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]);
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()));
    env.s3.server.stop();
    drop_caches();
    assert_same_tree(&env.bucket(), &point);
    assert!(regular_files(&point).iter().all(|(path, _)| is_local(&point.join(path))));
}

#[test]
fn patterns_given_select_what_is_mounted_and_staged() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let options = ["--allow", "sizes/*", "--allow", "*.json", "--ignore", "*blocks", "--wait"];
    let point = env.machine.mount_with("s3://bucket", "mnt", &options);
    let names = |path: &Path| fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let mut top = names(&point);
    top.sort();
    assert_eq!(top, ["config.json", "sizes"]);
    assert!(!names(&point.join("sizes")).contains(&"blocks".into()));
    assert_eq!(env.fetched("blocks").requests, 0);
    assert_eq!(env.fetched("").bytes, total_bytes(&point));
}

#[test]
fn cache_at_its_limit_evicts() {
    let env = TestEnv::new();
    for number in 0..8 {
        env.put(&format!("file-{number}"), 4 * MIB);
    }
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--cache-size", "13MiB"]);
    assert_same_tree(&env.bucket(), &point);
    assert_same_tree(&env.bucket(), &point);
    // A MiB more for what keeps account of the blobs.
    let blobs = env.machine.cache().join("tenants");
    let used = || regular_files(&blobs).iter().map(|(_, meta)| meta.blocks() * 512).sum::<u64>();
    eventually("the cache is below its limit", || used() <= 14 << 20);
}
