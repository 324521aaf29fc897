//! A cache disk on which writers hang or fail, or that is gone: files are read past it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::disk::{DiskFault, LoopDisk};
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{is_local, is_mounted};
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::s3::S3Server;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::program;
use bdnfs_tests::tree::{assert_same, write_file};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

const DISK_BYTES: u64 = 1 << 30;

/// Has the kernel drop the pages of all files below `directory`. A disk that is mounted anew may have them still, where the mount
/// namespace of another test has a copy of its mount.
fn forget_pages(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            forget_pages(&entry.path());
        } else {
            drop_pages(&entry.path());
        }
    }
}

fn drop_pages(path: &Path) {
    rustix::fs::fadvise(File::open(path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Asserts that who reads the file at `path` waits for its disk as long as that has this fault, and then gets `bytes`.
fn assert_read_waits(
    machine: &Machine,
    path: &Path,
    bytes: &[u8],
    (fault, while_it_lasts): (DiskFault, Duration),
) {
    let out = machine.directory("read").join("out");
    let mut command = machine.program("cat", &[path]);
    let mut reader = command.stdout(File::create(&out).unwrap()).spawn().unwrap();
    thread::sleep(while_it_lasts);
    assert!(reader.try_wait().unwrap().is_none(), "it waits for the disk");
    drop(fault);
    assert!(wait_for_exit(&mut reader, "a reader").success());
    assert_same(bytes, &fs::read(out).unwrap(), "the file");
}

/// Reads a file in a process of its own, which ends within a minute or fails the test.
fn read(machine: &Machine, path: &Path) -> Vec<u8> {
    let out = machine.directory("read").join("out");
    let mut command = machine.program("cat", &[path]);
    let mut child = command.stdout(File::create(&out).unwrap()).spawn().unwrap();
    let status = wait_for_exit(&mut child, "a reader");
    assert!(status.success(), "{status}");
    fs::read(out).unwrap()
}

#[test]
fn cache_disk_frozen_reads_come_from_the_next_tier() {
    for size in [24 * MIB, 3 * MIB] {
        let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
        let env = TestEnv::new();
        let names = ["begun", "cold", "open"];
        let contents = names.map(|name| env.put(name, size));
        let machine = env.second_machine().with_cache(&disk.path().join("cache"));
        let point = machine.mount("s3://bucket", "mnt");
        let mut first = [0; 4096];
        let open = File::open(point.join("open")).unwrap();
        for file in [&open, &File::open(point.join("begun")).unwrap()] {
            file.read_exact_at(&mut first, 0).unwrap();
        }
        let frozen = disk.freeze();
        for (name, content) in names.iter().zip(&contents) {
            assert_same(content, &read(&machine, &point.join(name)), name);
        }
        open.read_exact_at(&mut first, MIB as u64).unwrap();
        assert_eq!(first[..], contents[2][MIB..MIB + 4096]);
        drop(frozen);
        // What could not be kept is, from now on.
        machine.run(&[Path::new("wait"), &point]).succeeds();
        assert!(names.iter().all(|name| is_local(&point.join(name))));
        drop(open);
        machine.umount(&point);
    }
}

#[test]
fn cache_disk_that_hangs_on_reads_stops_no_mount() {
    let names = ["open", "staged"];
    for (size, count) in [(24 * MIB, names.len()), (MIB / 2, 40)] {
        let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
        let env = TestEnv::new();
        let names: Vec<_> = (0..count).map(|number| format!("{}{number}", names[number % 2])).collect();
        let contents: Vec<_> = names.iter().map(|name| env.put(name, size)).collect();
        let machine = env.second_machine().with_cache(&disk.path().join("cache"));
        let point = machine.mount_with("s3://bucket", "mnt", &["--wait"]);
        machine.umount(&point);
        // Nothing of it is in memory, but where the mount namespace of another test has a copy of its mount.
        disk.restore();
        let point = machine.mount("s3://bucket", "mnt");
        forget_pages(&machine.cache().join("tenants"));
        let open = File::open(point.join(&names[0])).unwrap();
        let Some(hanging) = disk.hang() else { return };
        for (name, content) in names.iter().zip(&contents).skip(1) {
            assert_same(content, &read(&machine, &point.join(name)), name);
        }
        // It fails where another test has a mount without an agent, and has dropped this cache's records from memory.
        let listed = machine.run(&["status", "--json", "--cache-dir", machine.cache().to_str().unwrap()]);
        assert!(listed.out.contains(&format!("{}\"", point.display())), "{}{}", listed.out, listed.err);
        drop(hanging);
        let mut first = [0; 4096];
        open.read_exact_at(&mut first, MIB as u64 / 4).unwrap();
        assert_eq!(first[..], contents[0][MIB / 4..MIB / 4 + 4096]);
        drop(open);
        // The disk is read again.
        for (name, content) in names.iter().zip(&contents).skip(1) {
            eventually("it is read from the disk", || {
                let before = env.fetched(name);
                drop_pages(&point.join(name));
                assert_same(content, &read(&machine, &point.join(name)), name);
                env.fetched(name) == before
            });
        }
        machine.umount(&point);
    }
}

#[test]
fn status_of_a_cache_whose_disk_hangs_and_whose_agent_was_killed_names_it_and_fails() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    env.put("file", 1000);
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    let agent = machine.agent("");
    let point = machine.mount("s3://bucket", "mnt");
    agent.crash();
    let cache = machine.cache().to_str().unwrap();
    let status = || machine.run(&["status", "--cache-dir", cache]);
    status().fails(&[point.to_str().unwrap(), "does not respond"]);
    forget_pages(&machine.cache().join("state/mounts"));
    let Some(hanging) = disk.hang() else { return };
    status().fails(&[cache, "does not respond within 2 s"]);
    drop(hanging);
    let agent = machine.agent("");
    status().succeeds();
    machine.umount(&point);
    agent.stop();
}

#[test]
fn what_no_other_tier_has_waits_for_a_cache_disk_that_hangs() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    let bytes = env.put("file", 3 * MIB);
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    let point = machine.mount_with("s3://bucket", "mnt", &["--wait"]);
    machine.umount(&point);
    let point = machine.mount_with("s3://bucket", "mnt", &["--offline"]);
    forget_pages(&machine.cache().join("tenants"));
    let Some(hanging) = disk.hang() else { return };
    assert_read_waits(&machine, &point.join("file"), &bytes, (hanging, Duration::from_secs(5)));
    machine.umount(&point);
}

#[test]
fn file_of_a_server_without_ranges_waits_for_a_disk_that_is_frozen_for_a_moment() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let root = TempDir::with_prefix("bdnfs-s3-").unwrap();
    let bytes = write_file(root.path(), "bucket/weights", 40 * MIB);
    let s3 = S3Server::start(root.path(), None);
    s3.faults.set(ServerFault::IgnoreRange);
    let machine = Machine::new().with_cache(&disk.path().join("cache"));
    let point = machine.mount_with("s3://bucket", "mnt", &["--endpoint", &s3.server.url(), "--anonymous"]);
    let fault = (disk.freeze(), Duration::from_secs(4));
    assert_read_waits(&machine, &point.join("weights"), &bytes, fault);
    machine.umount(&point);
}

