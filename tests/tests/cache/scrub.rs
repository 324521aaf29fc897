//! Rot at rest: what is read again and again, or before a stage ends, is found, named and repaired.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use axum::http::StatusCode;
use bdnfs_tests::MIB;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_local, xattr};
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::{flip_byte, largest_file, largest_files};
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, write_file};
use rustix::process::{Signal, kill_process};

#[test]
fn scrubber_with_rot_at_rest_repairs_a_mounted_file() {
    let env = TestEnv::new();
    let bytes = env.put("model", 17 * MIB + 9);
    let agent = env.machine.agent("scrub_interval = \"0s\"");
    let model = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]).join("model");
    flip_byte(&largest_file(&env.machine.cache().join("tenants")), MIB as u64 + 5);
    assert_ne!(fs::read(&model).unwrap(), bytes, "the kernel reads what lies on the disk");
    // Not before: a scrubber may find it before it is read.
    agent.end();
    let agent = env.machine.agent("scrub_interval = \"2s\"");
    eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
    // Mounts are told before it is counted.
    eventually("it is counted", || !agent.get("/metrics").body.contains("bdnfs_scrub_damaged_total 0"));
    eventually("it is named", || {
        agent.log().contains("found damaged data in the cache and removed it: s3://bucket")
    });
    let cache = env.machine.cache().to_str().unwrap();
    // The pass that found it may not be over.
    eventually("the scrub is told", || {
        let output = env.machine.run(&["cache", "summarize", "--cache-dir", cache]).succeeds();
        output.contains("last scrub 20")
    });
    drop(agent);
}

#[test]
fn cache_verify_on_rotten_blob_repairs_a_native_mount() {
    for (large, offset) in [(3 * MIB + 9, MIB as u64 + 5), (70_000, 5)] {
        let env = TestEnv::new();
        let bytes = env.put("model", large);
        let agent = env.machine.agent("scrub_interval = \"0s\"");
        let model =
            env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--via", "native"]).join("model");
        assert_eq!(fs::read(&model).unwrap(), bytes);
        // Of what is small, the pack.
        let blobs = largest_files(&env.machine.cache().join("tenants"), large as u64);
        blobs.iter().for_each(|blob| flip_byte(blob, offset));
        drop_caches();
        assert_ne!(fs::read(&model).unwrap(), bytes, "the kernel reads what lies on the disk");
        let cache = env.machine.cache().to_str().unwrap();
        env.machine.run(&["cache", "verify", "--cache-dir", cache]).fails(&["damaged"]);
        eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
        eventually("it is named", || agent.log().contains("a native mount was repaired"));
        drop(agent);
    }
}

/// How much of the file at `path` is local.
fn local_bytes(path: &Path) -> usize {
    xattr(path, "user.bdnfs.local").split('/').next().unwrap().parse().unwrap()
}

