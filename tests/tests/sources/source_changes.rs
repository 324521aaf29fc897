//! Sources that change under a mount: an error, and never a mixture of two states.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::drop_caches;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{STUCK_TIMEOUT, program, run, with_timeout};
use bdnfs_tests::tree::{assert_same, assert_same_tree, content, write_file};
use bdnfs_tests::web::{WebDialect, WebServer};
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

#[test]
fn web_file_without_validators_changed_under_mount_is_read_in_one_state() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "model.safetensors", 64 * MIB);
    let sums = run(program("sha256sum").arg("model.safetensors").current_dir(root.path()));
    fs::write(root.path().join("SHA256SUMS"), sums).unwrap();
    let web = WebServer::with_dialect(WebDialect::LighttpdWithoutMimeType, root.path());
    let machine = Machine::new();
    let point = machine.mount(web.url("SHA256SUMS"), "mnt");
    let (path, mut page) = (point.join("model.safetensors"), vec![0; 4096]);
    File::open(&path).unwrap().read_exact_at(&mut page, 1000).unwrap();
    assert_same(&bytes[1000..5096], &page, "before the change");
    write_file(root.path(), "new", 64 * MIB);
    fs::rename(root.path().join("new"), root.path().join("model.safetensors")).unwrap();
    drop_caches();
    assert_same(&bytes, &fs::read(&path).unwrap(), "after the change");

    // Another cache has nothing of it, and what comes is not what the index says.
    let other = Machine::new();
    let point = other.mount(web.url("SHA256SUMS"), "mnt");
    let error = fs::read(point.join("model.safetensors")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "{error}");
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
