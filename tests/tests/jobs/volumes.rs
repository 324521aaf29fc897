//! What jobs write: where it lies, who sees it, and what is left of it.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs_tests::filled_disk::FilledDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, kill_and_wait};
use bdnfs_tests::tree::write_file;
use rustix::process::{Signal, kill_process};

use super::kit::{events, job, spec, submitted, text, toml};
use super::saving::{Files, SavingMachine, checkpoints, file, saved, saved_files, saving_spec, start_with};

/// The directories of what jobs of this machine write, by the ids of the jobs.
fn volumes(machine: &Machine) -> Vec<PathBuf> {
    let jobs = fs::read_dir(machine.volumes().join("default/jobs"));
    jobs.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn is_trash_empty(machine: &Machine) -> bool {
    fs::read_dir(machine.volumes().join("default/trash")).is_ok_and(|mut entries| entries.next().is_none())
}

/// The specification of a job without sources.
fn commands(machine: &Machine, name: &str, commands: &[&str]) -> PathBuf {
    spec(machine, name, &toml(&[], commands))
}

#[test]
fn scratch_is_private_to_its_job_and_removed_at_its_end() {
    let machine = Machine::new();
    let seen = machine.directory("seen");
    let command = format!(
        "cd $BT_SCRATCH_DIR && [ $TMPDIR = $BT_SCRATCH_DIR ] && [ $PWD = /mnt/bt-scratch ] && mktemp && mkdir -p a/b && \
         echo mine > a/b/file && stat -c %a . > {seen}/mode && ls -A {volumes} > {seen}/others && \
         df --output=source . | tail -1 > {seen}/disk && env | grep ^BT_ | sort > {seen}/env",
        seen = text(&seen),
        volumes = text(&machine.volumes()),
    );
    let file = commands(&machine, "scratch.toml", &[&command]);
    let arguments =
        ["run", "--id", "j1", "--project", "p", "--rank", "1", "--nodes", "2", "--leader", "10.0.0.1"];
    let report =
        job(&machine, &[&arguments[..], &["--cache-dir", text(machine.cache()), text(&file)]].concat());
    assert_eq!(report.code, Some(0), "{}", report.err);
    let saw = |name: &str| fs::read_to_string(seen.join(name)).unwrap();
    assert_eq!((saw("mode").trim(), saw("others").as_str()), ("700", ""));
    assert_ne!(saw("disk").trim(), "bdnfs-job", "it lies on the disk");
    let expected = "BT_GROUP_SIZE=2\nBT_LEADER_ADDR=10.0.0.1\nBT_NODE_RANK=1\nBT_RETRY_COUNT=0\n\
                    BT_SCRATCH_DIR=/mnt/bt-scratch\nBT_TRAINING_JOB_ID=j1\nBT_TRAINING_JOB_NAME=j1\n\
                    BT_TRAINING_PROJECT_NAME=p\n";
    assert_eq!(saw("env"), expected);
    assert!(volumes(&machine).is_empty(), "{:?}", volumes(&machine));
    assert!(
        fs::read_dir("/mnt/bt-scratch").unwrap().next().is_none(),
        "the host has an empty directory there"
    );
}

#[test]
fn job_writing_beside_its_volume_keeps_what_it_wrote() {
    let machine = Machine::new();
    let out = tempfile::Builder::new().prefix("bdnfs-beside-").tempdir_in("/mnt").unwrap();
    let path = out.path().with_extension("file");
    let file = commands(&machine, "beside.toml", &[&format!("echo kept > {}", text(&path))]);
    job(&machine, &["run", "--cache-dir", text(machine.cache()), text(&file)]).succeeds();
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept\n");
    fs::remove_file(path).unwrap();
}

#[test]
fn job_id_in_use_is_refused_to_another_job() {
    let machine = Machine::new();
    let _agent = machine.agent("");
    let flag = machine.directory("flag");
    let wait = format!(
        "echo x > $BT_SCRATCH_DIR/x; touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done",
        text(&flag)
    );
    let file = commands(&machine, "wait.toml", &[&wait]);
    let first = submitted(&machine, &["--id", "same", text(&file)]);
    eventually("it runs", || flag.join("runs").exists());
    let second = job(&machine, &["run", "--id", "same", text(&file)]);
    let message = "a job with the id same runs on this node already; choose another --id";
    assert!(second.code == Some(125) && second.err.contains(message), "{}", second.err);
    let [volume] = &volumes(&machine)[..] else { panic!("one volume") };
    assert!(volume.join("scratch/x").exists(), "the refused job leaves the volume of the other alone");
    fs::write(flag.join("go"), "").unwrap();
    job(&machine, &["wait", &first]).succeeds();
    assert!(volumes(&machine).is_empty());
}

#[test]
fn job_id_is_refused_to_another_job_until_the_scratch_of_the_first_is_removed() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flag = machine.directory("flag");
    let wait = format!("touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.05; done", text(&flag));
    let file = commands(&machine, "wait.toml", &[&wait]);
    let first = submitted(&machine, &["--id", "same", text(&file)]);
    let state = || agent.get(&format!("/v1/jobs/{first}")).json()["state"].clone();
    eventually("it runs", || flag.join("runs").exists() && state() == "TRAINING_JOB_RUNNING");
    let [volume] = &volumes(&machine)[..] else { panic!("one volume") };
    // Its commands end, and the agent is not done with it for long, as where it verifies what they read.
    kill_process(agent.pid(), Signal::STOP).unwrap();
    fs::write(flag.join("go"), "").unwrap();
    eventually("its supervisor has ended", || machine.supervisors().is_empty());
    let other = machine.directory("other");
    let second = job(&machine, &["run", "--id", "same", "--cache-dir", text(&other), text(&file)]);
    let has_scratch = volume.join("scratch").exists();
    kill_process(agent.pid(), Signal::CONT).unwrap();
    let message = "a job with the id same runs on this node already; choose another --id";
    assert!(second.code == Some(125) && second.err.contains(message), "{}", second.err);
    assert!(has_scratch, "it is the first one's");
    job(&machine, &["wait", &first]).succeeds();
    assert!(volumes(&machine).is_empty());
    job(&machine, &["run", "--id", "same", "--cache-dir", text(&other), text(&file)]).succeeds();
}

