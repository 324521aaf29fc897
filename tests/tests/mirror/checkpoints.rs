//! Checkpoints pushed into a mirror, listed, mounted by `bt://` and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

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
fn checkpoint_not_found_lists_those_that_exist() {
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
    let listed = json(&checkpoint(&env, &["ls", "--job", "job7", "-o", "json"]).succeeds());
    assert_eq!((&listed["job_id"], &listed["total_checkpoints"]), (&"job7".into(), &1.into()));
    push(&env, &directory, "third", "job7", &[]);
    checkpoint(&env, &["ls", "--job", "job7", "-o", "json"]).fails(&["several projects", "other, third"]);
    assert_eq!(checkpoint(&env, &["ls", "--job", "job7"]).succeeds().lines().count(), 3);
    checkpoint(&env, &["rm", "--yes", "--project", "third", odd]).succeeds();
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

    checkpoint(&env, &[&["rm"], &name[..]].concat()).fails(&["standard input is not a terminal", "2 ranks"]);
    checkpoint(&env, &["rm", "bt://other@job7"]).fails(&["names no checkpoint"]);
    checkpoint(&env, &[&["rm", "--yes"], &name[..]].concat()).succeeds();
    checkpoint(&env, &[&["rm", "--yes"], &name[..]].concat()).fails(&["has no checkpoint"]);
    assert_eq!(checkpoint(&env, &["ls"]).succeeds().lines().count(), 2);
    let mirror = |line: &[&str]| env.machine.run(&[&["mirror"], line, &MIRROR].concat()).succeeds();
    mirror(&["gc", "--grace", "0s"]);
    mirror(&["verify", "--deep"]);
}

#[test]
fn checkpoints_of_a_project_are_removed_with_it_where_that_is_asked_for() {
    let env = env();
    let directory = env.machine.directory("out");
    write_file(&directory, "model.bin", 1 << 20);
    for (project, job, more) in [
        ("p", "job1", &["--name", "step-1"][..]),
        ("p", "job1", &["--name", "step-1", "--rank", "1"]),
        ("p", "job2", &["--name", "step-2"]),
        ("other", "job3", &["--name", "step-1"]),
    ] {
        push(&env, &directory, project, job, more);
    }
    let volumes = env.machine.directory("volumes");
    let remove = |more: &[&str]| {
        env.machine.run(&[&["project", "rm", "p", "--volumes-dir", volumes.to_str().unwrap()], more].concat())
    };
    let from_mirror = |more: &[&str]| remove(&[more, &MIRROR].concat());
    from_mirror(&["--yes"]).fails(&["is not on this node, and not saved in this mirror"]);
    remove(&["--yes", "--checkpoints"]).fails(&["name the mirror that has the checkpoints"]);
    from_mirror(&["--checkpoints"]).fails(&["standard input is not a terminal", "2 checkpoints (3.1 MB)"]);
    assert_eq!(checkpoint(&env, &["ls"]).succeeds().lines().count(), 4);
    let removed = json(&from_mirror(&["--yes", "--json", "--checkpoints"]).succeeds());
    assert_eq!((&removed["checkpoints"], &removed["checkpoint_bytes"]), (&2.into(), &(3 << 20).into()));
    let left = checkpoint(&env, &["ls"]).succeeds();
    assert!(left.contains("other") && left.lines().count() == 2, "{left}");
    let mirror = |line: &[&str]| env.machine.run(&[&["mirror"], line, &MIRROR].concat()).succeeds();
    mirror(&["gc", "--grace", "0s"]);
    mirror(&["verify", "--deep"]);
}

/// Downloads checkpoint `source` into `place`.
fn get(env: &TestEnv, source: &str, place: &Path, more: &[&str]) -> CommandOutput {
    checkpoint(env, &[&["get", source, place.to_str().unwrap()], more].concat())
}

