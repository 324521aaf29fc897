//! Mirrors in services that are not as AWS in `us-east-1`: without conditional writes, and in other regions.

use std::fs;
use std::path::PathBuf;

use bdnfs_tests::MIB;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::assert_same_tree;

fn run(machine: &Machine, line: &str) -> CommandOutput {
    machine.run(&line.split(' ').collect::<Vec<_>>())
}

/// An empty bucket for a mirror, in a service that ignores the conditions of writes.
fn unconditional(env: &TestEnv) -> PathBuf {
    let mirror = env.bucket().with_file_name("mirror");
    fs::create_dir_all(&mirror).unwrap();
    env.s3.ignore_conditions();
    mirror
}

const ADD: &str = "mirror add s3://bucket --mirror s3://mirror";

#[test]
fn mirror_without_conditional_writes_allows_one_writer_at_a_time() {
    let env = TestEnv::new();
    env.put("weights", 20 * MIB);
    env.put("small", 100);
    let mirror = unconditional(&env);
    run(&env.machine, ADD).fails(&["the service ignores If-None-Match", "bdnfs mirror add --exclusive"]);
    let added = run(&env.machine, &format!("{ADD} --exclusive"));
    assert!(added.err.contains("has one writer at a time"), "{}", added.err);
    added.succeeds();
    // From now on the mirror itself says so.
    env.put("more", 3 * MIB);
    run(&env.machine, ADD).succeeds();
    run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--mirror", "s3://mirror"]);
    assert_same_tree(&env.bucket(), &point);
    env.machine.umount(&point);

    // Another machine adds: `bdnfs` writes its lease first, as this does.
    let lease = mirror.join("tenants/default/leases/add-0123456789abcdef0123456789abcdef");
    fs::write(&lease, "2026-01-02T03:04:05Z elsewhere").unwrap();
    env.put("newer", MIB);
    for line in [ADD, "mirror gc --mirror s3://mirror", "mirror rm s3://bucket --mirror s3://mirror"] {
        let words = ["the mirror s3://mirror is exclusive", "since 2026-01-02T03:04:05Z", "try again"];
        run(&env.machine, line).fails(&words);
    }
    assert_eq!(fs::read_dir(mirror.join("tenants/default/leases")).unwrap().count(), 1, "a lease was left");
    fs::remove_file(&lease).unwrap();
    for line in
        [ADD, "mirror gc --grace 0s --mirror s3://mirror", "mirror rm s3://bucket --mirror s3://mirror"]
    {
        run(&env.machine, line).succeeds();
    }
}

#[test]
fn mirror_with_many_writers_is_not_made_exclusive() {
    let env = TestEnv::new();
    env.put("small", 100);
    env.mirror();
    run(&env.machine, &format!("{ADD} --exclusive"))
        .fails(&["is not an exclusive one; leave out --exclusive"]);
}

#[test]
fn mirror_in_another_region_is_used_where_the_service_names_it() {
    let env = TestEnv::new();
    env.put("weights", 40 * MIB);
    env.put("small", 100);
    env.s3.move_to("eu-west-1");
    env.mirror();
    run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--mirror", "s3://mirror"]);
    assert_same_tree(&env.bucket(), &point);
    env.machine.umount(&point);
}

#[test]
fn mirror_is_reached_without_the_proxies_of_the_environment() {
    let env = TestEnv::new();
    env.put("weights", 3 * MIB);
    env.mirror();
    let names = ["http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"];
    let machine =
        names.into_iter().fold(env.second_machine(), |machine, name| machine.env(name, "http://127.0.0.1:1"));
    run(&machine, "mirror ls --mirror s3://mirror").succeeds();
    let point = machine.mount_with("s3://bucket", "mnt", &["--mirror", "s3://mirror", "--wait"]);
    assert_same_tree(&env.bucket(), &point);
    machine.umount(&point);
}

#[test]
fn mirror_add_whose_record_is_said_to_exist_writes_it_or_fails() {
    let env = TestEnv::new();
    env.put("small", 100);
    env.mirror();
    env.put("more", 101);
    env.s3.faults.set(ServerFault::UnmetCondition);
    let refused = run(&env.machine, ADD);
    assert!(refused.code.is_some_and(|code| code != 0), "{}", refused.err);
    assert!(refused.err.contains("the service says that it exists, but it does not"), "{}", refused.err);
    env.s3.faults.times(ServerFault::UnmetCondition, 1);
    run(&env.machine, ADD).succeeds();
    run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
}
