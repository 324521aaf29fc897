//! Errors that readers see, and readers that wait: none is stuck.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use axum::http::StatusCode;
use bdnfs_tests::bdnfs::{eventually, mounted, wait};
use bdnfs_tests::fault::Fault;
use bdnfs_tests::proxy::Weather;
use bdnfs_tests::tools::{run, tool, within};
use bdnfs_tests::tree::{compare, compare_file, content};
use bdnfs_tests::world::World;
use rustix::process::Signal;

const MIB: usize = 1 << 20;

/// No read may take longer than the deadline of 30 s; what is waited for here is that and much more.
const LONG: Duration = Duration::from_secs(100);

const FROZEN: Weather = Weather { frozen: true, delay: Duration::ZERO, rate: None, cut: None, refuse: false };

/// A reader in a process of its own, which can be killed.
fn cat(path: &Path) -> Child {
    tool("cat").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
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