#[test]
fn volume_left_by_a_killed_agent_and_job_is_cleared_by_the_next() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let flag = machine.directory("flag");
    let command =
        format!("echo $$ > {0}/pid; echo x > $BT_SCRATCH_DIR/x; touch {0}/runs; sleep 1000", text(&flag));
    let id = submitted(&machine, &[text(&commands(&machine, "sleep.toml", &[&command]))]);
    eventually("it runs", || flag.join("runs").exists());
    let [volume] = &volumes(&machine)[..] else { panic!("one volume") };
    // One of a job that no record tells of.
    let left = volume.with_file_name("left");
    fs::create_dir_all(left.join("scratch/below")).unwrap();
    agent.crash();
    let _next = machine.agent("");
    eventually("what nobody holds is cleared", || !left.exists() && is_trash_empty(&machine));
    assert!(volume.join("scratch/x").exists(), "the job goes on, and has its scratch");
    job(&machine, &["stop", "--now", &id]).succeeds();
    assert!(volumes(&machine).is_empty());
}

#[test]
fn scratch_over_its_limit_fails_the_job() {
    let machine = Machine::new();
    let agent = machine.agent("[volumes]\nscratch_limit = \"10MB\"\n");
    let flag = machine.directory("flag");
    // All at once: half of it would be measured, too.
    let command = format!(
        "fallocate -l 9000000 $TMPDIR/x; while [ ! -e {}/go ]; do sleep 0.1; done; \
         fallocate -l 18000000 $TMPDIR/x; sleep 1000",
        text(&flag)
    );
    let id = submitted(&machine, &[text(&commands(&machine, "full.toml", &[&command]))]);
    let status = || agent.get(&format!("/v1/jobs/{id}")).json();
    eventually("an event tells that it is nearly full", || {
        events(&status()).iter().any(|event| event.starts_with("/mnt/bt-scratch occupies 9"))
    });
    assert_eq!(status()["state"], "TRAINING_JOB_RUNNING");
    fs::write(flag.join("go"), "").unwrap();
    eventually("it fails", || status()["state"] == "TRAINING_JOB_FAILED");
    let why = status()["why"]["message"].as_str().unwrap().to_owned();
    assert!(why.starts_with("/mnt/bt-scratch occupies 18") && why.contains("raise scratch_limit"), "{why}");
}

