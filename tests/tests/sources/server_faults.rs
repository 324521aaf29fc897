//! Servers that stop, lie, stall or crawl: the right bytes, or an error in time; never wrong bytes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use bdnfs_tests::MIB;
use bdnfs_tests::fault::{Faults, ServerFault};
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_local;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::S3Server;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{STUCK_TIMEOUT, with_timeout};
use bdnfs_tests::tree::{assert_same, write_file};
use bdnfs_tests::web::WebServer;
use tempfile::TempDir;

/// Less than twice the deadline of a read would be with what a busy machine adds.
const ERROR_TIMEOUT: Duration = Duration::from_secs(55);

#[test]
fn server_restarted_in_mid_read_delivers_right_bytes() {
    let mut env = TestEnv::new();
    let bytes = env.put("large", 48 * MIB);
    let point = env.machine.mount("s3://bucket", "mnt");
    env.proxy.set(NetworkFault { rate: Some(16 << 20), ..NetworkFault::default() });
    let reader = thread::spawn(move || fs::read(point.join("large")));
    for quarter in 1..4 {
        eventually("some of it has passed", || env.proxy.bytes_from_server() > (quarter * 8) << 20);
        env.s3.server.stop();
        sleep(Duration::from_millis(700));
        env.s3.server.resume();
    }
    assert_same(&bytes, &reader.join().unwrap().unwrap(), "what was read across three restarts");
}

#[test]
fn server_faulty_for_a_while_delivers_right_bytes() {
    let faults = [
        ServerFault::IgnoreRange,
        ServerFault::WrongRange,
        ServerFault::Truncate(300_000),
        ServerFault::Stall(300_000),
        ServerFault::Status(StatusCode::SERVICE_UNAVAILABLE, Some(1)),
        ServerFault::Status(StatusCode::TOO_MANY_REQUESTS, Some(1)),
        ServerFault::Status(StatusCode::INTERNAL_SERVER_ERROR, None),
    ];
    in_parallel(faults, |fault| {
        let env = TestEnv::new();
        let bytes = env.put("file", 3 * MIB + 9);
        let point = env.machine.mount("s3://bucket", "mnt");
        env.s3.faults.times(fault.clone(), 2);
        let read = with_timeout(STUCK_TIMEOUT, move || fs::read(point.join("file")));
        let read = read.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert_same(&bytes, &read, &format!("{fault:?}"));
    });
}

#[test]
fn s3_object_always_faulty_is_an_error() {
    let faults = [
        ServerFault::WrongRange,
        ServerFault::Truncate(1000),
        ServerFault::Status(StatusCode::FORBIDDEN, None),
    ];
    in_parallel(faults, |fault| {
        let env = TestEnv::new();
        let bytes = env.put("file", 3 * MIB + 9);
        let point = env.machine.mount("s3://bucket", "mnt");
        assert_no_wrong_bytes(&env.s3.faults, fault, &bytes, &point.join("file"));
    });
}

#[test]
fn stage_that_failed_is_tried_again() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 * MIB + 9);
    let point = env.machine.mount("s3://bucket", "mnt");
    let wait = || env.machine.run(&["wait", point.to_str().unwrap(), "--timeout", "100s"]);
    env.s3.faults.set(ServerFault::Status(StatusCode::FORBIDDEN, None));
    wait().fails(&["file"]);
    env.s3.faults.clear();
    wait().succeeds();
    assert!(is_local(&point.join("file")));
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "what was staged");
}

#[test]
fn web_file_always_faulty_is_an_error() {
    let faults = [
        ServerFault::IgnoreRange,
        ServerFault::WrongRange,
        ServerFault::Truncate(1000),
        ServerFault::Gzip,
        ServerFault::Status(StatusCode::FORBIDDEN, None),
        ServerFault::Redirect("http://127.0.0.1:1".into()),
    ];
    in_parallel(faults, |fault| {
        let root = TempDir::new().unwrap();
        let bytes = write_file(root.path(), "file", 3 * MIB + 9);
        let (web, machine) = (WebServer::start(root.path()), Machine::new());
        let point = machine.mount(web.url("file"), "mnt");
        assert_no_wrong_bytes(&web.faults, fault, &bytes, &point.join("file"));
    });
}

