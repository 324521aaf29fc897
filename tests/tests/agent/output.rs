//! What commands do where standard output cannot be written to.

use std::fs::{self, File};

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::wait_for_exit;
use bdnfs_tests::tree::write_file;

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