#[test]
fn job_writing_to_a_disk_that_the_cache_has_filled_has_data_evicted() {
    let Some(filled) = FilledDisk::new() else { return };
    let machine = &filled.machine;
    let flag = machine.directory("flag");
    let command = format!(
        "cd $BT_SCRATCH_DIR && head -c 40000000 /dev/zero > first && while [ ! -e {}/go ]; do sleep 0.1; done; \
         head -c 50000000 /dev/zero > second",
        text(&flag)
    );
    let number = submitted(machine, &[text(&commands(machine, "write.toml", &[&command]))]);
    eventually("what is not in use is evicted", || filled.usage("evicted") > 0);
    assert!(filled.usage("free") >= 40 << 20, "the reserve is free again: {}", filled.usage("free"));
    fs::write(flag.join("go"), "").unwrap();
    job(machine, &["wait", &number]).succeeds();
}

#[test]
fn job_with_mounts_below_its_checkpoints_saves_what_it_writes_beside_them() {
    let saving = SavingMachine::new();
    let machine = &saving.machine;
    let base = machine.directory("base");
    fs::write(base.join("model"), "base\n").unwrap();
    let out = machine.directory("out").join("checkpoints");
    let source = format!("file://{}", text(&base));
    let command = "cd $BT_CHECKPOINT_DIR && cat base/model && ls $BT_LOAD_CHECKPOINT_DIR $BT_PROJECT_CACHE_DIR && mkdir step && echo x > step/model";
    let content = toml(&[(&source, text(&out.join("base")))], &[command])
        + &format!("[runtime.checkpointing_config]\nenabled = true\ncheckpoint_path = {out:?}\n")
        + &format!("[runtime.cache_config]\nenabled = true\nmount_base_path = {:?}\n", out.join("caches"))
        + &format!(
            "[runtime.load_checkpoint_config]\nenabled = true\ndownload_folder = {:?}\n",
            out.join("loaded")
        );
    let file = spec(machine, "nested.toml", &content);
    let number = submitted(machine, &["--id", "nested", "--project", "p", text(&file)]);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert!(checkpoints(&status).contains(&saved("step", true, 1)), "{status}");
    assert!(!events(&status).iter().any(|event| event.contains("kept in memory")), "{status}");
}

