//! Mount locations that do not exist on the host, and what a job writes beside them.

use std::fs;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::test_env::TestEnv;
use serde_json::Value;

use crate::kit::{events, job, spec, text, toml};

#[test]
fn job_with_volumes_in_a_source_writes_to_them() {
    let env = TestEnv::new();
    env.put("file", MIB);
    let machine = &env.machine;
    let commands = ["set -e; wc -c < /mnt/file; echo x > $BT_SCRATCH_DIR/x; ls -d /mnt/*; ! touch /mnt/file"];
    let file = spec(machine, "job.toml", &toml(&[("s3://bucket", "/mnt")], &commands));
    let words = ["run", "--no-mirror", "--cache-dir", text(machine.cache()), text(&file)];
    let ran = job(machine, &words);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert_eq!(ran.out, "1048576\n/mnt/bt-scratch\n/mnt/file\n");
}

#[test]
fn job_with_mounts_in_its_own_volume_hides_nothing() {
    let env = TestEnv::new();
    env.put("file", MIB);
    let machine = &env.machine;
    let source = [("s3://bucket", "/mnt/bt-scratch/loaded/model")];
    let commands = ["wc -c < $BT_LOAD_CHECKPOINT_DIR/model/file; echo x > $BT_LOAD_CHECKPOINT_DIR/x"];
    let load =
        "[runtime.load_checkpoint_config]\nenabled = true\ndownload_folder = \"/mnt/bt-scratch/loaded\"\n";
    let file = spec(machine, "job.toml", &(toml(&source, &commands) + load));
    let words = ["run", "--cache-dir", text(machine.cache())];
    let mirror = format!("file://{}", text(&machine.directory("mirror")));
    let ran = job(machine, &[&words[..], &["--mirror", &mirror, text(&file)]].concat());
    assert_eq!((ran.code, &*ran.out), (Some(0), "1048576\n"), "{}", ran.err);
    assert!(!ran.err.contains("hidden"), "{}", ran.err);
}

#[test]
fn job_with_missing_mount_location_can_write_beside_it() {
    let env = TestEnv::new();
    env.put("file", MIB);
    let machine = &env.machine;
    let work = machine.directory("work");
    fs::write(work.join("kept"), "kept\n").unwrap();
    fs::create_dir(work.join("sub")).unwrap();
    // The root is covered, too.
    let at_root = Path::new("/bdnfs-test-of-a-missing-location");
    let commands = [
        "set -e; t=$(mktemp -p . name.XXXXXX); echo x > $t; mkdir -p new/deep models/own; echo log > new/deep/log; \
         mv new newer; cat newer/deep/log $t; rm $t",
        "set -e; echo more >> kept; echo x > sub/x; wc -c < models/m/file",
        "touch models/m/x 2>/dev/null || echo sources are read-only",
        "dd if=/dev/zero of=big bs=1M count=300 2>/dev/null || echo $(($(stat -c %s big) >> 20)) MiB at most",
        "touch /bdnfs-test-of-a-missing-location/x && ls /bdnfs-test-of-a-missing-location",
    ];
    let (inside, outside) = (work.join("models/m"), at_root.join("m"));
    let sources = [("s3://bucket", text(&inside)), ("s3://bucket", text(&outside))];
    let file = spec(machine, "job.toml", &toml(&sources, &commands));
    let options =
        ["run", "--json", "--no-mirror", "--workdir", text(&work), "--cache-dir", text(machine.cache())];
    let ran = job(machine, &[&options[..], &[text(&file)]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    for line in ["log\nx\n", "1048576\n", "sources are read-only\n", "255 MiB at most\n", "m\nx\n"] {
        assert!(ran.err.contains(line), "{line}: {}", ran.err);
    }
    let ended: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    for directory in [text(&work), "/"] {
        let words = format!("new entries of {directory} are kept in memory");
        assert!(events(&ended).iter().any(|event| event.contains(&words)), "{ended:#}");
    }
    // What there was is the host's, and nothing else is there.
    assert_eq!(fs::read_to_string(work.join("kept")).unwrap(), "kept\nmore\n");
    assert!(work.join("sub/x").exists() && !at_root.exists());
    let mut left: Vec<_> = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["kept", "sub"]);
}
