//! Sources that change under a mount: an error, and never a mixture of two states.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use axum::http::Method;
use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::drop_caches;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::{NetworkFault, TcpProxy};
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{STUCK_TIMEOUT, program, run, with_timeout};
use bdnfs_tests::tree::{assert_same, assert_same_tree, content, write_file};
use bdnfs_tests::web::{WebDialect, WebServer};
use serde_json::json;
use tempfile::TempDir;

/// Reads `path` in the middle and then all of it while its source is another one.
fn changed(original: &[u8], path: &Path, change: impl FnOnce()) {
    let mut page = vec![0; 4096];
    let file = File::open(path).unwrap();
    file.read_exact_at(&mut page, 1000).unwrap();
    assert_same(&original[1000..5096], &page, "before the change");
    change();
    drop_caches();
    let mut right = 0;
    for at in (0..original.len() - page.len()).step_by(MIB) {
        match file.read_exact_at(&mut page, at as u64) {
            Ok(()) => assert_same(&original[at..at + page.len()], &page, "what was still there"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "at {at}: {error}");
                right += 1;
            }
        }
    }
    assert!(right > 0, "no read met the change");
}

#[test]
fn object_changed_under_mount_fails_with_ebadmsg() {
    let env = TestEnv::new();
    let bytes = env.put("file", 64 * MIB);
    let point = env.machine.mount("s3://bucket", "mnt");
    let object = env.bucket().join("file");
    changed(&bytes, &point.join("file"), || fs::write(object, content("changed", 64 * MIB)).unwrap());

    // A new mount is a new snapshot; the old one stays what it was.
    let again = env.machine.mount("s3://bucket", "again");
    assert_same_tree(&env.bucket(), &again);
}

#[test]
fn local_file_changed_under_mount_fails_with_ebadmsg() {
    let machine = Machine::new();
    let source = machine.directory("source");
    let bytes = write_file(&source, "file", 64 * MIB);
    let point = machine.mount(&source, "mnt");
    changed(&bytes, &point.join("file"), || {
        fs::write(source.join("new"), content("changed", 64 * MIB)).unwrap();
        fs::rename(source.join("new"), source.join("file")).unwrap();
    });
}

/// The SHA-256 of a file, as an index has it.
fn sha256(directory: &Path, name: &str) -> String {
    let sum = run(program("sha256sum").arg(name).current_dir(directory));
    sum.split(' ').next().unwrap().to_owned()
}

#[test]
fn web_file_without_validators_changed_under_mount_is_read_in_one_state() {
    const NAMES: [&str; 3] = ["first.safetensors", "second.safetensors", "third.safetensors"];
    for index in ["SHA256SUMS", "bdnfs.json"] {
        let root = TempDir::new().unwrap();
        let contents = NAMES.map(|name| write_file(root.path(), name, 32 * MIB));
        let sums = NAMES.map(|name| sha256(root.path(), name));
        let entries = NAMES.iter().zip(&sums);
        let text = match index {
            "bdnfs.json" => {
                let entry = |(name, sum)| json!({ "path": name, "size": 32 * MIB, "sha256": sum });
                json!({ "files": entries.map(entry).collect::<Vec<_>>() }).to_string()
            }
            _ => entries.map(|(name, sum)| format!("{sum}  {name}\n")).collect(),
        };
        fs::write(root.path().join(index), text).unwrap();
        let web = WebServer::with_dialect(WebDialect::LighttpdWithoutMimeType, root.path());
        let proxy = TcpProxy::start(web.server.address());
        let new = |name: &str| root.path().join(format!("{name}.new"));
        NAMES.iter().for_each(|name| fs::write(new(name), content("changed", 32 * MIB)).unwrap());
        let change = |name: &str| fs::rename(new(name), root.path().join(name)).unwrap();
        let fetched = |name: &str| web.requests.of(Method::GET, |path| path.ends_with(name)).bytes;
        let machine = Machine::new();
        let point = machine.mount(format!("{}/{index}", proxy.url()), "mnt");

        // What was read before the change is local: the reader has waited for all of it.
        let (path, mut page) = (point.join(NAMES[0]), vec![0; 4096]);
        File::open(&path).unwrap().read_exact_at(&mut page, 1000).unwrap();
        assert_same(&contents[0][1000..5096], &page, "before the change");
        change(NAMES[0]);
        drop_caches();
        assert_same(&contents[0], &fs::read(&path).unwrap(), "after the change");

        // What changes while it is fetched, and what changed before, is not what the index says.
        proxy.set(NetworkFault { rate: Some(2 << 20), ..NetworkFault::default() });
        let reader = thread::spawn({
            let path = point.join(NAMES[1]);
            move || fs::read(path)
        });
        eventually("a part of it has come", || fetched(NAMES[1]) > 4 * MIB as u64);
        // Requests that were answered before may have asked for all of it: none of them brings it to its end.
        proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
        change(NAMES[1]);
        change(NAMES[2]);
        proxy.set(NetworkFault { cut: Some(3 << 20), ..NetworkFault::default() });
        let second = reader.join().unwrap();
        proxy.set(NetworkFault::default());
        let errors = [second, fs::read(point.join(NAMES[2]))];
        for (name, error) in NAMES[1..].iter().zip(errors) {
            let error = error.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "{index}, {name}: {error}");
        }

        // Another cache has nothing of it.
        let other = Machine::new();
        let error = fs::read(other.mount(web.url(index), "mnt").join(NAMES[0])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "{error}");
    }
}

#[test]
fn object_removed_under_mount_fails() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let point = env.machine.mount("s3://bucket", "mnt");
    fs::remove_file(env.bucket().join("file")).unwrap();
    let error = with_timeout(STUCK_TIMEOUT, move || fs::read(point.join("file"))).unwrap_err();
    assert!([libc::EBADMSG, libc::EIO].contains(&error.raw_os_error().unwrap()), "{error}");
}
