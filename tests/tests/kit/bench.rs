//! The benchmark: found by `bdnfs bench`, measures, reports, and leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tools::target;
use rustix::process::{Pid, Signal, kill_process};

/// One small download, measured once.
const TINY: [&str; 8] = ["bench", "--only", "cold", "--runs", "1", "--size", "8M", "--name"];

fn arguments(machine: &Machine, name: &str) -> Vec<String> {
    let (work, out) = (machine.directory("work"), machine.directory("out"));
    let places = ["--dir".as_ref(), work.as_os_str(), "--out".as_ref(), out.as_os_str()];
    let places = places.map(|place| place.to_str().unwrap().to_owned());
    TINY.iter().map(|&one| one.to_owned()).chain([name.to_owned()]).chain(places).collect()
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

fn mounts(directory: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(directory.to_str().unwrap())).count()
}

#[test]
fn bench_against_itself_finds_nothing_worse() {
    let machine = Machine::new();
    let ran = machine.run(&arguments(&machine, "first"));
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let out = machine.directory("out");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(out.join("first.json")).unwrap()).unwrap();
    let group = &json["groups"][0];
    assert_eq!(
        (group["key"].as_str(), group["missed"].as_array().unwrap().len()),
        (Some("cold"), 0),
        "{group}"
    );
    assert!(group["pairs"].as_array().unwrap().iter().all(|pair| pair["ratio"].as_f64().unwrap() > 0.0));
    let tables = fs::read_to_string(out.join("first.md")).unwrap();
    assert!(tables.contains("one file, mount --wait"), "{tables}");
    assert!(is_empty(&machine.directory("work")));

    let (report, other) = (out.join("first.json"), out.join("other.json"));
    let compare = |new: &Path| {
        machine.run(&["bench".as_ref(), "compare".as_ref(), report.as_os_str(), new.as_os_str()])
    };
    let same = compare(&report);
    assert_eq!(same.code, Some(0), "{}", same.err);
    assert!(same.out.ends_with(" rows compared, 0 worse, 0 better\n"), "{}", same.out);
    let mut slower = json.clone();
    fs::write(&other, slower.to_string()).unwrap();
    let held = compare(&other);
    assert_eq!((held.code, held.out.lines().next()), (Some(0), Some("9 rows compared, 0 worse, 0 better")));
    // The memory that it needed, ten times.
    for figure in slower["groups"][0]["figures"].as_array_mut().unwrap() {
        let peak = figure["value"]["samples"][0].as_f64().unwrap();
        figure["value"]["samples"][0] = (10.0 * peak).into();
    }
    fs::write(&other, slower.to_string()).unwrap();
    let held = compare(&other);
    assert_eq!(held.code, Some(1), "{}", held.out);
    assert!(held.out.contains("worse: Cold from S3: one file, mount --wait: peak memory"), "{}", held.out);
}

#[test]
fn bench_interrupted_leaves_nothing_behind() {
    let machine = Machine::new();
    let arguments: Vec<_> = arguments(&machine, "none")
        .into_iter()
        // So much, and so often, that it can't be done before it is interrupted.
        .map(|one| if one == "8M" { "64M".to_owned() } else { one })
        .map(|one| if one == "1" { "200".to_owned() } else { one })
        .collect();
    let work = machine.directory("work");
    let mut running = machine.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    eventually("it mounts", || mounts(&work) > 0);
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert!(is_empty(&work) && mounts(&work) == 0);
}

#[test]
fn bench_command_passes_options_and_names_missing_program() {
    let here = tempfile::tempdir_in(target()).unwrap();
    let bdnfs = here.path().join("bdnfs");
    fs::hard_link(target().join("bdnfs"), &bdnfs).unwrap();
    let run =
        || Command::new(&bdnfs).args(["bench", "--quick", "--help", "-v"]).env("PATH", "").output().unwrap();
    let missing = run();
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert_eq!(missing.status.code(), Some(1));
    assert!(said.starts_with("bdnfs: bdnfs-bench: not found beside") && said.lines().count() == 1, "{said}");

    let program = here.path().join("bdnfs-bench");
    fs::write(&program, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let found = run();
    assert_eq!((found.status.code(), &*found.stdout), (Some(7), b"--quick --help -v\n".as_slice()));
}
