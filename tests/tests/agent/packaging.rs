//! What comes with the agent: its unit for systemd, and what its image is made of.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::repository;
use bdnfs_tests::tools::{cannot_run, program, run, target};
use bdnfs_tests::tree::write_file;

/// The unit that comes with the agent.
fn unit() -> String {
    fs::read_to_string(repository().join("deploy/systemd/bdnfs-agent.service")).expect("the unit")
}

#[test]
fn systemd_unit_started_notifies_readiness() {
    let unit = unit();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("ExecStart");
    let arguments: Vec<_> = start.split(' ').skip(1).collect();
    assert!(unit.contains("Type=notify"));
    let machine = Machine::new();
    let config = machine.directory("etc").join("agent.toml");
    fs::write(&config, format!("cache_dir = \"{}\"\n", machine.cache().display())).unwrap();
    let place = machine.directory("run").join("notify");
    let notified = UnixDatagram::bind(&place).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let arguments = arguments.join(" ").replace("/etc/bdnfs/agent.toml", config.to_str().unwrap());
    let mut command = machine.command(&arguments.split(' ').collect::<Vec<_>>());
    let mut agent = command.env("NOTIFY_SOCKET", &place).spawn().unwrap();
    let mut report = [0; 64];
    let heard = notified.recv(&mut report);
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!(&report[..heard.expect("a word")], b"READY=1");
}

#[test]
fn systemd_unit_verified_has_no_complaints() {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        return cannot_run("systemd-analyze is missing; scripts/setup installs the package systemd");
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("bdnfs-agent.service");
    let binary = target().join("bdnfs");
    fs::write(&place, unit().replace("/usr/local/bin/bdnfs", binary.to_str().unwrap())).unwrap();
    let output = program("systemd-analyze").args(["verify", "--man=no"]).arg(&place).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // It looks at all that this unit would be started with; what it says of other units is theirs.
    assert!(!said.contains("bdnfs-agent"), "{said}");
}

#[test]
fn image_alone_mounts_and_reads() {
    let root = tempfile::tempdir().unwrap();
    let image = root.path().join("image");
    run(program("bash").arg(repository().join("scripts/image")).arg(&image).arg(target().join("bdnfs")));
    let recipe = fs::read_to_string(repository().join("deploy/image/Containerfile")).unwrap();
    let entry = recipe.lines().find_map(|line| line.strip_prefix("ENTRYPOINT [\"")).expect("ENTRYPOINT");
    let entry = entry.trim_end_matches("\"]");
    let version = run(program("chroot").arg(&image).args([entry, "--version"]));
    assert!(version.starts_with("bdnfs "), "{version}");
    let notices = fs::read_to_string(image.join("usr/share/doc/bdnfs/THIRD-PARTY-NOTICES")).unwrap();
    assert!(notices.contains("\ntokio ") && notices.contains("Permission is hereby granted"));
    let sections = run(program("readelf").args(["--sections", "--wide"]).arg(image.join("usr/bin/bdnfs")));
    assert!(sections.contains(".gnu_debuglink") && !sections.contains(".debug_info"), "{sections}");

    // In a namespace of its own, with nothing but the image, /dev and /proc: it mounts, stages and reads back.
    let source = image.join("mnt/source");
    let bytes = write_file(&source, "file", 3 << 20);
    fs::create_dir(image.join("mnt/point")).unwrap();
    let script = r#"
        set -e
        mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc"
        chroot "$1" "$2" mount --wait /mnt/source /mnt/point >&2
        cat "$1/mnt/point/file"
        chroot "$1" "$2" umount /mnt/point >&2
    "#;
    let mut command = program("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
        "bash",
        "-c",
        script,
        "bash",
    ]);
    let output = command.arg(&image).arg(entry).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == bytes, "{} bytes", output.stdout.len());
}
