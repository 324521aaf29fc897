//! Content that a mirror has already, and what is no content.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use axum::http::Method;
use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::write_file;

/// The bytes of blobs that were sent to the mirror.
fn uploaded(env: &TestEnv) -> u64 {
    let of =
        |method| env.s3.requests.of(method, |path| path.contains("/blobs/") || path.contains("/uploads/"));
    of(Method::PUT).received
}

#[test]
fn mirror_add_of_the_same_file_under_another_name_uploads_none_of_it() {
    let env = TestEnv::new();
    fs::create_dir(env.bucket().with_file_name("mirror")).unwrap();
    let add = |directory: &std::path::Path| {
        let path = directory.to_str().unwrap();
        env.machine.run(&["mirror", "add", path, "--mirror", "s3://mirror", "--memory", "64MiB"]).succeeds();
    };
    let (first, second) = (env.machine.directory("first"), env.machine.directory("second"));
    let mut content = write_file(&first, "optimizer.pt", 40 * MIB);
    add(&first);
    assert!(uploaded(&env) >= 40 * MIB as u64, "it is larger than what is sent from memory");
    env.s3.requests.clear();
    fs::create_dir(second.join("checkpoint-2")).unwrap();
    fs::copy(first.join("optimizer.pt"), second.join("checkpoint-2/optimizer-2.pt")).unwrap();
    add(&second);
    assert_eq!(uploaded(&env), 0);
    // One that only begins the same is another.
    *content.last_mut().unwrap() ^= 1;
    fs::write(second.join("checkpoint-2/optimizer-2.pt"), content).unwrap();
    add(&second);
    assert!(uploaded(&env) >= 40 * MIB as u64);
    env.machine.run(&["mirror", "verify", "--deep", "--mirror", "s3://mirror"]).succeeds();
}

#[test]
fn source_with_fifo_and_socket_is_mirrored_without_them_and_says_so() {
    let env = TestEnv::new();
    let (source, mirror) = (env.machine.directory("source"), env.machine.directory("mirror"));
    write_file(&source, "model.bin", 99);
    let made = Command::new("mkfifo").arg(source.join("a pipe")).status().unwrap();
    assert!(made.success());
    let _socket = UnixListener::bind(source.join("s.sock")).unwrap();
    let path = source.to_str().unwrap();
    let added = env.machine.run(&["mirror", "add", path, "--mirror", mirror.to_str().unwrap()]);
    for note in ["note: skipped \"a pipe\": it is a fifo", "note: skipped \"s.sock\": it is a socket"] {
        assert!(added.err.contains(note), "{added:?}");
    }
    added.succeeds();
    let listed = env.machine.run(&["ls", path]);
    assert!(listed.out.contains("total: 1 file") && listed.err.contains("it is a fifo"), "{listed:?}");
    let point = env.machine.mount(&source, "mnt");
    assert_eq!(fs::read_dir(&point).unwrap().count(), 1);
    env.machine.umount(&point);
}

#[test]
fn directory_that_cannot_be_read_is_no_error_where_all_below_it_is_ignored() {
    let machine = Machine::new();
    let source = machine.directory("source");
    fs::create_dir(source.join("private")).unwrap();
    fs::write(source.join("model"), "weights").unwrap();
    fs::set_permissions(source.join("private"), fs::Permissions::from_mode(0o000)).unwrap();
    // Root without the right to read what its mode forbids.
    let list = |options: &[&str]| {
        let bdnfs = machine.command::<&str>(&[]).get_program().to_owned();
        let words = ["--bounding-set=-dac_override,-dac_read_search"].map(OsString::from);
        let listed = [&["ls", source.to_str().unwrap()], options].concat();
        let words: Vec<_> =
            words.into_iter().chain([bdnfs]).chain(listed.iter().map(OsString::from)).collect();
        machine.run_command(machine.program("setpriv", &words))
    };
    list(&[]).fails(&["source/private", "permission denied"]);
    list(&["--ignore", "*.bin"]).fails(&["source/private"]);
    for options in [["--ignore", "private/*"], ["--allow", "model*"]] {
        let ran = list(&options);
        assert!(!ran.err.contains("private"), "{}", ran.err);
        assert!(ran.succeeds().contains("model"));
    }
}