#[test]
fn cache_verify_on_rotten_blob_repairs_a_fuse_mount_that_goes_on() {
    // What is whole, large or small, and a part of a file.
    for (size, offset, is_staged) in
        [(17 * MIB + 9, MIB + 5, true), (70_000, 5, true), (17 * MIB, MIB + 5, false)]
    {
        let env = TestEnv::new();
        let bytes = env.put("model", size);
        let agent = env.machine.agent("scrub_interval = \"0s\"");
        let options: &[&str] = if is_staged { &["--wait"] } else { &[] };
        let model = env.machine.mount_with("s3://bucket", "mnt", options).join("model");
        let mut part = vec![0; size.min(2 * MIB)];
        let mut read_part =
            || File::open(&model)?.read_exact_at(&mut part, 0).map(|()| part == bytes[..part.len()]);
        assert!(read_part().unwrap());
        // It is answered before it is written, and what comes after it is fetched ahead.
        eventually("all that comes is stored", || {
            let before = local_bytes(&model);
            sleep(Duration::from_millis(300));
            before >= size.min(2 * MIB) && local_bytes(&model) == before
        });
        let damage = || {
            flip_byte(&largest_file(&env.machine.cache().join("tenants")), offset as u64);
            drop_caches();
        };
        damage();
        let is_right = read_part().unwrap();
        // A part of a file may be read from memory.
        assert!(!is_right || !is_staged, "what lies on the disk is read");
        let verify = || {
            let cache = env.machine.cache().to_str().unwrap();
            env.machine.run(&["cache", "verify", "--cache-dir", cache])
        };
        env.s3.faults.set(ServerFault::Status(StatusCode::FORBIDDEN, None));
        verify().fails(&["damaged"]);
        // From here on no read is wrong, though nobody has the right bytes.
        for _ in 0..20 {
            assert!(read_part().unwrap_or(true));
        }
        verify();
        assert!(read_part().unwrap_or(true));
        env.s3.faults.clear();
        eventually("it is read right again", || read_part().is_ok_and(|is_right| is_right));
        assert_same(&bytes, &fs::read(&model).unwrap(), "all of it");
        verify().succeeds();
        // A program that has it open may go on reading what was removed, but no verification says that all is well then.
        let open = File::open(&model).unwrap();
        eventually("it is local", || is_local(&model));
        let stored = || largest_file(&env.machine.cache().join("tenants"));
        eventually("it is stored whole", || stored().extension().is_none_or(|form| form != "part"));
        damage();
        verify().fails(&["damaged"]);
        let mut byte = [0];
        eventually("it is read", || open.read_exact_at(&mut byte, offset as u64).is_ok());
        if byte[0] != bytes[offset] {
            verify().fails(&[]);
        }
        drop(open);
        eventually("all is well", || verify().code == Some(0));
        assert_same(&bytes, &fs::read(&model).unwrap(), "when all is well");
        agent.stop();
    }
}

#[test]
fn native_mount_damaged_again_after_a_repair_is_repaired_again() {
    let env = TestEnv::new();
    let bytes = env.put("model", 3 * MIB + 9);
    let agent = env.machine.agent("scrub_interval = \"0s\"");
    let model = env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--via", "native"]).join("model");
    let cache = env.machine.cache().to_str().unwrap().to_owned();
    let file = File::open(&model).unwrap();
    // SAFETY: what is mapped is only looked for in the agent's log.
    let mapped = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    for _ in 0..3 {
        assert_eq!(fs::read(&model).unwrap(), bytes);
        flip_byte(&largest_file(&env.machine.cache().join("tenants")), MIB as u64 + 5);
        drop_caches();
        assert_ne!(fs::read(&model).unwrap(), bytes, "the kernel reads the cache's file");
        env.machine.run(&["cache", "verify", "--cache-dir", &cache]).fails(&["damaged"]);
        eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
        env.machine.run(&["cache", "verify", "--cache-dir", &cache]).succeeds();
    }
    let program = format!("({})", std::process::id());
    eventually("who has it mapped is named", || agent.log().contains(&program));
    drop((mapped, agent));
}

#[test]
fn native_mount_whose_agent_died_before_the_repair_is_repaired_by_the_next() {
    // Where the source is there, the agent dies at any moment of the repair.
    for (size, offset, is_away) in
        [(3 * MIB + 9, MIB as u64 + 5, true), (70_000, 5, true), (3 * MIB + 9, MIB as u64 + 5, false)]
    {
        let machine = Machine::new();
        let (source, away) = (machine.directory("source"), machine.directory("elsewhere").join("models"));
        let models = source.join("models");
        fs::create_dir(&models).unwrap();
        let bytes = write_file(&models, "model", size);
        let agent = machine.agent("scrub_interval = \"0s\"");
        let model = machine.mount_with(&source, "mnt", &["--wait", "--via", "native"]).join("models/model");
        let blobs = largest_files(&machine.cache().join("tenants"), size as u64);
        blobs.iter().for_each(|blob| flip_byte(blob, offset));
        drop_caches();
        assert_ne!(fs::read(&model).unwrap(), bytes, "the kernel reads what lies on the disk");
        if is_away {
            fs::rename(&models, &away).unwrap();
        }
        let cache = machine.cache().to_str().unwrap();
        machine.run(&["cache", "verify", "--cache-dir", cache]).fails(&["damaged"]);
        agent.crash();
        if is_away {
            assert_ne!(fs::read(&model).unwrap(), bytes, "nobody has repaired it");
            fs::rename(&away, &models).unwrap();
        }
        let agent = machine.agent("scrub_interval = \"0s\"");
        eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
        machine.umount(&machine.directory("mnt"));
        agent.stop();
    }
}

