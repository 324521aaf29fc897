//! Whatever breaks: the right bytes, or an error in time; never wrong bytes, never a stuck process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::{self, sleep};
use std::time::Duration;

use axum::http::StatusCode;
use bdnfs_tests::bdnfs::{Machine, drop_caches, eventually, mounted, wait};
use bdnfs_tests::crowd::Crowd;
use bdnfs_tests::fault::{Fault, Faults};
use bdnfs_tests::proxy::Weather;
use bdnfs_tests::tools::{run, tool, within};
use bdnfs_tests::tree::{Dice, compare, compare_file, content, file, grow, same};
use bdnfs_tests::web::Web;
use bdnfs_tests::world::World;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// No read may take longer than the deadline of 30 s; what is waited for here is that and much more.
const LONG: Duration = Duration::from_secs(100);

const FROZEN: Weather = Weather { frozen: true, delay: Duration::ZERO, rate: None, cut: None, refuse: false };

/// A reader in a process of its own, which can be killed.
fn cat(path: &Path) -> Child {
    tool("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_server_stopped_and_started_again_in_mid_read() {
    let mut world = World::new();
    let bytes = world.put("large", 48 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    world.proxy.set(Weather { rate: Some(16 << 20), ..Weather::default() });
    let reader = thread::spawn(move || fs::read(point.join("large")));
    for quarter in 1..4 {
        eventually("some of it has passed", || world.proxy.passed() > (quarter * 8) << 20);
        world.s3.server.stop();
        sleep(Duration::from_millis(700));
        world.s3.server.resume();
    }
    same(&bytes, &reader.join().unwrap().unwrap(), "what was read across three restarts");
}

#[test]
fn answers_that_are_wrong_for_a_while_do_no_harm() {
    let faults = [
        Fault::IgnoreRange,
        Fault::WrongRange,
        Fault::Truncate(300_000),
        Fault::Stall(300_000),
        Fault::Status(StatusCode::SERVICE_UNAVAILABLE, Some(1)),
        Fault::Status(StatusCode::TOO_MANY_REQUESTS, Some(1)),
        Fault::Status(StatusCode::INTERNAL_SERVER_ERROR, None),
    ];
    at_once(faults, |fault| {
        let world = World::new();
        let bytes = world.put("file", 3 * MIB + 9);
        let point = world.machine.mount("s3://bucket", "mnt");
        world.s3.faults.times(fault.clone(), 2);
        let read = within(LONG, move || fs::read(point.join("file")));
        let read = read.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        same(&bytes, &read, &format!("{fault:?}"));
    });
}

#[test]
fn objects_that_stay_wrong_are_never_read() {
    let faults = [Fault::WrongRange, Fault::Truncate(1000), Fault::Status(StatusCode::FORBIDDEN, None)];
    at_once(faults, |fault| {
        let world = World::new();
        let bytes = world.put("file", 3 * MIB + 9);
        let point = world.machine.mount("s3://bucket", "mnt");
        never_wrong(&world.s3.faults, fault, &bytes, &point.join("file"));
    });
}

#[test]
fn files_of_a_web_server_that_stay_wrong_are_never_read() {
    let faults = [
        Fault::IgnoreRange,
        Fault::WrongRange,
        Fault::Truncate(1000),
        Fault::Gzip,
        Fault::Status(StatusCode::FORBIDDEN, None),
        Fault::Redirect("http://127.0.0.1:1".into()),
    ];
    at_once(faults, |fault| {
        let root = TempDir::new().unwrap();
        let bytes = file(root.path(), "file", 3 * MIB + 9);
        let (web, machine) = (Web::start(root.path()), Machine::new());
        let point = machine.mount(web.url("file"), "mnt");
        never_wrong(&web.faults, fault, &bytes, &point.join("file"));
    });
}

/// Tries each fault in a thread of its own: some take as long as the deadline.
fn at_once(faults: impl IntoIterator<Item = Fault>, attempt: fn(Fault)) {
    let threads: Vec<_> = faults.into_iter().map(|fault| thread::spawn(move || attempt(fault))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Reads from a server that always meets `fault`, and once more from one that has recovered.
fn never_wrong(faults: &Faults, fault: Fault, bytes: &[u8], path: &Path) {
    faults.set(fault.clone());
    let (reader, mut read) = (File::open(path).unwrap(), vec![0; 100_000]);
    let (read, result) = within(LONG, move || {
        let result = reader.read_exact_at(&mut read, 1_500_000);
        (read, result)
    });
    // Some of it may come through in spite of the fault, if anybody is so patient; then it must be right.
    match result {
        Ok(()) => same(&bytes[1_500_000..1_600_000], &read, &format!("{fault:?}")),
        Err(error) => {
            let expected = [libc::EIO, libc::EBADMSG, libc::EACCES, libc::ETIMEDOUT];
            assert!(expected.contains(&error.raw_os_error().unwrap()), "{fault:?}: {error}");
        }
    }
    faults.clear();
    same(bytes, &fs::read(path).unwrap(), &format!("after {fault:?}"));
}

#[test]
fn refused_credentials_are_eacces_and_silence_is_etimedout() {
    let world = World::new();
    for name in ["refused", "silent"] {
        world.put(name, MIB);
    }
    let point = world.machine.mount("s3://bucket", "mnt");
    let read = |name| {
        let path = point.join(name);
        within(LONG, move || fs::read(path)).map_err(|error| error.raw_os_error().unwrap())
    };
    world.s3.faults.set(Fault::Status(StatusCode::FORBIDDEN, None));
    assert_eq!(read("refused"), Err(libc::EACCES));
    world.s3.faults.clear();
    world.proxy.set(FROZEN);
    assert_eq!(read("silent"), Err(libc::ETIMEDOUT));
    world.proxy.set(Weather::default());
    assert_eq!(read("silent"), Ok(content("silent", MIB)));
}

/// Reads `path` in the middle and then all of it while its source is another one.
fn changed(original: &[u8], path: &Path, change: impl FnOnce()) {
    let mut page = vec![0; 4096];
    let file = File::open(path).unwrap();
    file.read_exact_at(&mut page, 1000).unwrap();
    same(&original[1000..5096], &page, "before the change");
    change();
    drop_caches();
    let mut right = 0;
    for at in (0..original.len() - page.len()).step_by(MIB) {
        match file.read_exact_at(&mut page, at as u64) {
            Ok(()) => same(&original[at..at + page.len()], &page, "what was still there"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "at {at}: {error}");
                right += 1;
            }
        }
    }
    assert!(right > 0, "no read met the change");
}

#[test]
fn a_changed_object_is_an_error_and_never_a_mixture() {
    let world = World::new();
    let bytes = world.put("file", 64 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    let object = world.bucket().join("file");
    changed(&bytes, &point.join("file"), || fs::write(object, content("changed", 64 * MIB)).unwrap());

    // A new mount is a new snapshot; the old one stays what it was.
    let again = world.machine.mount("s3://bucket", "again");
    compare(&world.bucket(), &again);
}

#[test]
fn a_changed_local_file_is_an_error_and_never_a_mixture() {
    let machine = Machine::new();
    let source = machine.directory("source");
    let bytes = file(&source, "file", 64 * MIB);
    let point = machine.mount(&source, "mnt");
    changed(&bytes, &point.join("file"), || {
        fs::write(source.join("new"), content("changed", 64 * MIB)).unwrap();
        fs::rename(source.join("new"), source.join("file")).unwrap();
    });
}

#[test]
fn a_removed_object_is_an_error() {
    let world = World::new();
    world.put("file", 2 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    fs::remove_file(world.bucket().join("file")).unwrap();
    let error = within(LONG, move || fs::read(point.join("file"))).unwrap_err();
    assert!([libc::EBADMSG, libc::EIO].contains(&error.raw_os_error().unwrap()), "{error}");
}

/// A small disk. It goes when it is dropped.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn new(size: &str) -> Self {
        let directory = TempDir::with_prefix("bdnfs-tmpfs-").unwrap();
        let size = std::ffi::CString::new(format!("size={size}")).unwrap();
        mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())).unwrap();
        Self(directory)
    }
}

impl Tmpfs {
    /// How many bytes of it are in use.
    fn used(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.0.path()).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn a_disk_without_room_for_a_listing_is_told_and_left_as_it_was() {
    // Records of 27 MB.
    let crowd = Crowd::start(25_000, 4);
    let says = |directory: &Path| {
        let directory = directory.display();
        format!(
            "bdnfs: s3://crowd: the listing is too long for memory, and can't be kept in {directory}: No space left on device (os error 28)"
        )
    };
    let machine = || Machine::new().s3(&crowd.server.url(), &bdnfs_tests::s3::Keys::sample());
    // Full when the first part of it is put aside, and when the parts are put together.
    for size in ["8m", "36m"] {
        let disk = Tmpfs::new(size);
        let listed = machine().env("TMPDIR", disk.0.path()).run(&["ls", "s3://crowd"]);
        assert_eq!(listed.out, "");
        let line = listed.fails(&[]);
        assert_eq!(line, format!("{}; TMPDIR can name another directory", says(disk.0.path())));
        assert_eq!(disk.used(), 0, "{size}");
    }
    let disk = Tmpfs::new("8m");
    let machine = machine().with_cache(&disk.0.path().join("cache"));
    let point = machine.directory("mnt");
    let line = machine.try_mount("s3://crowd", &point, &[]).fails(&[]);
    assert_eq!(line, says(&machine.cache().join("tenants/default/manifests")));
    assert!(!mounted(&point));
    eventually("the room comes back", || disk.used() < MIB as u64);
    let above = format!("{}/", "x".repeat(255)).repeat(4);
    let few = machine.mount(format!("s3://crowd/{above}shard-000003"), "few");
    assert_eq!(fs::read(few.join("object-000003007")).unwrap(), b"0000000000003007");
}

#[test]
fn a_disk_without_room_for_a_manifest_is_told() {
    // Few enough for memory; their manifest takes megabytes.
    let crowd = Crowd::start(25_000, 0);
    let machine = || Machine::new().s3(&crowd.server.url(), &bdnfs_tests::s3::Keys::sample());
    let says = |source: &str, directory: &Path| {
        let directory = directory.display();
        format!(
            "bdnfs: {source}: {directory}: cannot write the manifest: No space left on device (os error 28)"
        )
    };
    let disk = Tmpfs::new("1m");
    let line = machine().env("TMPDIR", disk.0.path()).run(&["ls", "s3://crowd"]).fails(&[]);
    assert_eq!(line, format!("{}; TMPDIR can name another directory", says("s3://crowd", disk.0.path())));
    assert_eq!(disk.used(), 0);
    let disk = Tmpfs::new("1m");
    let machine = machine().with_cache(&disk.0.path().join("cache"));
    let point = machine.directory("mnt");
    let line = machine.try_mount("s3://crowd", &point, &[]).fails(&[]);
    assert_eq!(
        line,
        says(
            &format!("s3://crowd at {}", crowd.server.url()),
            &machine.cache().join("tenants/default/manifests")
        )
    );
    assert!(!mounted(&point));
}

#[test]
fn a_full_cache_disk_slows_reads_and_fails_a_stage() {
    let disk = Tmpfs::new("16m");
    let mut world = World::new();
    for name in ["one", "two"] {
        world.put(name, 24 * MIB);
    }
    world.machine = Machine::new()
        .s3(&world.s3.server.url(), &bdnfs_tests::s3::Keys::sample())
        .with_cache(&disk.0.path().join("cache"));
    let point = world.machine.mount("s3://bucket", "mnt");
    compare(&world.bucket(), &point);
    // Not only bdnfs fills disks.
    let _ = fs::write(disk.0.path().join("somebody else's"), vec![1; 16 * MIB]);
    compare(&world.bucket(), &point);
    world.machine.umount(&point);
    fs::remove_file(disk.0.path().join("somebody else's")).unwrap();

    let point = world.machine.directory("staged");
    let line = world.machine.try_mount("s3://bucket", &point, &["--wait"]).fails(&[]);
    assert!(["space", "room", "full"].iter().any(|word| line.contains(word)), "{line}");
}

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
fn a_reader_stuck_on_a_frozen_server_dies_when_it_is_killed() {
    let world = World::new();
    world.put("file", 8 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    world.proxy.set(FROZEN);
    let mut readers: Vec<Child> = (0..4).map(|_| cat(&point.join("file"))).collect();
    let mapped =
        "import mmap, sys; f = open(sys.argv[1], 'rb'); print(mmap.mmap(f.fileno(), 0, access=1)[5_000_000])";
    readers.push(
        bdnfs_tests::tools::python(mapped).arg(point.join("file")).stderr(Stdio::null()).spawn().unwrap(),
    );
    sleep(Duration::from_millis(500));
    for reader in &mut readers {
        assert!(reader.try_wait().unwrap().is_none(), "it was to be stuck");
        reader.kill().unwrap();
    }
    // Far less than the deadline, at which the read would end by itself.
    within(Duration::from_secs(10), move || {
        for mut reader in readers {
            let status = reader.wait().unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        }
    });
    world.proxy.set(Weather::default());
    compare(&world.bucket(), &point);
}

#[test]
fn a_frozen_server_delays_neither_other_files_nor_the_end() {
    let world = World::new();
    for name in ["frozen", "local"] {
        world.put(name, 2 * MIB);
    }
    let point = world.machine.mount("s3://bucket", "mnt");
    fs::read(point.join("local")).unwrap();
    world.proxy.set(FROZEN);
    let mut stuck: Vec<Child> = (0..40).map(|_| cat(&point.join("frozen"))).collect();
    sleep(Duration::from_millis(300));
    let (bucket, local) = (world.bucket(), point.clone());
    within(Duration::from_secs(10), move || {
        compare_file(&bucket.join("local"), &local.join("local"));
        run(tool("ls").arg("-l").arg(&local));
    });
    // SIGTERM ends the daemon and its mounts, whoever waits for them.
    for daemon in world.machine.daemons() {
        rustix::process::kill_process(daemon, Signal::TERM).unwrap();
    }
    eventually("the daemon is gone", || world.machine.daemons().is_empty());
    for child in &mut stuck {
        wait(child, "a reader of a mount that is gone");
    }
    assert!(!mounted(&point));
}

#[test]
fn a_slow_server_is_not_a_dead_one() {
    let world = World::new();
    let bytes = world.put("file", 12 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    world.proxy.set(Weather {
        rate: Some(MIB as u64),
        delay: Duration::from_millis(5),
        ..Weather::default()
    });
    let read = within(LONG, move || fs::read(point.join("file")));
    same(&bytes, &read.unwrap(), "what came slowly");
}

#[test]
fn connections_that_break_again_and_again() {
    let world = World::new();
    let bytes = world.put("file", 24 * MIB);
    let point = world.machine.mount("s3://bucket", "mnt");
    world.proxy.set(Weather { cut: Some(3 << 20), ..Weather::default() });
    let read: io::Result<Vec<u8>> = within(LONG, move || fs::read(point.join("file")));
    same(&bytes, &read.unwrap(), "what came in pieces");
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
