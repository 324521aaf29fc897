//! The cache commands: summarize, evict, verify, pin; quotas, and admission.

use std::fs::{self, File, FileTimes};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_local;
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::largest_file;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, assert_same_tree, total_bytes, write_file};
use serde_json::Value;

fn text(path: &Path) -> &str {
    path.to_str().expect("ours are text")
}

/// `bdnfs cache`, on the cache of `machine`.
fn cache(machine: &Machine, arguments: &[&str]) -> bdnfs_tests::command_output::CommandOutput {
    let mut all = vec!["cache"];
    all.extend(arguments);
    all.extend(["--cache-dir", text(machine.cache())]);
    machine.run(&all)
}

fn summary(machine: &Machine) -> Value {
    serde_json::from_str(&cache(machine, &["summarize", "--json"]).succeeds()).expect("JSON")
}

/// The blobs of a machine's cache, whole ones and parts.
fn blobs(machine: &Machine) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for tenant in fs::read_dir(machine.cache().join("tenants")).unwrap().flatten() {
        for shard in fs::read_dir(tenant.path().join("blobs")).unwrap().flatten() {
            found.extend(fs::read_dir(shard.path()).unwrap().flatten().map(|entry| entry.path()));
        }
    }
    found
}

#[test]
fn cache_command_whose_agent_ends_while_it_is_asked_works_without_one() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "x", MIB);
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    machine.umount(&point);
    eventually("the agent ends with its last mount", || machine.agent_pids().is_empty());
    let socket = machine.cache().join("control.sock");
    for (command, said) in [("summarize", text(&source)), ("verify", "1 blob verified")] {
        // An agent that still listens, and has ended before it answers.
        let listener = UnixListener::bind(&socket).unwrap();
        let ending = thread::spawn({
            let socket = socket.clone();
            move || {
                drop(listener.accept().unwrap());
                let asked = listener.accept().unwrap();
                fs::remove_file(socket).unwrap();
                drop((asked, listener));
            }
        });
        let output = cache(&machine, &[command]).succeeds();
        assert!(output.contains(said), "{output}");
        ending.join().unwrap();
    }
}

#[test]
fn cache_pin_of_a_local_source_finds_it_by_every_path_that_leads_to_it() {
    let machine = Machine::new();
    let (source, near) = (machine.directory("far/source"), machine.directory("near"));
    write_file(&source, "x", 1000);
    symlink(&source, near.join("link")).unwrap();
    machine.mount_with(near.join("link"), "mnt", &["--wait"]);
    for name in [text(&source), text(&near.join("link/../source")), text(&near.join("link")), "./link"] {
        let mut command = machine.command(&["cache", "pin", name, "--cache-dir", text(machine.cache())]);
        command.current_dir(&near);
        let output = machine.run_command(command).succeeds();
        assert!(output.contains("1 snapshot pinned"), "{name}: {output}");
    }
}

#[test]
fn cache_summarize_with_and_without_agent_lists_sources() {
    let machine = Machine::new();
    let (one, two) = (machine.directory("one"), machine.directory("two"));
    for (source, sizes) in [(&one, [3 * MIB, 5]), (&two, [2 * MIB, 7])] {
        for (number, size) in sizes.into_iter().enumerate() {
            write_file(source, format!("{}/{number}", source.file_name().unwrap().to_str().unwrap()), size);
        }
    }
    let point = machine.mount_with(&one, "mnt1", &["--wait"]);
    let lazy = machine.mount(&two, "mnt2");
    fs::read(lazy.join("two/1")).unwrap();
    let line = |summary: &Value, source: &Path| {
        let lines = summary["snapshots"].as_array().unwrap();
        let named = format!("file://{}", source.display());
        lines
            .iter()
            .find(|line| line["source"] == named.as_str())
            .unwrap_or_else(|| panic!("{summary}"))
            .clone()
    };
    let owned = summary(&machine);
    let first = line(&owned, &one);
    assert_eq!(
        (&first["files"], &first["files_local"], &first["bytes"]),
        (&2.into(), &2.into(), &(3 * MIB + 5).into())
    );
    assert_eq!(first["in_use_by"][0], text(&point));
    assert_eq!(line(&owned, &two)["files"], 2);
    // It is answered before it is written.
    eventually("what was read is local", || line(&summary(&machine), &two)["files_local"] == 1);
    let table = cache(&machine, &["summarize"]).succeeds();
    assert!(table.contains("SOURCE") && table.contains(text(&point)) && table.contains("2 of 2"), "{table}");

    // What is staged stays; of what is only mounted, what is not open goes.
    let output = cache(&machine, &["evict", "--all"]).succeeds();
    assert!(output.contains("not evicted"), "{output}");
    assert_same_tree(&one, &point);
    assert!(is_local(&point.join("one/0")));
    assert_same_tree(&two, &lazy);
    machine.umount(&point);
    machine.umount(&lazy);

    let ownerless = summary(&machine);
    assert!(machine.agent_pids().is_empty());
    assert_eq!(line(&ownerless, &one)["in_use_by"].as_array().unwrap().len(), 0);
    let id = line(&ownerless, &one)["snapshot"].as_str().unwrap()[..12].to_owned();
    cache(&machine, &["evict", &id]).succeeds();
    assert_eq!(summary(&machine)["snapshots"].as_array().unwrap().len(), 1);
    cache(&machine, &["evict", text(&one)]).fails(&["nothing of", text(&one)]);
    cache(&machine, &["evict", "--all"]).succeeds();
    assert!(blobs(&machine).is_empty());
    assert_eq!(summary(&machine)["tenants"][0]["bytes"], 0);
}