/// Tries each fault in a thread of its own: some take as long as the deadline.
fn in_parallel(faults: impl IntoIterator<Item = ServerFault>, attempt: fn(ServerFault)) {
    let threads: Vec<_> = faults.into_iter().map(|fault| thread::spawn(move || attempt(fault))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Reads from a server that always meets `fault`, and once more from one that has recovered. Returns the errno of the first read.
fn assert_no_wrong_bytes(faults: &Faults, fault: ServerFault, bytes: &[u8], path: &Path) -> Option<i32> {
    faults.set(fault.clone());
    let (reader, mut read) = (File::open(path).unwrap(), vec![0; 100_000]);
    let (read, result, elapsed) = with_timeout(STUCK_TIMEOUT, move || {
        let begin = Instant::now();
        let result = reader.read_exact_at(&mut read, 1_500_000);
        (read, result, begin.elapsed())
    });
    assert!(elapsed < ERROR_TIMEOUT, "{fault:?}: {elapsed:?}");
    let errno = result.as_ref().err().map(|error| error.raw_os_error().unwrap());
    // Some of it may come through in spite of the fault, if the client waits long enough; then it must be right.
    match result {
        Ok(()) => assert_same(&bytes[1_500_000..1_600_000], &read, &format!("{fault:?}")),
        Err(error) => {
            let expected = [libc::EIO, libc::EBADMSG, libc::EACCES, libc::ETIMEDOUT];
            assert!(errno.is_some_and(|errno| expected.contains(&errno)), "{fault:?}: {error}");
        }
    }
    faults.clear();
    // A read that failed slowly is not repeated within a second, nor is what the kernel read ahead and failed later.
    eventually("it is read again", || {
        let read = fs::read(path);
        let is_read = read.is_ok();
        read.into_iter().for_each(|read| assert_same(bytes, &read, &format!("after {fault:?}")));
        is_read
    });
    errno
}

#[test]
fn origin_silent_or_stalled_is_an_error_within_the_deadline() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(&root.path().join("bucket"), "file", 3 * MIB + 9);
    let (machine, root, bytes) = (&Machine::new(), root.path(), &bytes[..]);
    let attempt = |name: &str, source: &str, endpoint: &str, faults: &Faults, fault: ServerFault| {
        let options = ["--endpoint", endpoint, "--anonymous"];
        let options = if source.starts_with("http") { &[][..] } else { &options };
        let path = machine.mount_with(source, name, options).join("file");
        let errno = assert_no_wrong_bytes(faults, fault.clone(), bytes, &path);
        assert_eq!(errno, Some(libc::ETIMEDOUT), "{source} {fault:?}");
    };
    // A server for each fault, all at once: each takes as long as the deadline.
    thread::scope(|scope| {
        for (number, fault) in [ServerFault::Silence, ServerFault::Stall(1000)].into_iter().enumerate() {
            let name = move |kind: &str| format!("{kind}{number}");
            let [for_s3, for_web, for_storage] = [(); 3].map(|()| fault.clone());
            scope.spawn(move || {
                let s3 = S3Server::start(root, None);
                attempt(&name("s3"), "s3://bucket", &s3.server.url(), &s3.faults, for_s3);
            });
            scope.spawn(move || {
                let web = WebServer::start(&root.join("bucket"));
                attempt(&name("web"), &web.url("file"), "", &web.faults, for_web);
            });
            scope.spawn(move || {
                let hub = HubServer::start();
                hub.publish("models/o/r", "main", &[("file", bytes)]);
                attempt(&name("storage"), "hf://o/r", &hub.url(), &hub.storage.faults, for_storage);
            });
        }
        // What leads to the storage has too few bytes to stall.
        scope.spawn(move || {
            let hub = HubServer::start();
            hub.publish("models/o/r", "main", &[("file", bytes)]);
            attempt("hub", "hf://o/r", &hub.url(), &hub.faults, ServerFault::Silence);
        });
    });
}

#[test]
fn slow_server_delivers_all_bytes() {
    let env = TestEnv::new();
    let bytes = env.put("file", 12 * MIB);
    let point = env.machine.mount("s3://bucket", "mnt");
    env.proxy.set(NetworkFault {
        rate: Some(MIB as u64),
        delay: Duration::from_millis(5),
        ..NetworkFault::default()
    });
    let read = with_timeout(STUCK_TIMEOUT, move || fs::read(point.join("file")));
    assert_same(&bytes, &read.unwrap(), "what came slowly");
}

#[test]
fn connections_cut_again_and_again_deliver_all_bytes() {
    let env = TestEnv::new();
    let bytes = env.put("file", 24 * MIB);
    let point = env.machine.mount("s3://bucket", "mnt");
    env.proxy.set(NetworkFault { cut: Some(3 << 20), ..NetworkFault::default() });
    let read: io::Result<Vec<u8>> = with_timeout(STUCK_TIMEOUT, move || fs::read(point.join("file")));
    assert_same(&bytes, &read.unwrap(), "what came in pieces");
}

#[test]
fn connection_that_drips_is_replaced() {
    in_parallel([ServerFault::Drip(5), ServerFault::Drip(20_000)], |fault| {
        let env = TestEnv::new();
        let bytes = env.put("file", 40 * MIB);
        for stage in [false, true] {
            let machine = env.second_machine();
            let point = machine.mount("s3://bucket", "mnt");
            // What follows the listing.
            env.s3.faults.times(fault.clone(), 1);
            if stage {
                machine.run(&["wait", point.to_str().unwrap(), "--timeout", "90s"]).succeeds();
            }
            let file = point.join("file");
            let read = with_timeout(STUCK_TIMEOUT, move || fs::read(file));
            assert_same(&bytes, &read.unwrap(), &format!("{fault:?}"));
        }
    });
}

#[test]
fn server_late_with_every_answer_is_read_and_staged() {
    let env = TestEnv::new();
    let bytes = env.put("file", 20 * MIB);
    env.s3.faults.set(ServerFault::Latency(Duration::from_secs(8)));
    let (read, staged) = (env.machine.directory("read"), env.machine.directory("staged"));
    env.machine.try_mount("s3://bucket", &read, &[]).succeeds();
    let file = read.join("file");
    let read = with_timeout(STUCK_TIMEOUT, move || fs::read(file));
    assert_same(&bytes, &read.unwrap(), "read");
    let second = env.second_machine();
    second.try_mount("s3://bucket", &staged, &["--wait"]).succeeds();
    assert_same(&bytes, &fs::read(staged.join("file")).unwrap(), "staged");
}

#[test]
fn bucket_of_a_server_that_ignores_ranges_is_fetched_once() {
    let (root, machine) = (TempDir::new().unwrap(), Machine::new());
    let bytes = write_file(root.path(), "bucket/weights", 40 * MIB);
    // Nothing is signed, of which the fault would take away a part.
    let s3 = S3Server::start(root.path(), None);
    s3.faults.set(ServerFault::IgnoreRange);
    let options = ["--endpoint", &s3.server.url(), "--anonymous"];
    let point = machine.mount_with("s3://bucket", "mnt", &options);
    let (file, mut page) = (File::open(point.join("weights")).unwrap(), vec![0; 100_000]);
    file.read_exact_at(&mut page, 30_000_000).unwrap();
    assert_same(&bytes[30_000_000..30_100_000], &page, "a part");
    assert_same(&bytes, &fs::read(point.join("weights")).unwrap(), "the file");
    assert_eq!(s3.requests.gets("/weights").requests, 1, "all of it, in order");
    assert_eq!(s3.requests.range_probes(), 1);
}

#[test]
fn bad_response_is_retried() {
    let faults = [
        ServerFault::Status(StatusCode::NO_CONTENT, None),
        ServerFault::Status(StatusCode::NOT_MODIFIED, None),
        ServerFault::Gzip,
        ServerFault::Page,
        ServerFault::Redirect("file:///etc/passwd?".into()),
    ];
    in_parallel(faults, |fault| {
        let env = TestEnv::new();
        let bytes = env.put("file", 3 * MIB + 9);
        let web = WebServer::start(&env.bucket());
        let (s3, http) = (
            env.machine.mount("s3://bucket", "s3").join("file"),
            env.machine.mount(web.url("file"), "web").join("file"),
        );
        for (faults, file) in [(&env.s3.faults, s3), (&web.faults, http)] {
            faults.times(fault.clone(), 1);
            let read = with_timeout(STUCK_TIMEOUT, move || fs::read(file));
            assert_same(
                &bytes,
                &read.unwrap_or_else(|error| panic!("{fault:?}: {error}")),
                &format!("{fault:?}"),
            );
        }
    });
}