#[test]
fn cache_disk_frozen_unmounts_and_refuses_mounts() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    env.put("model", 3 * MIB);
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    // One that keeps records of its mounts.
    let agent = machine.agent("");
    let [busy, idle, kept] = ["busy", "idle", "kept"].map(|name| machine.mount("s3://bucket", name));
    let _open = File::open(busy.join("model")).unwrap();
    let frozen = disk.freeze();
    let log = machine.directory("log");
    let run = |name: &str, arguments: &[&Path]| {
        let (out, mut command) = (log.join(name), machine.command(arguments));
        let mut child =
            command.stdout(File::create(&out).unwrap()).stderr(File::create(&out).unwrap()).spawn().unwrap();
        let status = wait_for_exit(&mut child, name);
        (status.success(), fs::read_to_string(out).unwrap())
    };
    let (lazy, umount) = (Path::new("--lazy"), Path::new("umount"));
    assert_eq!(run("lazy", &[umount, lazy, &busy]), (true, String::new()));
    assert_eq!(run("umount", &[umount, &idle]), (true, String::new()));
    // Of this cache: other tests stop theirs meanwhile.
    let cache = machine.cache().to_str().unwrap();
    let listed = machine.run(&["status", "--json", "--cache-dir", cache]).succeeds();
    assert!(
        listed.contains("/kept\"") && !listed.contains("/idle\"") && !listed.contains("/busy\""),
        "{listed}"
    );
    let (mounted, told) = run("mount", &[Path::new("mount"), Path::new("s3://bucket"), &idle]);
    assert!(!mounted && told.contains("the cache's disk did not answer within 30s"), "{told}");
    drop(frozen);
    machine.umount(&kept);
    agent.stop();
}

