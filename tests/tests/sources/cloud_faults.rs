//! R2, Google's storage and Azure's with servers that stop, lie, stall or crawl: as `server_faults` tries S3 and the web.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use bdnfs_tests::MIB;
use bdnfs_tests::clouds::CloudServer;
use bdnfs_tests::fault::{Faults, ServerFault};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::S3Server;
use bdnfs_tests::tools::{STUCK_TIMEOUT, with_timeout};
use bdnfs_tests::tree::{assert_same, write_file};
use tempfile::TempDir;

/// The deadline of a read, and what a busy machine adds.
const ERROR_TIMEOUT: Duration = Duration::from_secs(45);

/// The clouds, each with a source in the bucket `bucket`.
const CLOUDS: [&str; 3] = ["r2://account.bucket", "gs://bucket", "azure://account/bucket"];

/// A server of one cloud.
enum Cloud {
    S3(S3Server),
    Other(CloudServer),
}

impl Cloud {
    fn start(uri: &str, root: &Path) -> Self {
        match uri.split(':').next() {
            Some("r2") => Self::S3(S3Server::start(root, None)),
            _ => Self::Other(CloudServer::start(root)),
        }
    }

    fn parts(&self) -> (String, &Faults) {
        match self {
            Self::S3(s3) => (s3.server.url(), &s3.faults),
            Self::Other(cloud) => (cloud.server.url(), &cloud.faults),
        }
    }
}

/// Tries each cloud in a thread of its own: with a machine, the cloud's source, the directory above its bucket, and the content of
/// the bucket's files `file-0`, `file-1` and so on, as many as `files`.
fn in_each_cloud(files: usize, attempt: impl Fn(&Machine, &str, &Path, &[Vec<u8>]) + Sync) {
    let root = TempDir::with_prefix("bdnfs-clouds-").unwrap();
    let bucket = root.path().join("bucket");
    let files: Vec<_> =
        (0..files).map(|number| write_file(&bucket, format!("file-{number}"), 2 * MIB + 9)).collect();
    let (machine, attempt, root, files) = (&Machine::new(), &attempt, root.path(), &files[..]);
    thread::scope(|scope| {
        for uri in CLOUDS {
            scope.spawn(move || attempt(machine, uri, root, files));
        }
    });
}

/// Mounts what `cloud` has, on a directory of this name.
fn mount(machine: &Machine, uri: &str, cloud: &Cloud, name: &str) -> std::path::PathBuf {
    let url = cloud.parts().0;
    machine.mount_with(uri, name, &["--endpoint", &url, "--anonymous"])
}

#[test]
fn cloud_faulty_once_delivers_right_bytes() {
    let faults = [
        ServerFault::IgnoreRange,
        ServerFault::WrongRange,
        ServerFault::Truncate(300_000),
        ServerFault::Stall(300_000),
        ServerFault::Drip(20_000),
        ServerFault::Silence,
        ServerFault::Gzip,
        ServerFault::Page,
        ServerFault::Status(StatusCode::NO_CONTENT, None),
        ServerFault::Status(StatusCode::NOT_MODIFIED, None),
        ServerFault::Status(StatusCode::TOO_MANY_REQUESTS, Some(1)),
        ServerFault::Status(StatusCode::INTERNAL_SERVER_ERROR, None),
        ServerFault::Redirect("file:///etc/passwd?".into()),
    ];
    in_each_cloud(faults.len(), |machine, uri, root, files| {
        let cloud = Cloud::start(uri, root);
        let point = mount(machine, uri, &cloud, &uri[..2]);
        for (number, (fault, bytes)) in faults.iter().zip(files).enumerate() {
            cloud.parts().1.times(fault.clone(), 1);
            let path = point.join(format!("file-{number}"));
            let read = with_timeout(STUCK_TIMEOUT, move || fs::read(path));
            let read = read.unwrap_or_else(|error| panic!("{uri} {fault:?}: {error}"));
            assert_same(bytes, &read, &format!("{uri} {fault:?}"));
        }
    });
}

#[test]
fn cloud_always_faulty_is_an_error_within_the_deadline() {
    // What a reader is told, which says the same of each cloud.
    let faults = [
        (ServerFault::Status(StatusCode::FORBIDDEN, None), libc::EACCES),
        (ServerFault::Status(StatusCode::NOT_FOUND, None), libc::EBADMSG),
        (ServerFault::Status(StatusCode::PRECONDITION_FAILED, None), libc::EBADMSG),
        (ServerFault::WrongRange, libc::EBADMSG),
        (ServerFault::Silence, libc::ETIMEDOUT),
        (ServerFault::Stall(1000), libc::ETIMEDOUT),
    ];
    in_each_cloud(1, |machine, uri, root, files| {
        // A server for each fault, since some take as long as the deadline.
        thread::scope(|scope| {
            for (number, (fault, errno)) in faults.iter().enumerate() {
                scope.spawn(move || {
                    let cloud = Cloud::start(uri, root);
                    let point = mount(machine, uri, &cloud, &format!("{}{number}", &uri[..2]));
                    cloud.parts().1.set(fault.clone());
                    let (reader, mut part) = (File::open(point.join("file-0")).unwrap(), [0; 100]);
                    let began = Instant::now();
                    let read =
                        with_timeout(STUCK_TIMEOUT, move || reader.read_exact_at(&mut part, 1_500_000));
                    let error = read.expect_err("it is always faulty");
                    assert_eq!(error.raw_os_error(), Some(*errno), "{uri} {fault:?}: {error}");
                    assert!(began.elapsed() < ERROR_TIMEOUT, "{uri} {fault:?}: {:?}", began.elapsed());
                    cloud.parts().1.clear();
                    // A read that failed slowly is not repeated within a second, nor is what the kernel read ahead.
                    eventually("it is read again", || {
                        let read = fs::read(point.join("file-0"));
                        let is_read = read.is_ok();
                        let what = format!("{uri} after {fault:?}");
                        read.into_iter().for_each(|read| assert_same(&files[0], &read, &what));
                        is_read
                    });
                });
            }
        });
    });
}
