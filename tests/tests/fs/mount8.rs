//! mount(8) and systemd: the helper, fstab, exit codes.

use std::fs;
use std::path::Path;

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mount_namespace::MountNamespace;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tools::{cannot_run, program, run};
use bdnfs_tests::tree::{assert_same_tree, write_tree};

/// Where Debian has systemd's generator of mount units from an fstab.
const GENERATOR: &str = "/usr/lib/systemd/system-generators/systemd-fstab-generator";

/// Runs mount(8) on a machine.
fn mount8(machine: &Machine, arguments: &[&str]) -> CommandOutput {
    machine.run_command(machine.program("mount", arguments))
}

/// An fstab with these lines, and its path.
fn fstab(machine: &Machine, lines: &str) -> String {
    let path = machine.directory("etc").join("fstab");
    fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn fstab_mounted_twice_is_mounted_once_and_staged() {
    let (hub, namespace) = (HubServer::start(), MountNamespace::with_helpers());
    hub.publish("models/owner/name", "main", &[("config.json", b"{}"), ("weights.bin", &[7; 3 << 20])]);
    let machine = Machine::new().env("HF_ENDPOINT", hub.url()).in_mounts(&namespace);
    let tree = machine.directory("source");
    write_tree(&tree);
    let (cache, source) = (machine.cache().display().to_string(), tree.display().to_string());
    for point in ["/mnt/model", "/mnt/tree"] {
        namespace.directory(point);
    }
    let table = fstab(
        &machine,
        &format!(
            "hf://owner/name /mnt/model fuse.bdnfs defaults,allow_other,staging=wait,_netdev,nofail,cache_dir={cache} 0 0\n\
             {source} /mnt/tree bdnfs rw,allow=\"*\",x-systemd.requires=bdnfs-agent.service,cache_dir={cache} 0 0\n"
        ),
    );
    let first = mount8(&machine, &["-a", "-T", &table]);
    assert_eq!(first.err.lines().find(|line| !line.starts_with("staging: ")), None);
    assert_eq!(first.succeeds(), "");
    assert_same_tree(&tree, &namespace.path("/mnt/tree"));
    assert_eq!(fs::read(namespace.path("/mnt/model/weights.bin")).unwrap(), [7; 3 << 20]);

    // The same again, by all and by one, while the Hub has another commit: neither an error nor another mount.
    hub.publish("models/owner/name", "main", &[("config.json", b"[]")]);
    mount8(&machine, &["-a", "-T", &table]).succeeds();
    let options = format!("staging=wait,cache_dir={cache}");
    mount8(&machine, &["-t", "fuse.bdnfs", "-o", &options, "hf://owner/name", "/mnt/model"]).succeeds();
    assert_eq!(namespace.mounted(), ["/mnt/model", "/mnt/tree"]);
    assert_eq!(fs::read(namespace.path("/mnt/model/config.json")).unwrap(), b"{}");

    // umount(8) needs no helper: the agent ends with its last mount.
    for point in ["/mnt/model", "/mnt/tree"] {
        machine.run_command(machine.program("umount", &[point])).succeeds();
    }
    eventually("the agent's end", || machine.agent_pids().is_empty());
}

#[test]
fn mount8_dead_mount_is_mounted_anew() {
    let namespace = MountNamespace::with_helpers();
    let (machine, point) = (Machine::new().in_mounts(&namespace), namespace.directory("/mnt/weights"));
    let tree = machine.directory("source");
    write_tree(&tree);
    let options = format!("cache_dir={}", machine.cache().display());
    let again = || mount8(&machine, &["-t", "bdnfs", "-o", &options, tree.to_str().unwrap(), point]);
    again().succeeds();
    machine.crash();
    again().succeeds();
    assert_same_tree(&tree, &namespace.path(point));
    assert_eq!(namespace.mounted(), [point]);
}

#[test]
fn mount8_failure_exits_with_the_codes_of_mount8() {
    let namespace = MountNamespace::with_helpers();
    let (machine, point) = (Machine::new().in_mounts(&namespace), namespace.directory("/mnt/weights"));
    let tree = machine.directory("source");
    write_tree(&tree);
    let (source, cache) = (tree.to_str().unwrap(), format!("cache_dir={}", machine.cache().display()));
    let ends = |source: &str, options: &str, flags: &[&str], code: i32, words: &str| {
        let list = format!("{cache},{options}");
        let output = mount8(&machine, &[&["-t", "fuse.bdnfs", "-o", &list, source, point], flags].concat());
        assert_eq!(output.code, Some(code), "{source} {options}: {}", output.err);
        assert!(output.err.contains(words), "`{words}` is not in: {}", output.err);
        if code != 0 {
            assert!(output.err.starts_with("mount.fuse.bdnfs: "), "{}", output.err);
            assert_eq!(output.err.lines().count(), 1, "{}", output.err);
        }
    };
    ends(source, "noexec", &[], 1, "unknown mount option `noexec`");
    ends(source, "staging=soon", &[], 1, "staging=wait");
    ends("ftp://host/x", "ro", &[], 1, "ftp");
    ends("/no/such/directory", "ro", &[], 32, "/no/such/directory");
    ends(source, "secret=absent", &[], 32, "--secret: cannot be used with file://");
    ends(source, "rw", &["-f"], 0, "");
    assert_eq!(namespace.mounted(), [""; 0]);
    ends(source, "noexec", &["-s"], 0, "");
    // Something else is not taken for the same.
    let other = machine.directory("other");
    write_tree(&other);
    ends(other.to_str().unwrap(), "rw", &[], 32, "is already mounted on /mnt/weights");
    assert_eq!(namespace.mounted(), [point]);
}

#[test]
fn systemd_unit_of_an_fstab_line_waits_for_the_agent() {
    if !Path::new(GENERATOR).exists() {
        return cannot_run("systemd-fstab-generator is missing; scripts/setup installs the package systemd");
    }
    let machine = Machine::new();
    let options =
        "staging=wait,_netdev,nofail,x-systemd.requires=bdnfs-agent.service,x-systemd.mount-timeout=30min";
    let table = fstab(&machine, &format!("hf://owner/name /mnt/model fuse.bdnfs {options} 0 0\n"));
    let units = machine.directory("units");
    run(program(GENERATOR).env("SYSTEMD_FSTAB", table).args([&units, &units, &units]));
    let unit = fs::read_to_string(units.join("mnt-model.mount")).unwrap();
    for line in [
        "What=hf://owner/name",
        "Type=fuse.bdnfs",
        "Requires=bdnfs-agent.service",
        "After=bdnfs-agent.service",
        "TimeoutSec=30min",
    ] {
        assert!(unit.lines().any(|own| own == line), "`{line}` is not in:\n{unit}");
    }
    assert!(units.join("remote-fs.target.wants/mnt-model.mount").exists(), "not one of the network");
}
