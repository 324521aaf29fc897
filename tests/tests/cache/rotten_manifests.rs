//! Rot in a manifest: it is found, named, and repaired or fetched again; nothing of it is shown by a new mount.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::MIB;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::drop_caches;
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::flip_byte;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, assert_same_tree};

/// Where a manifest's entries have the low byte of the slice of the second: after the header and the root.
const SLICE_OFFSET: u64 = 64 + 48 + 16;

fn verify(machine: &Machine) -> CommandOutput {
    machine.run(&["cache", "verify", "--cache-dir", machine.cache().to_str().unwrap()])
}

/// The manifests of a machine's cache.
fn manifests(machine: &Machine) -> Vec<PathBuf> {
    let directory = machine.cache().join("tenants/default/manifests");
    fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path()).collect()
}

/// Flips a bit of the only manifest of a machine's cache, so that a file begins elsewhere in its blob, and returns its path.
fn rot(machine: &Machine) -> PathBuf {
    let [manifest] = &manifests(machine)[..] else { panic!("{:?}", manifests(machine)) };
    flip_byte(manifest, SLICE_OFFSET);
    drop_caches();
    manifest.clone()
}

fn is_right(manifest: &Path) -> bool {
    let id = fs::read(manifest).map(|bytes| blake3::hash(&bytes).to_string());
    id.is_ok_and(|id| manifest.ends_with(id))
}

#[test]
fn cache_verify_on_rotten_manifest_names_it_and_the_next_mount_fetches_it_again() {
    let env = TestEnv::new();
    env.put("a", 3000);
    env.put("b", 5000);
    env.mirror();
    let options = ["--wait", "--mirror", "s3://mirror"];
    env.machine.umount(&env.machine.mount_with("s3://bucket", "mnt", &options));
    let manifest = rot(&env.machine);
    let found = verify(&env.machine);
    assert!(found.out.contains("damaged: s3://bucket") && found.out.contains("removed"), "{}", found.out);
    found.fails(&["1 manifest damaged"]);
    assert!(!manifest.exists());
    verify(&env.machine).succeeds();
    let point = env.machine.mount_with("s3://bucket", "mnt", &options);
    assert_same_tree(&env.bucket(), &point);
    assert!(is_right(&manifest));
}

#[test]
fn mount_with_a_manifest_damaged_in_memory_is_named_until_it_is_renewed() {
    let env = TestEnv::new();
    let bytes = env.put("a", 3000);
    env.put("b", 5000);
    let agent = env.machine.agent("scrub_interval = \"0s\"");
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait"]);
    let manifest = rot(&env.machine);
    for is_first in [true, false] {
        let found = verify(&env.machine);
        assert!(found.out.contains("s3://bucket") && found.out.contains("mount it again"), "{}", found.out);
        let line = found.fails(&["1 source mounted with a damaged list of files"]);
        assert_eq!(line.contains("1 manifest damaged"), is_first, "{line}");
    }
    // Another mount is right, and does not heal the first.
    let second = env.machine.mount_with("s3://bucket", "second", &["--wait", "--verify"]);
    assert_same(&bytes, &fs::read(second.join("a")).unwrap(), "what a new mount shows");
    assert!(is_right(&manifest));
    verify(&env.machine).fails(&["1 source mounted with a damaged list of files"]);
    env.machine.umount(&point);
    verify(&env.machine).succeeds();
    drop(agent);
}

#[test]
fn agent_started_with_a_rotten_manifest_takes_it_from_the_mirror() {
    for is_removed in [false, true] {
        let env = TestEnv::new();
        env.put("a", 3000);
        env.put("b", 2 * MIB);
        env.mirror();
        let next_agent = || env.machine.agent("scrub_interval = \"0s\"");
        let agent = next_agent();
        let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--mirror", "s3://mirror"]);
        let manifest = rot(&env.machine);
        if is_removed {
            verify(&env.machine).fails(&["1 manifest damaged"]);
        }
        agent.crash();
        let agent = next_agent();
        eventually("the mount is right again", || fs::read(point.join("a")).is_ok_and(|a| a.len() == 3000));
        drop_caches();
        assert_same_tree(&env.bucket(), &point);
        assert!(is_right(&manifest));
        verify(&env.machine).succeeds();
        agent.stop();
    }
}

#[test]
fn scrubber_with_a_rotten_manifest_names_it() {
    let env = TestEnv::new();
    env.put("a", 3000);
    let agent = env.machine.agent("scrub_interval = \"2s\"");
    env.machine.umount(&env.machine.mount_with("s3://bucket", "mnt", &["--wait"]));
    let manifest = rot(&env.machine);
    eventually("it is removed", || !manifest.exists());
    eventually("it is named", || agent.log().contains("found damaged data in the cache: s3://bucket"));
    drop(agent);
}