#[test]
fn mount_whose_agent_died_before_it_told_of_removed_damage_is_read_right_with_the_next() {
    // The kernel reads the first by itself, and caches the second. The agent dies somewhere on its way, or exactly between removal
    // and telling.
    for (size, is_between) in [(17 * MIB, false), (70_000, false), (17 * MIB, true), (70_000, true)] {
        let env = TestEnv::new();
        let bytes = env.put("model", size);
        let next_agent = || env.machine.agent("scrub_interval = \"0s\"");
        let agent = next_agent();
        let model = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]).join("model");
        let tenant = env.machine.cache().join("tenants/default");
        let (blob, removals) = (largest_file(&tenant), tenant.join("removals"));
        flip_byte(&blob, 5);
        let held = File::open(&model).unwrap();
        assert_ne!(fs::read(&model).unwrap(), bytes, "the kernel reads what lies on the disk");
        if is_between {
            agent.crash();
            File::create(removals.join(blob.file_name().unwrap())).unwrap();
            fs::remove_file(&blob).unwrap();
        } else {
            let cache = env.machine.cache().to_str().unwrap();
            env.machine.run(&["cache", "verify", "--cache-dir", cache]).fails(&["damaged"]);
            agent.crash();
        }
        let agent = next_agent();
        eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
        eventually("nothing is left to tell", || fs::read_dir(&removals).unwrap().next().is_none());
        // Nobody has the file open in its right state, and the name is looked up anew.
        agent.crash();
        let agent = next_agent();
        drop_caches();
        assert_same(&bytes, &fs::read(&model).unwrap(), "what the next agent's mount shows");
        drop(held);
        env.machine.umount(&env.machine.directory("mnt"));
        agent.stop();
    }
}

#[test]
fn damaged_file_open_or_mapped_since_an_earlier_agent_is_named_by_verify_until_it_is_closed() {
    for (is_mapped, is_removed_before) in [(false, true), (true, true), (false, false), (true, false)] {
        let case = format!("mapped: {is_mapped}, removed before: {is_removed_before}");
        let env = TestEnv::new();
        let bytes = env.put("model", 17 * MIB);
        let cache = env.machine.cache().to_str().unwrap();
        let verify = || env.machine.run(&["cache", "verify", "--cache-dir", cache]);
        let next_agent = || env.machine.agent("scrub_interval = \"0s\"");
        let mut agent = next_agent();
        let model = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]).join("model");
        let file = File::open(&model).unwrap();
        // SAFETY: what is mapped is not read.
        let mapped = is_mapped.then(|| unsafe { memmap2::Mmap::map(&file) }.unwrap());
        let file = Some(file).filter(|_| !is_mapped);
        flip_byte(&largest_file(&env.machine.cache().join("tenants")), 5);
        if is_removed_before {
            verify().fails(&["1 blob damaged"]);
        }
        agent.crash();
        agent = next_agent();
        if !is_removed_before {
            verify().fails(&["1 blob damaged"]);
        }
        eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
        for _ in 0..2 {
            let ran = verify();
            assert!(ran.out.contains("model: removed before, and still open"), "{case}: {}", ran.out);
            ran.fails(&["1 file removed before"]);
            agent.crash();
            agent = next_agent();
        }
        drop((file, mapped));
        eventually(&format!("all is well ({case})"), || verify().code == Some(0));
        env.machine.umount(&env.machine.directory("mnt"));
        agent.stop();
    }
}