#[test]
fn cache_command_on_missing_cache_fails_and_creates_none() {
    let machine = Machine::new();
    let (missing, empty) = (machine.cache().join("typo"), machine.directory("empty"));
    for command in [&["summarize"][..], &["verify"], &["evict", "--all"], &["pin", "--all"]] {
        for directory in [&missing, &empty] {
            let ran = machine.run(&[&["cache"][..], command, &["--cache-dir", text(directory)]].concat());
            ran.fails(&["no cache found at", text(directory)]);
        }
    }
    assert!(!missing.exists() && fs::read_dir(&empty).unwrap().next().is_none());
}

#[test]
fn cache_pin_under_eviction_keeps_the_snapshot() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 3 * MIB);
    machine.umount(&machine.mount_with(&source, "mnt", &["--wait"]));
    let output = cache(&machine, &["pin", text(&source)]).succeeds();
    assert!(output.starts_with("1 snapshot pinned"), "{output}");
    let agent = machine.agent("");
    assert_eq!(summary(&machine)["snapshots"][0]["pinned"], true);
    cache(&machine, &["evict", "--all"]).succeeds();
    assert_eq!(blobs(&machine).len(), 1);
    cache(&machine, &["unpin", text(&source)]).succeeds();
    cache(&machine, &["evict", "--all"]).succeeds();
    assert_eq!(blobs(&machine).len(), 0);
    drop(agent);
}

#[test]
fn cache_verify_on_rotten_blob_repairs_it() {
    let env = TestEnv::new();
    let bytes = env.put("dir/rotten", 3 * MIB + 9);
    env.put("sound", 2 * MIB);
    let machine = &env.machine;
    machine.umount(&machine.mount_with("s3://bucket", "mnt", &["--wait"]));
    let output = cache(machine, &["verify"]).succeeds();
    assert!(output.starts_with("2 blobs verified"), "{output}");
    let rotten =
        blobs(machine).into_iter().find(|blob| fs::metadata(blob).unwrap().len() > 3 * MIB as u64).unwrap();
    fs::set_permissions(&rotten, fs::Permissions::from_mode(0o600)).unwrap();
    fs::File::options().write(true).open(&rotten).unwrap().write_all_at(b"rot", 2_000_000).unwrap();
    let ran = cache(machine, &["verify"]);
    assert!(ran.out.contains("damaged: s3://bucket") && ran.out.contains("dir/rotten"), "{}", ran.out);
    ran.fails(&["1 blob damaged"]);
    assert!(!rotten.exists());
    env.s3.requests.clear();
    let point = machine.mount_with("s3://bucket", "mnt", &["--wait"]);
    assert_same(&bytes, &fs::read(point.join("dir/rotten")).unwrap(), "what was fetched again");
    assert_eq!(env.fetched("sound").requests, 0);
}

