//! Jobs that resume from what others have saved.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{regular_files, write_file};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::kit::{events, job, spec, submitted, text, toml};
use super::saving::{SavingMachine, checkpoints, mirror, saved, start_with};

/// A machine with a mirror.
struct TrainingSetup {
    machine: Machine,
    mirror: PathBuf,
}

impl TrainingSetup {
    fn new() -> Self {
        let machine = Machine::new();
        let mirror = machine.directory("mirror");
        Self { machine, mirror }
    }

    /// Saves `directory` as the checkpoint `name` of a rank of a job.
    fn push(&self, directory: &Path, project: &str, job: &str, name: &str, rank: &str) {
        let named = ["--project", project, "--job", job, "--name", name, "--rank", rank];
        let push = ["checkpoint", "push", text(directory), "--mirror", text(&self.mirror)];
        self.machine.run(&[&push[..], &named].concat()).succeeds();
    }

    /// A job that loads checkpoints as `config` says.
    fn specification(&self, config: &str, command: &str) -> PathBuf {
        let specification =
            format!("{}[runtime.load_checkpoint_config]\nenabled = true\n{config}", toml(&[], &[command]));
        spec(&self.machine, "job.toml", &specification)
    }

    /// Runs a job of the project `p` that loads checkpoints as `config` says.
    fn run(&self, config: &str, more: &[&str], command: &str) -> CommandOutput {
        let file = self.specification(config, command);
        let cache = ["--cache-dir", text(self.machine.cache()), "--mirror", text(&self.mirror)];
        job(&self.machine, &[&["run", "--json", "--project", "p"], &cache[..], more, &[text(&file)]].concat())
    }
}

fn ended(out: CommandOutput) -> Value {
    serde_json::from_str(out.succeeds().lines().last().unwrap()).unwrap()
}

#[test]
fn job_begins_empty_and_resumes_from_the_latest_with_the_same_specification() {
    let setup = TrainingSetup::new();
    let seen = setup.machine.directory("seen").join("files");
    let command = format!("cd $BT_LOAD_CHECKPOINT_DIR && find . -type f | sort > {}", text(&seen));
    let folder = setup.machine.directory("work").join("loaded");
    let config = format!("download_folder = {folder:?}\n");
    let first = ended(setup.run(&config, &[], &command));
    assert_eq!(fs::read_to_string(&seen).unwrap(), "");
    let output = events(&first).join("\n");
    assert!(output.contains("begins without a checkpoint: bt://p"), "{output}");

    let tree = setup.machine.directory("tree");
    for (rank, size) in [("0", 3 << 20), ("1", 5 << 20), ("2", 7 << 20)] {
        write_file(&tree, "model.bin", size);
        setup.push(&tree, "p", "earlier", "step-5", rank);
    }
    setup.push(&tree, "other", "newer", "step-9", "0");
    // What lies in the folder on the machine itself is no checkpoint.
    write_file(&folder.join("rank-0/stale"), "model.bin", 99);
    let again = ended(setup.run(&config, &["--id", "me", "--rank", "1", "--nodes", "3"], &command));
    assert_eq!(
        fs::read_to_string(&seen).unwrap(),
        "./rank-0/step-5/model.bin\n./rank-1/step-5/model.bin\n./rank-2/step-5/model.bin\n"
    );
    let output = events(&again).join("\n");
    assert!(output.contains("resumes from bt://p@earlier/step-5"), "{output}");
    // Rank 2 is read on demand.
    assert_eq!(again["report"]["total"]["bytes"], 8 << 20, "{again}");
    assert_eq!(again["weights"].as_array().unwrap().len(), 3);
    assert!(!events(&again).iter().any(|event| event.contains("kept in memory")), "{again}");
}

