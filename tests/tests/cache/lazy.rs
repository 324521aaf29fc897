//! Nothing is fetched that nobody reads, and nothing twice.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;

use bdnfs_tests::bdnfs::{drop_caches, eventually, local};
use bdnfs_tests::tools::{run, tool};
use bdnfs_tests::tree::{compare, files, grow, same, total};
use bdnfs_tests::world::World;

const MIB: usize = 1 << 20;

#[test]
fn what_is_never_opened_is_never_fetched() {
    let world = World::new();
    grow(&world.bucket());
    let point = world.machine.mount("s3://bucket", "mnt");
    run(tool("find").arg(&point).args(["-type", "f", "-size", "+0", "-ls"]));
    run(tool("du").arg("-a").arg(&point));
    drop(File::open(point.join("config.json")).unwrap());
    assert_eq!(world.fetched("").bytes, 0);
    fs::read(point.join("sizes/block")).unwrap();
    assert_eq!(world.fetched("").bytes, MIB as u64);
}

#[test]
fn a_part_of_a_large_file_costs_a_part() {
    let world = World::new();
    let bytes = world.put("large", 64 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    let mut read = vec![0; 4096];
    for at in [60 * MIB, 30 * MIB, 5] {
        File::open(point.join("large")).unwrap().read_exact_at(&mut read, at as u64).unwrap();
        same(&bytes[at..at + 4096], &read, "4 KiB");
    }
    let fetched = world.fetched("large").bytes;
    assert!(fetched < 32 * MIB as u64, "{fetched} bytes for three pages");
}

#[test]
fn a_second_mount_and_a_restart_download_nothing_that_is_there() {
    let world = World::new();
    grow(&world.bucket());
    let point = world.machine.mount("s3://bucket", "mnt");
    compare(&world.bucket(), &point);
    assert_eq!(world.fetched("").bytes, total(&world.bucket()));
    eventually("all is local", || files(&point).iter().all(|(path, _)| local(&point.join(path))));

    let second = world.machine.mount("s3://bucket", "second");
    compare(&world.bucket(), &second);
    world.machine.umount(&point);
    world.machine.umount(&second);
    let again = world.machine.mount("s3://bucket", "again");
    compare(&world.bucket(), &again);
    assert_eq!(world.fetched("").bytes, total(&world.bucket()), "after mounting again");

    world.machine.crash();
    let after = world.machine.mount("s3://bucket", "after");
    compare(&world.bucket(), &after);
    assert_eq!(world.fetched("").bytes, total(&world.bucket()), "after a crash");
}

#[test]
fn a_prefix_and_its_bucket_share_nothing_but_work_side_by_side() {
    let world = World::new();
    grow(&world.bucket());
    let all = world.machine.mount("s3://bucket", "all");
    let part = world.machine.mount("s3://bucket/sizes", "part");
    compare(&world.bucket().join("sizes"), &part);
    compare(&world.bucket(), &all);
}

#[test]
fn many_readers_and_two_mounts_fetch_each_byte_once() {
    let world = World::new();
    for name in ["one", "two"] {
        world.put(name, 24 * MIB + 5);
    }
    let points = ["first", "second"].map(|name| world.machine.mount("s3://bucket", name));
    let readers: Vec<_> = (0..16)
        .map(|number| {
            let (bucket, point): (PathBuf, PathBuf) = (world.bucket(), points[number % 2].clone());
            thread::spawn(move || compare(&bucket, &point))
        })
        .collect();
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(world.fetched("").bytes, total(&world.bucket()));
}

#[test]
fn staged_means_local() {
    let mut world = World::new();
    grow(&world.bucket());
    let point = world.machine.mount_with("s3://bucket", "mnt", &["--wait"]);
    assert_eq!(world.fetched("").bytes, total(&world.bucket()));
    world.s3.server.stop();
    drop_caches();
    compare(&world.bucket(), &point);
    assert!(files(&point).iter().all(|(path, _)| local(&point.join(path))));
}

#[test]
fn patterns_say_what_is_mounted_and_staged() {
    let world = World::new();
    grow(&world.bucket());
    let options = ["--allow", "sizes/*", "--allow", "*.json", "--ignore", "*blocks", "--wait"];
    let point = world.machine.mount_with("s3://bucket", "mnt", &options);
    let names = |path: &Path| fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let mut top = names(&point);
    top.sort();
    assert_eq!(top, ["config.json", "sizes"]);
    assert!(!names(&point.join("sizes")).contains(&"blocks".into()));
    assert_eq!(world.fetched("blocks").requests, 0);
    assert_eq!(world.fetched("").bytes, total(&point));
}

#[test]
fn the_cache_keeps_its_limit() {
    let world = World::new();
    for number in 0..8 {
        world.put(&format!("file-{number}"), 4 * MIB);
    }
    let point = world.machine.mount_with("s3://bucket", "mnt", &["--cache-size", "13MiB"]);
    compare(&world.bucket(), &point);
    compare(&world.bucket(), &point);
    // A MiB more for what keeps account of the blobs.
    let blobs = world.machine.cache().join("tenants");
    let used = || files(&blobs).iter().map(|(_, meta)| meta.blocks() * 512).sum::<u64>();
    eventually("the cache is below its limit", || used() <= 14 << 20);
}
