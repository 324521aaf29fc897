//! Native mounts: what is staged is served by the kernel alone, whatever becomes of the agent.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same_tree, regular_files, write_file, write_odd_tree, write_tree};

/// The type of the file system at `point`.
fn kind(point: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_there = |line: &&str| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == point);
    let line = table.lines().rfind(is_there).unwrap_or_default();
    line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned()
}

fn states(machine: &Machine) -> Vec<String> {
    let cache = machine.cache().to_str().unwrap().to_owned();
    let output = machine.run(&["status", "--json", "--cache-dir", &cache]).succeeds();
    let output: serde_json::Value = serde_json::from_str(&output).unwrap();
    let mounts = output["mounts"].as_array().cloned().unwrap_or_default();
    mounts.iter().map(|mount| mount["state"].as_str().unwrap_or_default().to_owned()).collect()
}

fn state(machine: &Machine) -> String {
    states(machine).into_iter().next().unwrap_or_default()
}

/// A source with small, large and odd files.
fn source(machine: &Machine) -> std::path::PathBuf {
    let source = machine.directory("source");
    write_tree(&source);
    write_odd_tree(&source);
    write_file(&source, "large", 3 * MIB + 17);
    source
}

#[test]
fn native_mount_of_staged_source_equals_the_original_and_status_says_so() {
    let machine = Machine::new();
    let source = source(&machine);
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "native"]);
    assert_eq!(kind(&point), "erofs");
    assert_eq!(state(&machine), "staged, native");
    drop_caches();
    assert_same_tree(&source, &point);
    machine.umount(&point);
    assert!(!is_mounted(&point));
    // What was made for it serves the next one.
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "auto"]);
    assert_eq!(kind(&point), "erofs");
    assert_same_tree(&source, &point);
}

#[test]
fn native_mount_of_what_is_staged_at_once_is_waited_for() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "small", 1000);
    let agent = machine.agent("");
    let points: Vec<_> = (0..40)
        .map(|number| machine.mount_with(&source, &number.to_string(), &["--wait", "--via", "native"]))
        .inspect(|point| assert_eq!(kind(point), "erofs", "{}", point.display()))
        .collect();
    points.iter().for_each(|point| machine.umount(point));
    agent.stop();
}

#[test]
fn native_mount_in_use_at_its_gate_stays_with_the_agent_and_says_so() {
    let env = TestEnv::new();
    env.put("file", 8 * MIB);
    env.proxy.set(NetworkFault { rate: Some(4 * MIB as u64), ..NetworkFault::default() });
    let point = env.machine.directory("model");
    let (at, cache) = (point.to_str().unwrap(), env.machine.cache().to_str().unwrap());
    let options = ["mount", "--wait", "--via", "native", "--cache-dir", cache, "s3://bucket", at];
    let staging = env.machine.command(&options).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    eventually("it is mounted", || is_mounted(&point));
    let open = File::open(point.join("file")).unwrap();
    let output = staging.wait_with_output().unwrap();
    assert!(output.status.success());
    let output = String::from_utf8(output.stderr).unwrap();
    assert!(output.contains("it is served by FUSE: it was in use"), "{output}");
    assert_eq!((kind(&point).as_str(), state(&env.machine).as_str()), ("fuse.bdnfs", "staged"));
    drop(open);
}

#[test]
fn native_mount_without_room_for_its_pack_stays_with_the_agent_and_says_so() {
    let machine = Machine::new();
    let source = machine.directory("source");
    // Small files are stored a second time, in the pack.
    (0..40).for_each(|number| drop(write_file(&source, number.to_string(), 100_000)));
    let point = machine.directory("model");
    let options = ["--wait", "--via", "native", "--cache-size", "6MB"];
    let output = machine.try_mount(&source, &point, &options);
    assert!(output.err.contains("it is served by FUSE: "), "{}", output.err);
    assert_eq!((kind(&point).as_str(), state(&machine).as_str()), ("fuse.bdnfs", "staged"));
    assert_same_tree(&source, &point);
}

