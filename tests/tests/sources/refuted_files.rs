//! Files that are not what their origin has published: what readers get, what `bdnfs` says of them, and how they heal.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_local;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tree::{assert_same, content};

/// Files that come in one request, and one that is read while it arrives. Of all of them the Hub publishes the SHA-256.
const FILES: [(&str, usize); 4] =
    [("tiny", 30_000), ("small", MIB), ("medium", 3 * MIB + 9), ("large", 40 * MIB)];
/// The one that is too large to be checked before it is read.
const LARGE: &str = "large";

/// Asserts that neither `bdnfs status` nor a file of the mount at `point` says that something is local.
fn assert_nothing_is_local(machine: &Machine, point: &Path) {
    let ran = machine.run(&["status", "--cache-dir", machine.cache().to_str().unwrap()]);
    assert!(!ran.out.contains("100 %") && !ran.out.contains("staged"), "{}", ran.out);
    for (name, _) in FILES {
        assert!(!is_local(&point.join(name)), "{name}");
    }
}

/// Says when it goes that what was begun before is over.
struct EndGuard<'a>(&'a AtomicBool);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn refuted_file_is_never_reported_as_local_and_heals_with_its_server() {
    let hub = HubServer::start();
    let files = FILES.map(|(name, len)| (name, content(name, len)));
    hub.publish("models/o/r", "main", &files.each_ref().map(|(name, bytes)| (*name, &bytes[..])));
    let machine = Machine::new();
    let agent = machine.agent("");
    let point = machine.mount_with("hf://o/r", "mnt", &["--endpoint", &hub.url()]);
    let open = files.each_ref().map(|(name, _)| File::open(point.join(name)).unwrap());
    let is_refuted = |error: std::io::Error| error.raw_os_error() == Some(libc::EBADMSG);
    hub.storage.faults.set(ServerFault::Garble);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also where an assertion fails: the scope waits for the thread.
        let _over = EndGuard(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_nothing_is_local(&machine, &point);
                sleep(Duration::from_millis(20));
            }
        });
        for (name, _) in files.iter().filter(|(name, _)| *name != LARGE) {
            for _ in 0..2 {
                let read = fs::read(point.join(name)).map(|read| read.len());
                let error = read.expect_err("no byte of it leaves");
                assert!(is_refuted(error), "{name}");
            }
        }
        eventually("the large one is refuted, too", || fs::read(point.join(LARGE)).is_err_and(is_refuted));
        machine.run(&["wait", point.to_str().unwrap(), "--timeout", "100s"]).fails(&["SHA-256"]);
    });
    assert_nothing_is_local(&machine, &point);
    hub.storage.faults.clear();
    for ((name, bytes), open) in files.iter().zip(open) {
        eventually("it heals without a new mount", || match fs::read(point.join(name)) {
            Ok(read) => {
                assert_same(bytes, &read, name);
                true
            }
            Err(error) => {
                assert!(is_refuted(error), "{name}");
                false
            }
        });
        let mut first = vec![0; 8192];
        open.read_exact_at(&mut first, 0).unwrap();
        assert_same(&bytes[..8192], &first, "who had it open reads anew");
    }
    machine.run(&["wait", point.to_str().unwrap(), "--timeout", "100s"]).succeeds();
    assert!(FILES.iter().all(|(name, _)| is_local(&point.join(name))));
    agent.stop();
}
