//! What commands do where standard output cannot be written to, for now or at all.

use std::fs::{self, File};
use std::io::{Read, Write, pipe};

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::tree::write_file;
use rustix::pipe::fcntl_getpipe_size;

#[test]
fn command_on_a_full_standard_output_fails_and_says_so() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "x", 1000);
    let path = |name: &str| machine.directory("files").join(name).to_str().unwrap().to_owned();
    let (config, authority, mirror) = (path("w.toml"), path("ca"), format!("file://{}", path("mirror")));
    fs::write(&config, "[[weights]]\nsource = 's3://bucket'\nmount_location = '/m'\n").unwrap();
    let source = source.to_str().unwrap();
    let point = machine.mount(source, "mnt");
    let cache = ["--cache-dir", machine.cache().to_str().unwrap()];
    let with_cache = |command: &[&'static str]| [command, &cache].concat();
    for arguments in [
        vec!["--help"],
        vec!["--version"],
        vec!["mount", "--help"],
        vec!["ls", source],
        vec!["ls", "--json", source],
        vec!["check", &config],
        vec!["check", "--json", &config],
        vec!["source", "key", "hf://a/b"],
        vec!["cluster", "init-ca", &authority],
        vec!["mirror", "add", source, "--mirror", &mirror],
        vec!["mirror", "ls", "--mirror", &mirror],
        vec!["mirror", "ls", "--json", "--mirror", &mirror],
        with_cache(&["status"]),
        with_cache(&["status", "--json"]),
        with_cache(&["top", "--once"]),
        with_cache(&["top", "--json"]),
        with_cache(&["cache", "summarize"]),
        with_cache(&["cache", "verify", "--json"]),
    ] {
        let (full, errors) = (File::options().write(true).open("/dev/full").unwrap(), path("stderr"));
        let mut command = machine.command(&arguments);
        let mut child = command.stdout(full).stderr(File::create(&errors).unwrap()).spawn().unwrap();
        let code = wait_for_exit(&mut child, &format!("{arguments:?}")).code();
        let output = CommandOutput { code, out: String::new(), err: fs::read_to_string(&errors).unwrap() };
        assert_eq!(output.code, Some(1), "{arguments:?}: {}", output.err);
        output.fails(&["cannot write to standard output", "No space left on device"]);
    }
    machine.umount(&point);
}

#[test]
fn mount_foreground_that_is_unmounted_before_it_waits_for_that_succeeds() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "x", 1000);
    let point = machine.directory("mnt");
    // It prints what it has mounted, which takes until somebody reads the pipe; then it waits for the end.
    let (mut reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![0; fcntl_getpipe_size(&writer).unwrap()]).unwrap();
    let words = ["mount", "--foreground", source.to_str().unwrap(), point.to_str().unwrap()];
    let cache = ["--cache-dir", machine.cache().to_str().unwrap()];
    let mut command = machine.command(&[&words[..], &cache].concat());
    let mut child = command.stdout(writer).spawn().unwrap();
    drop(command);
    eventually("it is mounted", || is_mounted(&point));
    machine.umount(&point);
    let mut printed = Vec::new();
    reader.read_to_end(&mut printed).unwrap();
    assert!(String::from_utf8_lossy(&printed).contains("mounted "));
    assert!(wait_for_exit(&mut child, "a mount that was taken away").success());
}