#[test]
fn mount_whose_fdstore_is_stopped_or_killed_reads_anew_what_was_damaged() {
    for kills in [false, true] {
        let env = TestEnv::new();
        let bytes = env.put("model", 70_000);
        let agent = env.machine.agent("scrub_interval = \"0s\"");
        let model = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]).join("model");
        let tenant = env.machine.cache().join("tenants/default");
        flip_byte(&largest_file(&tenant), 5);
        drop_caches();
        assert_ne!(fs::read(&model).unwrap(), bytes, "the damaged page is cached");
        let store = env.machine.fdstores()[0];
        kill_process(store, Signal::STOP).unwrap();
        let cache = env.machine.cache().to_str().unwrap();
        env.machine.run(&["cache", "verify", "--cache-dir", cache]).fails(&["damaged"]);
        if kills {
            kill_process(store, Signal::KILL).unwrap();
        }
        eventually("it is read right again", || fs::read(&model).is_ok_and(|read| read == bytes));
        let removals = tenant.join("removals");
        eventually("nothing is left to tell", || fs::read_dir(&removals).unwrap().next().is_none());
        agent.stop();
    }
}

#[test]
fn mount_wait_verify_on_rotten_blob_fetches_it_again() {
    for size in [17 * MIB, 2 * MIB] {
        let env = TestEnv::new();
        let bytes = env.put("model", size);
        let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--verify"]);
        flip_byte(&largest_file(&env.machine.cache().join("tenants")), MIB as u64 + 5);
        let second = env.machine.mount_with("s3://bucket", "second", &["--wait", "--verify"]);
        assert_same(&bytes, &fs::read(second.join("model")).unwrap(), "what was verified");
        eventually("the first mount reads anew", || {
            fs::read(point.join("model")).is_ok_and(|read| read == bytes)
        });
    }
}

#[test]
fn wait_verify_on_a_staged_mount_with_a_rotten_blob_repairs_it() {
    let env = TestEnv::new();
    let bytes = env.put("model", 2 * MIB);
    let agent = env.machine.agent("scrub_interval = \"0s\"");
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]);
    flip_byte(&largest_file(&env.machine.cache().join("tenants")), MIB as u64 + 5);
    drop_caches();
    let wait = |options: &[&str]| env.machine.run(&[&["wait", point.to_str().unwrap()], options].concat());
    wait(&[]).succeeds();
    assert_ne!(fs::read(point.join("model")).unwrap(), bytes, "a stage that is done reads nothing again");
    wait(&["--verify", "--timeout", "90s"]).succeeds();
    assert_same(&bytes, &fs::read(point.join("model")).unwrap(), "what was verified");
    wait(&["--verify", "--until", "ended"]).fails(&["--verify needs --until ready"]);
    let cache = env.machine.cache().to_str().unwrap();
    let other = env.machine.run(&["wait", "7", "--verify", "--cache-dir", cache]);
    other.fails(&["waiting for 7", "--verify is for mounts only"]);
    agent.stop();
}

#[test]
fn mount_wait_verify_via_native_makes_a_rotten_pack_anew() {
    let env = TestEnv::new();
    let contents = [0, 1, 2, 3, 4].map(|number| env.put(&format!("model{number}"), MIB / 2));
    let mount =
        |name: &str| env.machine.mount_with("s3://bucket", name, &["--wait", "--verify", "--via", "native"]);
    let agent = env.machine.agent("");
    env.machine.umount(&mount("mnt"));
    let pack = largest_file(&env.machine.cache().join("tenants"));
    assert!(pack.metadata().unwrap().len() >= 2 * MIB as u64, "{}", pack.display());
    flip_byte(&pack, MIB as u64 + 5);
    let point = mount("second");
    for (number, content) in contents.iter().enumerate() {
        assert_same(content, &fs::read(point.join(format!("model{number}"))).unwrap(), "what was verified");
    }
    drop(agent);
}