/// The blob of this environment's mirror that is `len` bytes long.
fn blob_of(env: &TestEnv, len: u64) -> PathBuf {
    let blobs = env.bucket().with_file_name("mirror/tenants/default/blobs");
    let groups = fs::read_dir(blobs).unwrap().map(|group| group.unwrap().path());
    let mut all = groups.flat_map(|group| fs::read_dir(group).unwrap().map(|blob| blob.unwrap().path()));
    all.find(|blob| blob.metadata().unwrap().len() == len).expect("a blob of this length")
}

/// The unfinished directory that becomes `directory`.
fn partial(directory: &Path) -> PathBuf {
    let beside = fs::read_dir(directory.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let mut partial = beside.filter(|path| path.extension().is_some_and(|end| end == "partial"));
    let found = partial.next().expect("an unfinished directory");
    assert!(partial.next().is_none() && found.to_str().unwrap().starts_with(directory.to_str().unwrap()));
    found
}

/// Changes a byte of the blob of `len` bytes, and answers with what puts it right.
fn damage_blob(env: &TestEnv, len: u64) -> impl FnOnce() + use<> {
    let blob = blob_of(env, len);
    let right = fs::read(&blob).unwrap();
    let mut wrong = right.clone();
    wrong[len as usize / 2] ^= 1;
    fs::write(&blob, wrong).unwrap();
    move || fs::write(&blob, right).unwrap()
}

#[test]
fn checkpoint_get_after_a_new_save_keeps_nothing_of_the_earlier_attempt() {
    let env = env();
    let tree = env.machine.directory("tree");
    write_file(&tree, "earlier.bin", 7 << 20);
    write_file(&tree, "bad.bin", 5 << 20);
    push(&env, &tree, "llama", "job1", &["--name", "step-5"]);
    let _never = damage_blob(&env, 5 << 20);
    let out = env.machine.directory("out").join("step-5");
    assert_eq!(get(&env, "bt://llama", &out, &[]).code, Some(1));
    let entry = env.bucket().with_file_name("mirror/tenants/default/checkpoints/llama/job1/step-5/0");
    let earlier = fs::read(&entry).unwrap();
    fs::remove_file(tree.join("earlier.bin")).unwrap();
    fs::remove_file(tree.join("bad.bin")).unwrap();
    write_file(&tree, "later.bin", 3 << 20);
    push(&env, &tree, "llama", "job1", &["--name", "step-5"]);
    // An entry is written after its ref, which alone says what the checkpoint is that has this name.
    fs::write(&entry, earlier).unwrap();
    get(&env, "bt://llama/step-5", &out, &[]).succeeds();
    assert_same_tree(&tree, &out);
}

#[test]
fn checkpoint_get_of_all_ranks_resumes_where_a_rank_failed() {
    let env = env();
    let [first, second] = ["first", "second"].map(|name| env.machine.directory(name));
    write_file(&first, "a.bin", 7 << 20);
    write_file(&second, "b.bin", 5 << 20);
    push(&env, &first, "llama", "job1", &["--name", "step-5"]);
    push(&env, &second, "llama", "job1", &["--name", "step-5", "--rank", "1"]);
    let repair = damage_blob(&env, 5 << 20);
    let out = env.machine.directory("out").join("step-5");
    let words = ["cannot download bt://llama@job1/step-5?rank=1", "does not hash to its check value"];
    let damaged = get(&env, "bt://llama", &out, &["--all-ranks"]);
    assert!(
        damaged.code == Some(1) && words.iter().all(|word| damaged.err.contains(word)),
        "{}",
        damaged.err
    );
    assert!(!out.exists() && partial(&out).join("rank-0/a.bin").exists());
    repair();
    let got = json(&get(&env, "bt://llama", &out, &["--all-ranks", "--json"]).succeeds());
    assert!(got["found"].as_u64() >= Some(7 << 20) && got["bytes"] == 12 << 20, "{got}");
    assert_same_tree(&first, &out.join("rank-0"));
    assert_same_tree(&second, &out.join("rank-1"));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    get(&env, "bt://llama", &out, &["--all-ranks"]).fails(&["is not empty"]);
}

#[test]
fn checkpoint_get_restores_the_directory_that_was_saved() {
    let env = env();
    let tree = env.machine.directory("tree");
    write_tree(&tree);
    write_file(&tree, "deep/er/model.safetensors", (9 << 20) + 77);
    write_file(&tree, "deep/copy.safetensors", (9 << 20) + 77);
    write_file(&tree, "empty", 0);
    push(&env, &tree, "llama", "job1", &["--name", "step-5"]);
    let out = env.machine.directory("out");
    let got = json(&get(&env, "bt://llama", &out.join("a"), &["--json"]).succeeds());
    assert_same_tree(&tree, &out.join("a"));
    assert_eq!((&got["source"], &got["found"]), (&"bt://llama@job1/step-5".into(), &0.into()));
    let mtime = |root: &Path| fs::metadata(root.join("empty")).unwrap().modified().unwrap();
    assert_eq!(mtime(&tree), mtime(&out.join("a")));
    // An empty directory becomes it; another one is left alone.
    fs::create_dir(out.join("b")).unwrap();
    get(&env, "step-5", &out.join("b"), &["--project", "llama"]).succeeds();
    assert_same_tree(&tree, &out.join("b"));
    get(&env, "bt://llama", &out.join("b"), &[])
        .fails(&["is not empty; name a directory that is empty or missing"]);
    get(&env, "bt://llama/step-6", &out.join("c"), &[]).fails(&["has no checkpoint \"step-6\""]);
    push(&env, &tree, "llama", "job1", &["--name", "step-5", "--rank", "1"]);
    get(&env, "bt://llama/step-5", &out.join("ranks"), &["--all-ranks"]).succeeds();
    assert_same_tree(&tree, &out.join("ranks/rank-0"));
    assert_same_tree(&tree, &out.join("ranks/rank-1"));
    let left: Vec<_> = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn checkpoint_get_of_damaged_content_fails_and_then_resumes() {
    let env = env();
    let tree = env.machine.directory("tree");
    write_file(&tree, "good.bin", 7 << 20);
    write_file(&tree, "bad.bin", 5 << 20);
    push(&env, &tree, "llama", "job1", &["--name", "step-5"]);
    let blob = blob_of(&env, 5 << 20);
    let right = fs::read(&blob).unwrap();
    let mut wrong = right.clone();
    wrong[3 << 20] ^= 1;
    fs::write(&blob, wrong).unwrap();
    let out = env.machine.directory("out").join("step-5");
    let damaged = get(&env, "bt://llama", &out, &[]);
    let message = "cannot download bt://llama@job1/step-5: bad.bin: s3://mirror/";
    assert!(damaged.code == Some(1) && damaged.err.contains(message), "{}", damaged.err);
    assert!(damaged.err.contains("does not hash to its check value"), "{}", damaged.err);
    assert!(!out.exists(), "what is not whole is not there");
    // A link that came into the unfinished directory is not followed, and what a file has too much of goes.
    let partial = partial(&out);
    fs::write(&blob, right).unwrap();
    fs::remove_file(partial.join("bad.bin")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", partial.join("bad.bin")).unwrap();
    get(&env, "bt://llama", &out, &[]).fails(&["bad.bin"]);
    fs::remove_file(partial.join("bad.bin")).unwrap();
    let before = env.mirrored().bytes;
    let got = json(&get(&env, "bt://llama", &out, &["--json"]).succeeds());
    assert_same_tree(&tree, &out);
    assert_eq!(got["found"], 7 << 20, "{got}");
    assert!(env.mirrored().bytes - before < 6 << 20, "only what was missing is fetched");
}

#[test]
fn checkpoint_wait_returns_when_saved_and_exits_with_124_on_timeout() {
    let env = env();
    let tree = env.machine.directory("step-7");
    write_file(&tree, "model.bin", 3 << 20);
    let late = checkpoint(&env, &["wait", "bt://llama@job1/step-7", "--timeout", "1s"]);
    assert_eq!(late.code, Some(124), "{}", late.err);
    assert!(
        late.err.contains("nothing is saved yet") && late.err.contains("timed out after 1s"),
        "{}",
        late.err
    );
    let line = ["checkpoint", "wait", "step-7", "--project", "llama", "--json", "--timeout", "5m"];
    let mut command = env.machine.command(&[&line[..], &MIRROR[..]].concat());
    let waiting = command.stdout(Stdio::piped()).spawn().unwrap();
    // It has a rank less than its job.
    push(&env, &tree, "llama", "job1", &["--rank", "1", "--name", "step-6"]);
    push(&env, &tree, "llama", "job1", &[]);
    let saved =
        checkpoint(&env, &["wait", "step-7", "--project", "llama", "--until", "saved", "--timeout", "5m"]);
    assert!(saved.succeeds().contains("bt://llama@job1/step-7: ranks missing, 1 rank"));
    let late = checkpoint(&env, &["wait", "step-7", "--project", "llama", "--timeout", "1s"]);
    assert_eq!(late.code, Some(124), "{}", late.err);
    push(&env, &tree, "llama", "job1", &["--rank", "1"]);
    let waited = waiting.wait_with_output().unwrap();
    assert!(waited.status.success());
    let waited = json(std::str::from_utf8(&waited.stdout).unwrap());
    assert_eq!((&waited["state"], waited["ranks"].as_array().unwrap().len()), (&"complete".into(), 2));
    checkpoint(&env, &["wait", "bt://llama", "--timeout", "5m"]).succeeds();
}

#[test]
fn checkpoint_wait_for_a_damaged_entry_fails_and_names_it() {
    let env = env();
    let tree = env.machine.directory("step-7");
    write_file(&tree, "model.bin", 9);
    push(&env, &tree, "llama", "job1", &[]);
    let entry = env.bucket().with_file_name("mirror/tenants/default/checkpoints/llama/job1/step-7/0");
    fs::write(entry, "{}").unwrap();
    for source in ["bt://llama", "bt://llama@job1/step-7"] {
        let waited = checkpoint(&env, &["wait", source, "--timeout", "5m"]);
        waited.fails(&["cannot tell whether", source, "checkpoints/llama/job1/step-7/0 is damaged"]);
    }
    // That of another checkpoint is no reason.
    let late = checkpoint(&env, &["wait", "bt://llama@job1/step-8", "--timeout", "1s"]);
    assert_eq!(late.code, Some(124), "{}", late.err);
}

#[test]
fn checkpoint_ls_lists_adapters_with_their_base_model_as_truss_does() {
    let env = env();
    let [full, lora, whisper] = ["full", "lora", "whisper"].map(|name| env.machine.directory(name));
    for tree in [&full, &lora, &whisper] {
        write_file(tree, "model.safetensors", 3 << 20);
        write_file(tree, "aaa", 300_000);
    }
    fs::write(lora.join("adapter_config.json"), r#"{"base_model_name_or_path": "org/base, 7b", "r": 8}"#)
        .unwrap();
    fs::write(whisper.join("config.json"), r#"{"model_type": "whisper"}"#).unwrap();
    fs::write(full.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    for tree in [&full, &lora, &whisper] {
        push(&env, tree, "p", "job1", &[]);
    }
    let list = ["ls", "--project", "p", "--sort", "type", "--order", "desc"];
    let listed = json(&checkpoint(&env, &[&list[..], &["-o", "json"]].concat()).succeeds());
    let cells = |one: &Value| {
        ["checkpoint_id", "checkpoint_type", "base_model"].map(|key| one[key].as_str().unwrap().to_owned())
    };
    let output: Vec<_> = listed["checkpoints"].as_array().unwrap().iter().map(cells).collect();
    assert_eq!(output, [["whisper", "whisper", ""], ["lora", "lora", "org/base, 7b"], ["full", "full", ""]]);
    let csv = checkpoint(&env, &[&list[..], &["-o", "csv"]].concat()).succeeds();
    assert!(csv.contains(",lora,lora,\"org/base, 7b\","), "{csv}");
}
