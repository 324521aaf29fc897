//! What is fetched ahead of readers: the next shard of a model, and no more than is of use.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::s3::S3Server;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::program;
use bdnfs_tests::tree::{assert_same, assert_same_tree, total_bytes, write_file};
use tempfile::TempDir;

const SHARDS: usize = 6;

fn shard(number: usize) -> String {
    format!("model-{number:05}-of-{SHARDS:05}.safetensors")
}

/// Puts a model of shards, each larger than what is opened without a request.
fn put_model(env: &TestEnv) {
    for number in 1..=SHARDS {
        env.put(&shard(number), 17 * MIB + number);
    }
}

#[test]
fn shard_read_to_its_end_has_the_next_one_fetched_ahead() {
    let env = TestEnv::new();
    put_model(&env);
    for (number, kind) in [(0, "parquet"), (1, "parquet"), (0, "bin"), (1, "bin")] {
        env.put(&format!("train-{number:05}-of-00002.{kind}"), 17 * MIB);
    }
    let point = env.machine.mount("s3://bucket", "mnt");
    for name in ["train-00000-of-00002.parquet", "train-00000-of-00002.bin", &shard(1)] {
        assert_same(&fs::read(env.bucket().join(name)).unwrap(), &fs::read(point.join(name)).unwrap(), name);
    }
    eventually("the next shard is on its way", || env.fetched(&shard(2)).bytes >= 4 * MIB as u64);
    for kind in ["parquet", "bin"] {
        let second = format!("00001-of-00002.{kind}");
        assert_eq!(env.fetched(&second).requests, 0, "a data set may be read in any order");
    }
    assert_eq!(env.fetched(&shard(SHARDS)).requests, 0, "the window is bounded");

    assert_same_tree(&env.bucket(), &point);
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()), "each byte once");
}

#[test]
fn loader_killed_amid_shards_leaves_what_was_fetched_to_the_next() {
    let env = TestEnv::new();
    put_model(&env);
    let point = env.machine.mount("s3://bucket", "mnt");
    env.proxy.set(NetworkFault { rate: Some(8 << 20), ..NetworkFault::default() });
    let cat = |point: &Path| {
        let shards = (1..=SHARDS).map(|number| point.join(shard(number)));
        program("cat").args(shards).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut loader = cat(&point);
    eventually("the second shard is on its way", || env.fetched(&shard(2)).requests > 0);
    loader.kill().unwrap();
    loader.wait().unwrap();
    env.proxy.set(NetworkFault::default());
    assert_same_tree(&env.bucket(), &point);
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()), "each byte once");
}

#[test]
fn shard_of_a_server_that_ignores_ranges_is_not_fetched_before_it_is_opened() {
    let (root, machine) = (TempDir::new().unwrap(), Machine::new());
    let shards = [1, 2].map(|number| write_file(root.path(), format!("bucket/{}", shard(number)), 20 * MIB));
    // Nothing is signed, of which the fault would take away a part.
    let s3 = S3Server::start(root.path(), None);
    s3.faults.set(ServerFault::IgnoreRange);
    let options = ["--endpoint", &s3.server.url(), "--anonymous"];
    let point = machine.mount_with("s3://bucket", "mnt", &options);
    assert_same(&shards[0], &fs::read(point.join(shard(1))).unwrap(), "the first shard");
    sleep(Duration::from_millis(500));
    assert_eq!(s3.requests.gets(&shard(2)).requests, 0, "it would be all of it");
    assert_same(&shards[1], &fs::read(point.join(shard(2))).unwrap(), "the second shard");
}