#[test]
fn quota_reached_evicts_only_that_tenant() {
    let env = TestEnv::new();
    for name in ["a/1", "a/2", "b/1", "b/2"] {
        env.put(name, 3 * MIB);
    }
    let agent = env.machine.agent("[tenants.bob]\nquota = \"7MiB\"");
    let staged = |prefix: &str, tenant: &str, name: &str| {
        let point = env.machine.directory(name);
        let source = format!("s3://bucket/{prefix}");
        env.machine.try_mount(source, &point, &["--wait", "--tenant", tenant])
    };
    staged("a", "alice", "alice-a").succeeds();
    staged("b", "alice", "alice-b").succeeds();
    staged("a", "bob", "bob-a").succeeds();
    // Nothing is shared: what alice has was fetched once more.
    assert_eq!(env.fetched("a/1").bytes, 2 * 3 * MIB as u64);
    let line = staged("b", "bob", "bob-b").fails(&["s3://bucket/b", "needs", "s3://bucket/a"]);
    assert!(!line.contains("tenants"), "{line}");
    env.machine.umount(&env.machine.directory("bob-a"));
    staged("b", "bob", "bob-b").succeeds();
    let summary = summary(&env.machine);
    let tenants = summary["tenants"].as_array().unwrap();
    let bob = tenants.iter().find(|tenant| tenant["tenant"] == "bob").unwrap();
    assert_eq!(bob["quota"], 7 << 20);
    assert!(bob["bytes"].as_u64().unwrap() <= 7 << 20, "{summary}");
    drop(agent);
}

#[test]
fn stage_on_a_disk_below_its_reserve_is_refused_until_the_reserve_is_smaller() {
    let env = TestEnv::new();
    env.put("weights", MIB);
    let point = env.machine.directory("mnt");
    let stage = |reserve: &str| {
        let cache = env.machine.directory(reserve);
        let options = ["--wait", "--cache-dir", text(&cache), "--cache-reserve", reserve];
        env.machine.run(&[&["mount"], &options[..], &["s3://bucket", text(&point)]].concat())
    };
    // No disk has so much.
    let refused = stage("9000TB");
    refused.fails(&["s3://bucket", "has room for 0", "leave less of its disk free with --cache-reserve"]);
    assert_eq!(env.fetched("weights").requests, 0, "refused before anything was fetched");
    stage("1MiB").succeeds();
    assert_same_tree(&env.bucket(), &point);
}

#[test]
fn stage_without_space_is_refused_with_lease_holders() {
    let env = TestEnv::new();
    for name in ["one", "two", "three"] {
        env.put(&format!("{name}/weights"), 4 * MIB);
    }
    let agent = env.machine.agent("cache_size = \"9MiB\"");
    let point = |name: &str| env.machine.directory(name);
    let stage = |name: &str, place: &str| {
        env.machine.try_mount(format!("s3://bucket/{name}"), &point(place), &["--wait"])
    };
    stage("one", "1").succeeds();
    stage("one", "again").succeeds();
    stage("two", "2").succeeds();
    env.s3.requests.clear();
    stage("three", "3").fails(&["needs", "s3://bucket/one", "s3://bucket/two", "--cache-size"]);
    assert_eq!(env.fetched("").bytes, 0, "refused before anything was fetched");
    for place in ["1", "again"] {
        env.machine.umount(&point(place));
    }
    stage("three", "3").succeeds();
    assert_eq!(total_bytes(&point("3")), 4 * MIB as u64);
    assert!(is_local(&point("2").join("weights")), "what is leased was not evicted");
    drop(agent);
}

#[test]
fn status_of_a_mount_is_no_use_of_its_blobs() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "model", 3 * MIB);
    let agent = machine.agent("");
    machine.umount(&machine.mount_with(&source, "mnt", &["--wait"]));
    // What this agent has open it marks as used when it closes it.
    agent.stop();
    let blob = largest_file(&machine.cache().join("tenants"));
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    File::open(&blob).unwrap().set_times(FileTimes::new().set_accessed(before)).unwrap();
    let agent = machine.agent("");
    let point = machine.mount(&source, "mnt");
    let used = || blob.metadata().unwrap().accessed().unwrap();
    let status = machine.run(&["status", "--cache-dir", text(machine.cache())]).succeeds();
    assert!(status.contains("100 %"), "{status}");
    assert!(is_local(&point.join("model")));
    assert_eq!(used(), before);
    fs::read(point.join("model")).unwrap();
    eventually("a read is a use", || used() > before);
    machine.umount(&point);
    agent.stop();
}