/// Mounts on a machine whose records of mounts lie on a disk that is frozen, and kills the client while the record is written. What
/// `look` returns is kept until the mount and its record are gone.
fn assert_mount_of_killed_client_ends<T>(look: impl FnOnce(&Path) -> T) {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    env.put("model", MIB);
    let machine = env.second_machine();
    // Of its cache, the records of mounts alone lie on that disk.
    let records = machine.cache().join("state/mounts");
    fs::create_dir_all(&records).unwrap();
    fs::set_permissions(disk.path(), Permissions::from_mode(0o700)).unwrap();
    rustix::mount::mount_bind(disk.path(), &records).unwrap();
    let agent = machine.agent("");
    let point = machine.directory("mnt");
    let frozen = disk.freeze();
    let mut client =
        machine.command(&[Path::new("mount"), Path::new("s3://bucket"), &point]).spawn().unwrap();
    eventually("it is mounted", || is_mounted(&point));
    let looking = look(&point);
    assert!(client.try_wait().unwrap().is_none(), "its record is not written");
    client.kill().unwrap();
    client.wait().unwrap();
    drop(frozen);
    eventually("it is unmounted", || !is_mounted(&point));
    eventually("its record is gone", || {
        !fs::read_dir(&records).unwrap().any(|entry| entry.unwrap().path().is_file())
    });
    drop(looking);
    agent.stop();
    rustix::mount::unmount(&records, UnmountFlags::DETACH).unwrap();
}

#[test]
fn mount_whose_client_goes_away_while_its_record_is_written_is_unmounted() {
    assert_mount_of_killed_client_ends(|_| ());
}

#[test]
fn mount_whose_client_goes_away_while_another_program_looks_into_it_is_detached() {
    assert_mount_of_killed_client_ends(|point| File::open(point).unwrap());
}

#[test]
fn stage_on_disk_frozen_for_a_while_completes() {
    let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
    let env = TestEnv::new();
    env.put("model", 24 * MIB);
    let machine = env.second_machine().with_cache(&disk.path().join("cache"));
    let point = machine.mount("s3://bucket", "mnt");
    let frozen = disk.freeze();
    let mut waiting = machine.command(&[Path::new("wait"), &point]).spawn().unwrap();
    thread::sleep(Duration::from_secs(4));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits for the disk");
    drop(frozen);
    assert!(wait_for_exit(&mut waiting, "a stage").success());
    assert!(is_local(&point.join("model")));
    machine.umount(&point);
}

#[test]
fn cache_disk_dead_files_are_read_past_it() {
    for size in [24 * MIB, 3 * MIB] {
        let Some(disk) = LoopDisk::new(DISK_BYTES) else { return };
        let env = TestEnv::new();
        let contents = ["staged", "held"].map(|name| env.put(&format!("local/{name}"), size));
        let cold = env.put("cold/file", size);
        let machine = env.second_machine().with_cache(&disk.path().join("cache"));
        let local: PathBuf = machine.mount_with("s3://bucket/local", "local", &["--wait"]);
        let point = machine.mount("s3://bucket/cold", "cold");
        let held = File::open(local.join("held")).unwrap();
        let mut first = [0; 4096];
        held.read_exact_at(&mut first, 0).unwrap();
        disk.cut();
        for _ in 0..2 {
            // The second while somebody has it open whom the dead disk fails.
            for (name, content) in ["staged", "held"].iter().zip(&contents) {
                assert_same(content, &read(&machine, &local.join(name)), name);
            }
            assert_same(&cold, &read(&machine, &point.join("file")), "cold");
        }
        let again = File::open(local.join("held")).unwrap();
        again.read_exact_at(&mut first, MIB as u64).unwrap();
        assert_eq!(first[..], contents[1][MIB..MIB + 4096]);
        drop((held, again));
        machine.reset();
    }
}

#[test]
fn cache_writes_beyond_the_limit_of_a_files_size_fail_no_read_and_end_no_agent() {
    let env = TestEnv::new();
    let (small, large) = (env.put("small", MIB / 10), env.put("large", 80 * MIB));
    let machine = env.second_machine();
    let point = machine.directory("mnt");
    let mount = machine.command(&[
        "mount".as_ref(),
        "s3://bucket".as_ref(),
        point.as_os_str(),
        "--cache-dir".as_ref(),
        machine.cache().as_os_str(),
    ]);
    let mut limited = program("prlimit");
    limited.arg("--fsize=67108864").arg(mount.get_program()).args(mount.get_args());
    limited.env_clear().envs(mount.get_envs().filter_map(|(name, value)| Some((name, value?))));
    machine.run_command(limited).succeeds();
    for (name, content) in [("small", &small), ("large", &large), ("small", &small)] {
        assert_same(content, &read(&machine, &point.join(name)), name);
    }
    machine.umount(&point);
}