#[test]
fn job_restarted_with_its_agent_has_the_checkpoints_that_it_began_with() {
    let setup = TrainingSetup::new();
    let tree = setup.machine.directory("tree");
    for rank in ["0", "1", "2"] {
        write_file(&tree, "model.bin", 3 << 20);
        setup.push(&tree, "p", "earlier", "step-5", rank);
    }
    let flag = setup.machine.directory("flag");
    let folder = setup.machine.directory("work").join("loaded");
    let wait = format!(
        "touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done; find $BT_LOAD_CHECKPOINT_DIR -type f | wc -l > {0}/files; \
         cat $BT_LOAD_CHECKPOINT_DIR/rank-2/step-5/model.bin | wc -c >> {0}/files",
        text(&flag)
    );
    let specification = setup.specification(&format!("download_folder = {folder:?}\n"), &wait);
    let agent = setup.machine.agent("");
    let line = ["--project", "p", "--mirror", text(&setup.mirror), text(&specification)];
    let id = submitted(&setup.machine, &line);
    eventually("it runs", || flag.join("runs").exists());
    setup.push(&tree, "p", "earlier", "step-6", "0");
    agent.crash();
    let agent = setup.machine.agent("");
    fs::write(flag.join("go"), "").unwrap();
    job(&setup.machine, &["wait", &id]).succeeds();
    assert_eq!(fs::read_to_string(flag.join("files")).unwrap(), "3\n3145728\n");
    let ended = agent.get(&format!("/v1/jobs/{id}")).json();
    let sources =
        ended["weights"].as_array().unwrap().iter().map(|source| source["source"].as_str().unwrap());
    assert!(sources.clone().all(|source| source.starts_with("bt://p@earlier/step-5")), "{ended}");
}

#[test]
fn job_resumes_from_the_generation_that_was_the_latest_when_it_was_submitted() {
    let env = TestEnv::new();
    env.put("any", 10);
    let [mirror, tree, work] = ["mirror", "tree", "work"].map(|name| env.machine.directory(name));
    let named = ["--project", "p", "--job", "earlier", "--mirror", text(&mirror)];
    let push = |size| {
        write_file(&tree, "model.bin", size);
        let push = ["checkpoint", "push", text(&tree), "--name", "last"];
        env.machine.run(&[&push[..], &named].concat()).succeeds();
    };
    push(3000);
    let _agent = env.machine.agent("");
    let command = "cat $BT_LOAD_CHECKPOINT_DIR/rank-0/last/model.bin | wc -c";
    let folder = format!("download_folder = {:?}\n", work.join("loaded"));
    let specification = format!(
        "{}[runtime.load_checkpoint_config]\nenabled = true\n{folder}",
        toml(&[("s3://bucket", text(&work.join("model")))], &[command])
    );
    let file = spec(&env.machine, "pinned.toml", &specification);
    env.proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    let number = submitted(&env.machine, &["--project", "p", "--mirror", text(&mirror), text(&file)]);
    push(5000);
    env.machine.run(&[&["checkpoint", "rm", "--yes", "last"], &named[..]].concat()).succeeds();
    env.proxy.set(NetworkFault::default());
    let waited = job(&env.machine, &["wait", &number]);
    assert_eq!(waited.code, Some(0), "{}", waited.err);
    assert_eq!(job(&env.machine, &["logs", &number]).succeeds(), "3000\n");
}

