//! docs/fstab.md: what it shows works.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::mount_namespace::MountNamespace;
use bdnfs_tests::repository;
use bdnfs_tests::s3::{Keys, S3Server};
use bdnfs_tests::tools::{cannot_run, program, target};
use bdnfs_tests::tree::write_tree;

/// The blocks of the page, each with its language, in the words of a test: with keys that a server takes.
fn blocks(endpoint: &str) -> Vec<(String, String)> {
    let docs = repository().join("docs");
    let page = fs::read_to_string(docs.join("fstab.md")).unwrap();
    let keys = Keys::sample();
    let page = page.replace("AKIAEXAMPLE", &keys.access).replace("SECRETEXAMPLE", &keys.secret);
    let page = page.replace("\"us-east-1\"", &format!("\"us-east-1\", \"aws_endpoint\": \"{endpoint}\""));
    let fenced = page.split("```").skip(1).step_by(2);
    fenced
        .map(|block| block.split_once('\n').unwrap())
        .map(|(kind, text)| (kind.into(), text.into()))
        .collect()
}

#[test]
fn fstab_page_blocks_run_from_nothing_to_a_mount() {
    let bucket = tempfile::tempdir().unwrap();
    write_tree(&bucket.path().join("models/llama"));
    let s3 = S3Server::start(bucket.path(), Some(Keys::sample()));
    let namespace = MountNamespace::new();
    let machine = Machine::new().in_mounts(&namespace);
    // What the lines of fstab and the unit require; it listens where the helper looks on this machine.
    let agent = machine.agent(&format!("socket = \"{}\"", machine.socket().display()));
    let mut ran = 0;
    for (kind, text) in blocks(&s3.server.url()) {
        let shell = |script: &str| machine.run_command(machine.program("sh", &["-euc", script])).succeeds();
        match kind.as_str() {
            "toml" => {
                let file = namespace.path("/etc/bdnfs/secrets.toml");
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, text).unwrap();
                fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            }
            "fstab" => fs::write(namespace.path("/etc/fstab"), text).unwrap(),
            "ini" => {
                mount_unit(&text);
                // What systemd does with it.
                let value =
                    |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap().to_owned();
                let (kind, options) = (value("Type="), value("Options="));
                let words = [&value("What="), &value("Where="), "-t", &kind, "-o", &options];
                machine.run_command(machine.program("mount", &words)).succeeds();
                assert_eq!(namespace.mounted(), ["/mnt/llama"]);
            }
            "sh" => {
                let out = shell(&text);
                if text.contains("umount") {
                    assert!(!out.is_empty(), "ls shows what is mounted");
                    assert_eq!(namespace.mounted(), [""; 0]);
                }
            }
            other => panic!("a block of {other}, which nobody runs"),
        }
        ran += 1;
    }
    assert_eq!(ran, 5);
    agent.stop();
}

/// Asserts that systemd finds nothing wrong with a mount unit.
fn mount_unit(text: &str) {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        return cannot_run("systemd-analyze is missing; scripts/setup installs the package systemd");
    }
    let directory = tempfile::tempdir().unwrap();
    let unit = directory.path().join("mnt-llama.mount");
    fs::write(&unit, text).unwrap();
    let agent = fs::read_to_string(repository().join("deploy/systemd/bdnfs-agent.service"));
    let agent = agent.unwrap().replace("/usr/local/bin/bdnfs", target().join("bdnfs").to_str().unwrap());
    fs::write(directory.path().join("bdnfs-agent.service"), agent).unwrap();
    let output = program("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("mnt-llama") && !said.contains("bdnfs-agent"), "{said}");
}
