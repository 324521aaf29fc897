//! Ranks of one job on hosts of their own: network namespaces, each with an agent, and a mirror that all of them reach.

use bdnfs_tests::cluster::{ClusterHost, TestCluster};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::Value;

use super::kit::{job, spec, submitted, text, toml};
use super::saving::{checkpoints, saved, saving_spec};

/// Submits a rank of the job `id` on `node`, and returns its number.
fn submit(node: &ClusterHost, id: &str, rank: &str, specification: &std::path::Path) -> String {
    let line = ["--id", id, "--project", "p", "--rank", rank, "--nodes", "2"];
    submitted(&node.machine, &[&line[..], &[text(specification)]].concat())
}

/// Waits for a job's end, and returns its status.
fn ended(node: &ClusterHost, number: &str) -> Value {
    let status = || -> Value { node.agent().get(&format!("/v1/jobs/{number}")).json() };
    eventually("the job ends", || !status()["ended"].is_null());
    let status = status();
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    status
}

#[test]
fn checkpoint_saved_by_two_ranks_on_two_nodes_is_resumed_on_a_third() {
    let Some(cluster) = TestCluster::new("1gbit") else { return };
    cluster.publish(&[("any", 10)]);
    let nodes = [0, 1].map(|_| cluster.standalone_node(Machine::new(), "1gbit"));
    let begun: Vec<_> = nodes
        .iter()
        .zip(["0", "1"])
        .map(|(node, rank)| {
            let command = "mkdir $BT_CHECKPOINT_DIR/step-1 && cd $BT_CHECKPOINT_DIR/step-1 && echo rank $BT_NODE_RANK > name && \
                           head -c 3000000 /dev/urandom > model && sha256sum model";
            submit(node, "train", rank, &saving_spec(&node.machine, "train", command))
        })
        .collect();
    let mut sums = String::new();
    for (node, number) in nodes.iter().zip(&begun) {
        assert_eq!(checkpoints(&ended(node, number)), [saved("step-1", true, 1)]);
        sums += &job(&node.machine, &["logs", number]).succeeds();
    }
    drop(nodes);

    let third = cluster.standalone_node(Machine::new(), "1gbit");
    let command = "cd $BT_LOAD_CHECKPOINT_DIR && cat rank-0/step-1/name rank-1/step-1/name && \
                   for rank in 0 1; do (cd rank-$rank/step-1 && sha256sum model); done";
    let config = toml(&[], &[command]) + "[runtime.load_checkpoint_config]\nenabled = true\n";
    let number = submit(&third, "resumed", "0", &spec(&third.machine, "resumed.toml", &config));
    ended(&third, &number);
    let log = job(&third.machine, &["logs", &number]).succeeds();
    assert_eq!(log, format!("rank 0\nrank 1\n{sums}"));
}