#[test]
fn job_loads_named_checkpoints_of_other_jobs_and_projects_side_by_side() {
    let setup = TrainingSetup::new();
    let seen = setup.machine.directory("seen").join("files");
    let command = format!("cd $BT_LOAD_CHECKPOINT_DIR && find . -type f | sort > {}", text(&seen));
    let tree = setup.machine.directory("tree");
    write_file(&tree, "model.bin", 99);
    setup.push(&tree, "far", "job1", "step-5", "0");
    setup.push(&tree, "p", "job2", "step-5", "0");
    setup.push(&tree, "far", "job3", "out/checkpoint-7", "0");
    let folder = setup.machine.directory("work").join("loaded");
    let config = |checkpoints: &str| format!("download_folder = {folder:?}\ncheckpoints = [{checkpoints}]\n");
    let named = |job: &str, name: &str| {
        format!("{{ typ = \"baseten_named_checkpoint\", job_id = {job:?}, checkpoint_name = {name:?} }}")
    };
    let latest = "{ typ = \"baseten_latest_checkpoint\", project_name = \"far\" }";
    let all = [named("job1", "step-5"), named("job2", "step-5"), latest.to_owned()].join(", ");
    ended(setup.run(&config(&all), &[], &command));
    assert_eq!(
        fs::read_to_string(&seen).unwrap(),
        "./job1/rank-0/step-5/model.bin\n./job2/rank-0/step-5/model.bin\n./rank-0/out/checkpoint-7/model.bin\n"
    );
    let refused = |checkpoints: &str, words: &[&str]| {
        setup.run(&config(checkpoints), &[], "true").fails(words);
    };
    refused(&named("job1", "step-6"), &["has no checkpoint \"step-6\"", "it has step-5"]);
    refused(&named("nobody", "step-5"), &["job nobody has no checkpoint"]);
    // One ID in two projects that are not the job's own.
    setup.push(&tree, "near", "job1", "step-5", "0");
    refused(&named("job1", "step-5"), &["jobs of several projects have the id job1: far, near"]);
    refused(
        "{ typ = \"baseten_latest_checkpoint\", project_name = \"none\" }",
        &["project \"none\" has no checkpoint"],
    );
    refused(
        "{ typ = \"loops_checkpoint\", run_id = \"r\", checkpoint_name = \"c\", target = \"trainer\" }",
        &["no loops_checkpoint can be loaded"],
    );
}

/// Runs a job that saves a checkpoint, and one that resumes from it; returns their statuses.
fn saved_and_resumed(saving: &SavingMachine) -> (Value, Value) {
    let number = saving.submit(
        "first",
        "mkdir $BT_CHECKPOINT_DIR/step-1 && cd $BT_CHECKPOINT_DIR/step-1 && head -c 5000000 /dev/urandom > model && \
         head -c 300000 /dev/urandom > optimizer && echo {} > config.json && stat -c %i model",
    );
    let first = saving.ended(&number);
    assert_eq!(first["state"], "TRAINING_JOB_COMPLETED", "{first}");
    assert!(!saving.volume("first").exists(), "it is not kept in the volume");
    let folder = saving.machine.directory("work").join("loaded");
    let command = "cd $BT_LOAD_CHECKPOINT_DIR/rank-0/step-1 && cat model optimizer config.json | wc -c";
    let config = format!(
        "{}[runtime.load_checkpoint_config]\nenabled = true\ndownload_folder = {folder:?}\n",
        toml(&[], &[command])
    );
    let file = spec(&saving.machine, "second.toml", &config);
    let number = submitted(&saving.machine, &["--id", "second", "--project", "p", text(&file)]);
    let second = saving.ended(&number);
    assert_eq!(second["state"], "TRAINING_JOB_COMPLETED", "{second}");
    assert_eq!(job(&saving.machine, &["logs", &number]).succeeds(), "5300003\n");
    (first, second)
}

#[test]
fn job_resuming_on_the_node_that_wrote_the_checkpoint_reads_nothing_from_the_mirror() {
    let saving = SavingMachine::new();
    let (first, second) = saved_and_resumed(&saving);
    let total = &second["report"]["total"];
    assert_eq!((&total["mirror"], &total["cache"]), (&0.into(), &5_300_003.into()), "{second}");
    assert_eq!(second["report"]["verdict"], "node-local hit", "{second}");
    let log = job(&saving.machine, &["logs", &first["id"].to_string()]).succeeds();
    let inode: u64 = log.trim().parse().unwrap();
    let blobs = regular_files(&saving.machine.cache().join("tenants/default/blobs"));
    assert!(blobs.iter().any(|(_, found)| found.ino() == inode), "the large file was not copied");
    let cached = "step-1 is in the cache of this node";
    assert!(events(&first).iter().any(|event| event == cached), "{first}");
    let trash = saving.machine.volumes().join("default/trash");
    eventually("the files of the job are removed", || fs::read_dir(&trash).unwrap().next().is_none());
}

