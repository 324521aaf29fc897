//! Checkpoints pushed into a mirror, listed, mounted by `bt://` and removed.

use std::fs;
use std::path::Path;

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::mounts::xattr;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same_tree, write_file, write_tree};
use serde_json::Value;

const MIRROR: [&str; 2] = ["--mirror", "s3://mirror"];

/// An environment with an empty bucket for a mirror.
fn env() -> TestEnv {
    let env = TestEnv::new();
    fs::create_dir(env.bucket().with_file_name("mirror")).unwrap();
    env
}

fn checkpoint(env: &TestEnv, args: &[&str]) -> CommandOutput {
    env.machine.run(&[&["checkpoint"], args, &MIRROR].concat())
}

/// Pushes `directory` as a checkpoint of `project`, and answers with its entry.
fn push(env: &TestEnv, directory: &Path, project: &str, job: &str, more: &[&str]) -> Value {
    let named = ["push", directory.to_str().unwrap(), "--project", project, "--job", job, "--json"];
    serde_json::from_str(&checkpoint(env, &[&named, more].concat()).succeeds()).unwrap()
}

fn json(out: &str) -> Value {
    serde_json::from_str(out).unwrap()
}

#[test]
fn checkpoint_pushed_is_mounted_by_project_job_and_name() {
    let env = env();
    let [older, newer] = ["older", "newer"].map(|name| env.machine.directory(name));
    write_tree(&older);
    write_file(&newer, "model.safetensors", 3 << 20);
    let first = push(&env, &older, "my llama", "job1", &["--name", "out/checkpoint-9"]);
    assert_eq!(first["source"], "bt://my%20llama@job1/out/checkpoint-9");
    push(&env, &newer, "my llama", "job2", &["--name", "checkpoint-10"]);
    for (source, tree) in [
        ("bt://my llama", &newer),
        ("bt://my%20llama@latest", &newer),
        ("bt://my llama@job1", &older),
        ("bt://my llama/out/checkpoint-9", &older),
        ("bt://my llama@job2/checkpoint-10", &newer),
    ] {
        let point = env.machine.mount_with(source, "mnt", &[&MIRROR[..], &["--wait"]].concat());
        assert_same_tree(tree, &point);
        // Where it lay when it was pushed is not told.
        assert!(xattr(&point, "user.bdnfs.source").starts_with("bt://my%20llama@job"));
        env.machine.umount(&point);
    }
    // What is pushed later does not change what is mounted.
    let point = env.machine.mount_with("bt://my llama", "mnt", &MIRROR);
    push(&env, &older, "my llama", "job3", &["--name", "checkpoint-11"]);
    assert_same_tree(&newer, &point);
    env.machine.umount(&point);
}

#[test]
fn checkpoint_that_is_not_there_is_answered_with_what_is() {
    let env = env();
    let directory = env.machine.directory("step-1");
    write_file(&directory, "a", 9);
    let refused = |source: &str, more: &[&str], words: &[&str]| {
        let point = env.machine.directory("refused");
        env.machine
            .run(&[&["mount", source, point.to_str().unwrap()], &MIRROR[..], more].concat())
            .fails(words);
    };
    // Something has made the mirror.
    env.put("x", 9);
    env.mirror();
    refused("bt://llama", &[], &["bt://llama: the mirror s3://mirror has no checkpoint at all"]);
    push(&env, &directory, "llama", "job1", &[]);
    push(&env, &directory, "llama", "job2", &["--rank", "1"]);
    refused("bt://lama", &[], &["project \"lama\" has no checkpoint", "projects that have: llama"]);
    refused("bt://llama@nope", &[], &["job nope has no checkpoint", "jobs that have: job2, job1"]);
    refused("bt://llama@job1/step-2", &[], &["has no checkpoint \"step-2\"", "it has step-1"]);
    refused("bt://llama@job2/step-1", &[], &["rank 0 saved nothing", "these ranks did: 1"]);
    refused("bt://llama", &["--allow", "*.json"], &["mounted whole: leave the patterns out"]);
    refused("bt://llama", &["--tenant", "other"], &["has no checkpoint at all"]);
    let copied = env.machine.run(&["mirror", "add", "bt://llama", "--mirror", "s3://mirror"]);
    copied.fails(&["is a checkpoint, which only a mirror has"]);
}

#[test]
fn checkpoint_commands_list_show_and_remove_what_was_pushed() {
    let env = env();
    let directory = env.machine.directory("a, \"b\" é");
    write_file(&directory, "model.bin", 2 << 20);
    let odd = "a, \"b\" é";
    push(&env, &directory, "../llama", "job1", &[]);
    push(&env, &directory, "../llama", "job1", &["--rank", "1"]);
    push(&env, &directory, "other", "job7", &["--name", "step-1"]);
    // Again, unchanged, it is the same generation.
    assert_eq!(push(&env, &directory, "other", "job7", &["--name", "step-1"])["generation"], 1);
    write_file(&directory, "more.bin", 5);
    assert_eq!(push(&env, &directory, "other", "job7", &["--name", "step-1"])["generation"], 2);

    let table = checkpoint(&env, &["ls"]).succeeds();
    assert!(table.contains(odd) && table.contains("complete") && table.lines().count() == 3, "{table}");
    let listed = json(&checkpoint(&env, &["ls", "--project", "../llama", "-o", "json"]).succeeds());
    assert_eq!((&listed["job_id"], &listed["total_checkpoints"]), (&"job1".into(), &1.into()));
    assert_eq!(listed["checkpoints"][0]["checkpoint_id"], odd);
    assert_eq!(listed["checkpoints"][0]["size_human_readable"], "4.19 MB");
    let csv = checkpoint(&env, &["ls", "--project", "../llama", "-o", "csv"]).succeeds();
    assert!(csv.ends_with('\n') && csv.contains("\"a, \"\"b\"\" é\""), "{csv}");

    let name = ["--project", "../llama", odd];
    let shown = json(&checkpoint(&env, &[&["show", "--json"], &name[..]].concat()).succeeds());
    assert_eq!((&shown["state"], shown["ranks"].as_array().unwrap().len()), (&"complete".into(), 2));
    let weights = checkpoint(&env, &["show", "bt://other", "--weights"]).succeeds();
    let config = env.machine.directory("config").join("weights.toml");
    let mount = env.machine.directory("served");
    fs::write(&config, weights.replace("/models/step-1", mount.to_str().unwrap())).unwrap();
    let config = config.to_str().unwrap();
    env.machine.run(&[&["mount", "--config", config, "--wait"], &MIRROR[..]].concat()).succeeds();
    assert_same_tree(&directory, &mount);
    env.machine.umount(&mount);

    checkpoint(&env, &[&["rm"], &name[..]].concat()).fails(&["nobody can be asked here", "2 ranks"]);
    checkpoint(&env, &["rm", "bt://other@job7"]).fails(&["names no checkpoint"]);
    checkpoint(&env, &[&["rm", "--yes"], &name[..]].concat()).succeeds();
    checkpoint(&env, &[&["rm", "--yes"], &name[..]].concat()).fails(&["has no checkpoint"]);
    assert_eq!(checkpoint(&env, &["ls"]).succeeds().lines().count(), 2);
    let mirror = |line: &[&str]| env.machine.run(&[&["mirror"], line, &MIRROR].concat()).succeeds();
    mirror(&["gc", "--grace", "0s"]);
    mirror(&["verify", "--deep"]);
}