#[test]
fn job_whose_record_cannot_be_written_has_its_checkpoints_saved() {
    let saving = SavingMachine::new();
    let number = saving.submit(
        "full",
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && touch a/.metadata
         while [ ! -e go ]; do sleep 0.1; done; rm go; mkdir b && echo b > b/model",
    );
    saving.await_event(&number, "saved a ");
    let record = saving.machine.cache().join(format!("state/jobs/{number}.json"));
    eventually("no file can take the place of its record, as on a full disk", || {
        fs::remove_file(&record).is_ok() && fs::create_dir_all(record.join("below")).is_ok()
    });
    fs::write(saving.volume("full").join("checkpoints/go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert_eq!(saving.files("bt://p@full/b"), Some(Files::from([file("model", "b\n")])));
}

#[test]
fn job_that_is_still_saved_holds_neither_scratch_nor_sources_nor_space() {
    let machine = Machine::new();
    let saving = SavingMachine { agent: start_with(&machine, "cache_size = \"8MiB\""), machine };
    let flag = saving.machine.directory("flag");
    let tree = saving.machine.directory("tree");
    write_file(&tree, "model", 5 << 20);
    let source = format!("file://{}", tree.display());
    let of = |name: &str, command: &str| {
        let lines = toml(&[(&source, text(&saving.machine.directory("work").join("model")))], &[command]);
        spec(
            &saving.machine,
            name,
            &format!("{lines}[runtime.checkpointing_config]\nenabled = true\nvolume_size_gib = 1\n"),
        )
    };
    let wait = format!(
        "echo x > $BT_SCRATCH_DIR/x; mkdir $BT_CHECKPOINT_DIR/a; echo a > $BT_CHECKPOINT_DIR/a/model; touch {0}/runs; \
         while [ ! -e {0}/go ]; do sleep 0.05; done",
        text(&flag)
    );
    let number =
        submitted(&saving.machine, &["--id", "away", "--project", "p", text(&of("away.toml", &wait))]);
    eventually("it runs", || flag.join("runs").exists());
    let mounts = || saving.agent.status()["mounts"].as_array().unwrap().len();
    assert_eq!(mounts(), 1);
    saving.take_mirror_away();
    fs::write(flag.join("go"), "").unwrap();
    job(&saving.machine, &["wait", "--until", "exited", &number]).succeeds();
    saving.await_event(&number, "cannot save ");
    assert_eq!((mounts(), saving.volume("away").join("scratch").exists()), (0, false));
    assert!(saving.volume("away").join("checkpoints/a/model").exists());
    saving.agent.crash();
    let agent = start_with(&saving.machine, "cache_size = \"8MiB\"");
    let saving = SavingMachine { agent, ..saving };
    assert_eq!(saving.status(&number)["state"], "TRAINING_JOB_RUNNING");
    assert_eq!(saving.agent.status()["mounts"].as_array().unwrap().len(), 0);
    saving.bring_mirror_back();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert!(!saving.volume("away").exists() && saving.files("bt://p@away/a").is_some());
}

#[test]
fn checkpoints_of_a_killed_job_run_are_saved_and_removed_by_the_next() {
    let machine = Machine::new();
    let flag = machine.directory("flag");
    let mirror = machine.directory("home").join("mirror");
    fs::write(&mirror, "no directory").unwrap();
    let (url, cache) = (format!("file://{}", mirror.display()), text(machine.cache()).to_owned());
    let command = format!(
        "mkdir $BT_CHECKPOINT_DIR/a; echo a > $BT_CHECKPOINT_DIR/a/model; touch {0}/runs; sleep 1000",
        text(&flag)
    );
    let path = saving_spec(&machine, "killed", &command);
    let line = |id: &str, path: &Path| {
        let words =
            ["job", "run", "--id", id, "--project", "p", "--mirror", &url, "--cache-dir", &cache, text(path)];
        words.map(str::to_owned)
    };
    let mut run = machine.command(&line("killed", &path)).spawn().unwrap();
    let seal = machine.volumes().join("default/jobs/killed/seals/a.json");
    eventually("it is sealed", || seal.exists());
    run.kill().unwrap();
    run.wait().unwrap();
    eventually("no saver can save it", || machine.savers().len() == 1);
    kill_and_wait(&machine.savers());
    fs::remove_file(&mirror).unwrap();
    let next = saving_spec(&machine, "next", "sleep 1");
    machine.run(&line("next", &next)).succeeds();
    eventually("the saver ends by itself", || machine.savers().is_empty());
    assert!(saved_files(&mirror, "bt://p@killed/a").is_some());
    machine.run(&line("last", &next)).succeeds();
    assert!(volumes(&machine).is_empty(), "{:?}", volumes(&machine));
}