#[test]
fn job_whose_checkpoint_does_not_fit_into_the_cache_completes() {
    let machine = Machine::new();
    let agent = start_with(&machine, "cache_size = \"4MiB\"");
    let saving = SavingMachine { machine, agent };
    let number = saving.submit(
        "large",
        "mkdir $BT_CHECKPOINT_DIR/step && head -c 9000000 /dev/urandom > $BT_CHECKPOINT_DIR/step/model",
    );
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert!(!events(&status).iter().any(|event| event.ends_with("in the cache of this node")), "{status}");
    assert!(saving.files("bt://p@large/step").is_some() && mirror(&saving.machine).exists());
    let used = saving.agent.status()["daemon"]["usage"]["used"].as_u64().unwrap();
    assert!(used <= 4 << 20, "{used}");
}

#[test]
fn job_run_signaled_while_the_mirror_does_not_answer_ends() {
    let env = TestEnv::new();
    let machine = &env.machine;
    let specification =
        "[runtime]\nstart_commands = [\"true\"]\n[runtime.load_checkpoint_config]\nenabled = true\n";
    let file = spec(machine, "job.toml", specification);
    env.proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    let line = ["job", "run", "--mirror", "s3://mirror", "--cache-dir", text(machine.cache()), text(&file)];
    let said = machine.directory("said").join("err");
    let mut command = machine.command(&line);
    command.stdout(Stdio::null()).stderr(File::create(&said).unwrap());
    let mut child = command.spawn().unwrap();
    eventually("it is its own agent", || machine.cache().join("control.sock").exists());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let status = wait_for_exit(&mut child, "bdnfs job run");
    let said = fs::read_to_string(said).unwrap();
    assert!(status.code() == Some(125) && said.contains("interrupted"), "{status} {said}");
}

#[test]
fn job_whose_checkpoint_was_being_rewritten_when_it_died_is_resumed_from_the_complete_one() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "first",
        &format!(
            "cd $BT_CHECKPOINT_DIR && mkdir last && echo one > last/model && touch last/.metadata
             while [ ! -e {}/go ]; do sleep 0.1; done; echo two > last/model; exit 3",
            text(&flag)
        ),
    );
    saving.await_event(&number, "saved last (generation 1, complete)");
    fs::write(flag.join("go"), "").unwrap();
    let first = saving.ended(&number);
    assert_eq!(checkpoints(&first), [saved("last", false, 2)], "{first}");
    let url = format!("file://{}", mirror(&saving.machine).display());
    let mirrored = |words: &[&str]| saving.machine.run(&[words, &["--mirror", &url]].concat()).succeeds();
    mirrored(&["mirror", "gc", "--grace", "0s"]);
    assert!(
        mirrored(&["checkpoint", "show", "last", "--project", "p"]).contains("last complete: generation 1")
    );
    let served = mirrored(&["checkpoint", "show", "bt://p", "--weights"]);
    assert!(served.contains("source = \"bt://p@first\""), "{served}");
    let wait = ["checkpoint", "wait", "bt://p@first", "--timeout", "1s", "--mirror", &url];
    assert_eq!(saving.machine.run(&wait).code, Some(124), "what is saved now is not complete");
    let place = saving.machine.directory("got").join("last");
    mirrored(&["checkpoint", "get", "bt://p@first", text(&place)]);
    assert_eq!(fs::read_to_string(place.join("model")).unwrap(), "one\n");

    let folder = saving.machine.directory("work").join("loaded");
    // Both are one checkpoint, of which the complete state is taken.
    let named = "{ typ = \"baseten_named_checkpoint\", job_id = \"first\", checkpoint_name = \"last\" }";
    let latest = "{ typ = \"baseten_latest_checkpoint\" }";
    let config = format!(
        "{}[runtime.load_checkpoint_config]\nenabled = true\ndownload_folder = {folder:?}\ncheckpoints = [{named}, {latest}]\n",
        toml(&[], &["cat $BT_LOAD_CHECKPOINT_DIR/rank-0/last/model"])
    );
    let file = spec(&saving.machine, "second.toml", &config);
    let number = submitted(&saving.machine, &["--project", "p", text(&file)]);
    let second = saving.ended(&number);
    assert_eq!(job(&saving.machine, &["logs", &number]).succeeds(), "one\n", "{second}");
    let noted = |event: &String| {
        event.starts_with("resumes from bt://p@first/last of ") && event.contains("last complete")
    };
    assert!(events(&second).iter().any(noted), "{second}");
    saving.verify();
}
