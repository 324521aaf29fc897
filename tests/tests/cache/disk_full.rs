//! A disk without room: what fails says so, and what can be read is read.

use std::fs;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::large_bucket::LargeBucket;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tmpfs::Tmpfs;
use bdnfs_tests::tree::assert_same_tree;

/// What the cache has beside content, in bytes: manifests, locks, records.
const SMALL_FILES: u64 = 1 << 20;

#[test]
fn listing_without_disk_space_fails_and_cleans_up() {
    // Records of 27 MB.
    let bucket = LargeBucket::start(25_000, 4);
    let says = |directory: &Path| {
        let directory = directory.display();
        format!(
            "bdnfs: s3://large-bucket: the listing is too long for memory, and cannot be kept in {directory}: No space left on device (os error 28)"
        )
    };
    let machine = || Machine::new().s3(&bucket.server.url(), &bdnfs_tests::s3::Keys::sample());
    // Full when the first part of it is put aside, and when the parts are put together.
    for size in ["8m", "36m"] {
        let disk = Tmpfs::new(size);
        let listed = machine().env("TMPDIR", disk.path()).run(&["ls", "s3://large-bucket"]);
        assert_eq!(listed.out, "");
        let line = listed.fails(&[]);
        assert_eq!(line, format!("{}; TMPDIR can name another directory", says(disk.path())));
        assert_eq!(disk.used(), 0, "{size}");
    }
    let disk = Tmpfs::new("8m");
    let machine = machine().with_cache(&disk.path().join("cache"));
    let point = machine.directory("mnt");
    let line = machine.try_mount("s3://large-bucket", &point, &[]).fails(&[]);
    assert_eq!(line, says(&machine.cache().join("tenants/default/manifests")));
    assert!(!is_mounted(&point));
    eventually("the room comes back", || disk.used() < MIB as u64);
    let above = format!("{}/", "x".repeat(255)).repeat(4);
    let few = machine.mount(format!("s3://large-bucket/{above}shard-000003"), "few");
    assert_eq!(fs::read(few.join("object-000003007")).unwrap(), b"0000000000003007");
}

#[test]
fn manifest_without_disk_space_fails() {
    // Few enough for memory; their manifest takes megabytes.
    let bucket = LargeBucket::start(25_000, 0);
    let machine = || Machine::new().s3(&bucket.server.url(), &bdnfs_tests::s3::Keys::sample());
    let says = |source: &str, directory: &Path| {
        let directory = directory.display();
        format!(
            "bdnfs: {source}: {directory}: cannot write the manifest: No space left on device (os error 28)"
        )
    };
    let disk = Tmpfs::new("1m");
    let line = machine().env("TMPDIR", disk.path()).run(&["ls", "s3://large-bucket"]).fails(&[]);
    assert_eq!(
        line,
        format!("{}; TMPDIR can name another directory", says("s3://large-bucket", disk.path()))
    );
    assert_eq!(disk.used(), 0);
    let disk = Tmpfs::new("1m");
    let machine = machine().with_cache(&disk.path().join("cache"));
    let point = machine.directory("mnt");
    let line = machine.try_mount("s3://large-bucket", &point, &[]).fails(&[]);
    assert_eq!(
        line,
        says(
            &format!("s3://large-bucket at {}", bucket.server.url()),
            &machine.cache().join("tenants/default/manifests")
        )
    );
    assert!(!is_mounted(&point));
}

#[test]
fn cache_on_a_disk_that_others_fill_keeps_its_reserve_free() {
    let disk = Tmpfs::new("128m");
    // Not only bdnfs fills disks.
    fs::write(disk.path().join("somebody else's"), vec![1; 80 * MIB]).unwrap();
    let mut env = TestEnv::new();
    for name in ["one", "two", "three"] {
        env.put(name, 30 * MIB);
    }
    env.machine = Machine::new()
        .s3(&env.s3.server.url(), &bdnfs_tests::s3::Keys::sample())
        .with_cache(&disk.path().join("cache"));
    let point = env.machine.directory("mnt");
    env.machine.try_mount("s3://bucket", &point, &["--cache-reserve", "16MiB"]).succeeds();
    assert_same_tree(&env.bucket(), &point);
    let free = 128 * MIB as u64 - disk.used();
    assert!(free + SMALL_FILES >= 16 * MIB as u64, "{free} bytes are free");
}

#[test]
fn cache_disk_full_reads_on_and_fails_the_stage() {
    let disk = Tmpfs::new("16m");
    let mut env = TestEnv::new();
    for name in ["one", "two"] {
        env.put(name, 24 * MIB);
    }
    env.machine = Machine::new()
        .s3(&env.s3.server.url(), &bdnfs_tests::s3::Keys::sample())
        .with_cache(&disk.path().join("cache"));
    let point = env.machine.mount("s3://bucket", "mnt");
    assert_same_tree(&env.bucket(), &point);
    // Not only bdnfs fills disks.
    let _ = fs::write(disk.path().join("somebody else's"), vec![1; 16 * MIB]);
    assert_same_tree(&env.bucket(), &point);
    env.machine.umount(&point);
    fs::remove_file(disk.path().join("somebody else's")).unwrap();

    let point = env.machine.directory("staged");
    let line = env.machine.try_mount("s3://bucket", &point, &["--wait"]).fails(&[]);
    assert!(["space", "room", "full"].iter().any(|word| line.contains(word)), "{line}");
}

#[test]
fn blobs_that_a_disk_failed_to_keep_are_not_whole_before_they_are_on_it() {
    // Many are made durable together, few one by one.
    for count in [20, 2] {
        assert_whole_when_kept(count);
    }
}

/// Asserts that so many blobs are whole when a thin disk that was full has kept them.
fn assert_whole_when_kept(count: usize) {
    let Some(disk) = LoopDisk::thin(64 << 20) else { return };
    let env = TestEnv::new();
    for number in 0..count {
        env.put(&format!("small{number}"), MIB / 3);
    }
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    let point = machine.mount("s3://bucket", "mnt");
    let wait = || machine.run(&["wait", point.to_str().unwrap()]);
    // The blocks of these directories are on the disk.
    let blobs = machine.cache().join("tenants/default/blobs");
    for shard in 0..=u8::MAX {
        fs::create_dir_all(blobs.join(format!("{shard:02x}"))).unwrap();
    }
    rustix::fs::syncfs(fs::File::open(&blobs).unwrap()).unwrap();
    disk.fill_store();
    assert_ne!(wait().code, Some(0), "nothing reached the disk");
    disk.empty_store();
    // The kernel may tell only now of what it could not write before.
    eventually("all of it is on the disk", || wait().code == Some(0));
    // It reads what lies on the disk, and not what the kernel still has in memory.
    machine.run(&["cache", "verify", "--cache-dir", machine.cache().to_str().unwrap()]).succeeds();
    assert_same_tree(&env.bucket(), &point);
    machine.umount(&point);
}
