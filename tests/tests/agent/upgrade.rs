//! Upgrade and downgrade: this build and an earlier one take over from each other, in either order, under readers.
//!
//! `scripts/earlier-version` builds the earlier one. A version without a way back is an outage, so both directions count.

use std::fs;
use std::path::PathBuf;

use bdnfs_tests::MIB;
use bdnfs_tests::cluster::{ClusterHost, TestCluster};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::readers::ReaderProcesses;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{program, target};
use bdnfs_tests::tree::{assert_same_tree, write_tree};

use crate::takeover::SLOW;

/// How often one build takes over from the other: each way, as agent and as fd store, after a crash and after a restart.
const TAKEOVERS: usize = 6;

/// The earlier build and this one, the earlier one first if `downgrade` is false.
fn builds(downgrade: bool) -> [Option<PathBuf>; 2] {
    let before = target().parent().expect("a directory above the profile's").join("before/debug/bdnfs");
    assert!(before.exists(), "{} is missing; scripts/earlier-version makes it", before.display());
    if downgrade { [None, Some(before)] } else { [Some(before), None] }
}

/// The program that `build` is.
fn program_of(build: &Option<PathBuf>) -> PathBuf {
    build.clone().unwrap_or_else(|| target().join("bdnfs")).canonicalize().expect("a program")
}

/// The program of the fd store of `machine`.
fn fdstore_program(machine: &Machine) -> PathBuf {
    let [store] = machine.fdstores()[..] else { panic!("not one fd store: {:?}", machine.fdstores()) };
    fs::read_link(format!("/proc/{store}/exe")).expect("it runs")
}

/// Agent, fd store and cache: readers of large files, of small ones, and of what is staged meanwhile notice nothing.
fn takeovers(downgrade: bool) {
    let mut env = TestEnv::new();
    for (name, len) in [("first", 18 * MIB + 5), ("model/c", 33 * MIB + 4096), ("model/d", 3 * MIB)] {
        env.put(name, len);
    }
    write_tree(&env.bucket());
    let builds = builds(downgrade);
    env.machine.use_build(builds[0].as_deref());
    let mut agent = env.machine.agent("");
    let large = env.machine.mount("s3://bucket", "large");
    let small = env.machine.mount_with("s3://bucket", "small", &["--allow", "sizes/*"]);
    let originals = env.machine.directory("originals");
    program("cp").arg("-r").arg(env.bucket().join("sizes")).arg(&originals).status().unwrap();
    let mounts = [(env.bucket(), large.clone()), (env.bucket(), large.clone()), (originals, small)];
    env.proxy.set(SLOW);
    let mut readers = ReaderProcesses::start(&env.machine, &mounts, 6, 3);
    for takeover in 1..=TAKEOVERS {
        readers.wait_for_progress();
        match takeover {
            2 => assert_eq!(agent.ask("POST", "/v1/mounts/1/stage", "").code, 200),
            4 => env.proxy.set(NetworkFault::default()),
            _ => {}
        }
        // The fd store so far is of the build that this agent took over from, unless that did not know a message, and was replaced;
        // the next one is of this agent's.
        let stores = || agent.log().matches("another fd store has 2 of 2 mounts").count();
        let before = stores();
        env.machine.kill_fdstore();
        eventually("there is another", || stores() > before);
        assert_eq!(fdstore_program(&env.machine), program_of(&builds[(takeover - 1) % 2]));
        readers.wait_for_progress();
        // As package managers restart a service, and as a crash does.
        if takeover % 2 == 0 {
            agent.end()
        } else {
            agent.crash()
        }
        env.machine.use_build(builds[takeover % 2].as_deref());
        agent = env.machine.agent("");
    }
    readers.wait_for_progress();
    eventually("all is local", || agent.get("/v1/mounts/1/stage").json()["state"] == "done");
    env.s3.requests.clear();
    agent.crash();
    env.machine.use_build(builds[1].as_deref());
    let agent = env.machine.agent("");
    readers.wait_for_progress();
    readers.end();
    drop_caches();
    assert_same_tree(&env.bucket(), &large);
    assert_eq!(env.fetched("").requests, 0, "what was local is fetched again: {}", agent.log());
    assert!(!agent.log().contains(" ERROR "), "{}", agent.log());
    agent.stop();
    assert!(!is_mounted(&large));
    eventually("the end of the fd store", || env.machine.fdstores().is_empty());
}

#[test]
#[ignore = "needs the earlier build that scripts/earlier-version makes"]
fn agent_upgraded_and_downgraded_under_readers_is_not_noticed() {
    takeovers(false);
}

#[test]
#[ignore = "needs the earlier build that scripts/earlier-version makes"]
fn agent_downgraded_and_upgraded_under_readers_is_not_noticed() {
    takeovers(true);
}

#[test]
#[ignore = "needs the earlier build that scripts/earlier-version makes"]
fn mirror_written_by_either_build_is_read_and_extended_by_the_other() {
    let mut env = TestEnv::new();
    let builds = builds(false);
    env.put("large", 9 * MIB + 7);
    (0..60).for_each(|number| drop(env.put(&format!("many/{number}"), 900 + number)));
    for turn in 0..TAKEOVERS {
        env.put(&format!("turn/{turn}"), 2 * MIB + turn);
        env.machine.use_build(builds[turn % 2].as_deref());
        env.mirror();
        // The other one reads it, with a cache of its own, from the mirror alone.
        let mut reader = env.second_machine();
        reader.use_build(builds[(turn + 1) % 2].as_deref());
        reader.run(&["mirror", "verify", "--mirror", "s3://mirror"]).succeeds();
        env.s3.requests.clear();
        let point = reader.mount_with("s3://bucket", "mnt", &["--mirror", "s3://mirror"]);
        assert_same_tree(&env.bucket(), &point);
        assert_eq!(env.fetched("").requests, 0, "the origin is read");
        reader.umount(&point);
    }
}

/// A node that runs `build`.
fn node(cluster: &TestCluster, id: &str, build: &Option<PathBuf>) -> ClusterHost {
    let mut machine = Machine::new();
    machine.use_build(build.as_deref());
    cluster.node_on(machine, id, "1gbit", "")
}

#[test]
#[ignore = "needs the earlier build that scripts/earlier-version makes"]
fn peers_of_both_builds_share_what_they_read() {
    let cluster = TestCluster::new("1gbit").expect("network namespaces");
    cluster.publish(&[("large", 24 * MIB), ("medium", 3 * MIB + 5), ("small", 1000)]);
    let mut builds = builds(false);
    let mut nodes =
        [0, 1, 2, 3].map(|number| node(&cluster, &format!("n{}", number + 1), &builds[number % 2]));
    for takeover in 0..TAKEOVERS {
        nodes.iter().for_each(|node| node.wait_for_members(nodes.len()));
        cluster.s3.requests.clear();
        std::thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| {
                    let (point, ran) = node.stage();
                    ran.succeeds();
                    assert_same_tree(&cluster.bucket(), &point);
                    node.machine.umount(&point);
                });
            }
        });
        // Without peers it is 4, and once all have everything it is 0.
        let reads = cluster.mirror_reads();
        assert!(
            if takeover == 0 { (0.99..1.6).contains(&reads) } else { reads < 0.6 },
            "{takeover}: {reads} times"
        );
        // Each takes over what the other build left on its node.
        builds.reverse();
        for (number, node) in nodes.iter_mut().enumerate() {
            node.agent.take().expect("one").end();
            node.machine.use_build(builds[number % 2].as_deref());
            node.start();
        }
    }
}