#[test]
fn native_mount_whose_agent_and_fdstore_are_killed_serves_every_read() {
    let machine = Machine::new();
    let source = source(&machine);
    let mut agent = Some(machine.agent(""));
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "native"]);
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let (stop, reads, agent_slot) = (&stop, &reads, &mut agent);
    thread::scope(|scope| {
        scope.spawn(|| {
            let files = regular_files(&point);
            while !stop.load(Relaxed) {
                for (file, _) in &files {
                    let (mut bytes, original) = (Vec::new(), fs::read(source.join(file)).unwrap());
                    File::open(point.join(file)).unwrap().read_to_end(&mut bytes).unwrap();
                    assert!(bytes == original, "{file:?}");
                    reads.fetch_add(1, Relaxed);
                }
                drop_caches();
            }
        });
        for _ in 0..3 {
            let agent = agent_slot.take().unwrap();
            machine.kill_fdstore();
            agent.crash();
            let before = reads.load(Relaxed);
            eventually("reads without an agent", || reads.load(Relaxed) > before + 20);
            *agent_slot = Some(machine.agent(""));
            eventually("the next agent has it", || state(&machine) == "staged, native");
        }
        stop.store(true, Relaxed);
    });
    machine.umount(&point);
    assert!(!is_mounted(&point));
    agent.take().unwrap().stop();
}

#[test]
fn native_mount_left_by_a_killed_agent_can_be_unmounted() {
    let machine = Machine::new();
    let source = source(&machine);
    let agent = machine.agent("");
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "native"]);
    agent.crash();
    machine.umount(&point);
    assert!(!is_mounted(&point));
    // The next agent finds it unmounted, and mounts what its record says.
    let agent = machine.agent("");
    eventually("it is back", || kind(&point) == "erofs");
    machine.umount(&point);
    agent.stop();
}

#[test]
fn native_mount_of_a_killed_on_demand_agent_is_told_by_status_and_ends_with_umount() {
    let machine = Machine::new();
    let (source, other) = (source(&machine), machine.directory("other"));
    fs::write(other.join("file"), "another").unwrap();
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "native"]);
    assert_eq!(kind(&point), "erofs");
    machine.crash();
    let orphaned = "native: the kernel serves it, and no agent has it";
    assert_eq!(states(&machine), [orphaned]);
    drop_caches();
    assert_same_tree(&source, &point);
    // Another agent of the cache does not have it, either.
    let beside = machine.mount(&other, "beside");
    assert!(states(&machine).contains(&orphaned.to_owned()));
    machine.umount(&point);
    assert!(!is_mounted(&point) && is_mounted(&beside));
    machine.umount(&beside);
    assert_eq!(states(&machine), [""; 0]);
    // It does not come back.
    let point = machine.mount_with(&source, "again", &["--wait", "--via", "native"]);
    assert_eq!(states(&machine), ["staged, native"]);
    machine.umount(&point);
}

#[test]
fn native_mounts_of_one_snapshot_are_one_superblock_and_end_one_by_one() {
    let machine = Machine::new();
    let source = source(&machine);
    let mut agent = machine.agent("");
    let options = ["--wait", "--via", "native"];
    let points = ["one", "two", "three"].map(|name| machine.mount_with(&source, name, &options));
    let other = machine.mount_with(&source, "other", &[&options[..], &["--uid", "7"]].concat());
    let device = |point: &Path| fs::metadata(point).unwrap().dev();
    let [one, two, three] = &points;
    assert!(device(one) == device(two) && device(two) == device(three) && device(one) != device(&other));
    machine.umount(one);
    assert!(!is_mounted(one));
    agent.crash();
    agent = machine.agent("");
    eventually("the next agent has three of them", || states(&machine) == ["staged, native"; 3]);
    // What is mounted now is that superblock as well.
    machine.mount_with(&source, "one", &options);
    assert_eq!(device(one), device(three));
    machine.umount(two);
    eventually("it is forgotten", || states(&machine).len() == 3);
    drop_caches();
    assert_same_tree(&source, three);
    for point in [one, three, &other] {
        machine.umount(point);
        assert!(!is_mounted(point));
    }
    agent.stop();
}

#[test]
fn job_of_an_agent_that_prefers_native_mounts_reads_from_the_kernel() {
    let machine = Machine::new();
    let source = source(&machine);
    let agent = machine.agent("via = \"auto\"");
    let spec = machine.directory("specs").join("job.toml");
    let place = machine.directory("job").join("weights");
    let text = format!(
        "[runtime]\nstart_commands = [\"stat -f -c %T {0}\", \"cat {0}/large | sha256sum\"]\n[[weights]]\nsource = \"file://{1}\"\nmount_location = \"{0}\"\n",
        place.display(),
        source.display()
    );
    fs::write(&spec, text).unwrap();
    let output = machine.run(&["job", "run", spec.to_str().unwrap()]).succeeds();
    // What coreutils call a magic number that they know, or not.
    assert!(output.contains("erofs") || output.contains("e0f5e1e2"), "{output}");
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(machine.cache().to_str().unwrap()));
    agent.stop();
}
