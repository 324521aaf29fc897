//! What jobs write into their checkpoint directory is saved: whole, as they closed it, and whatever dies meanwhile.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, kill_and_wait, wait_for_exit};
use rustix::process::{Pid, Signal, getpriority_process, kill_process};

use super::kit::{events, job, text};
use super::saving::{Files, SavingMachine, checkpoints, file, mirror, saved, saving_spec, start, start_with};

#[test]
fn job_completes_when_its_checkpoints_are_saved() {
    let saving = SavingMachine::new();
    let number = saving.submit(
        "first",
        "[ $BT_CHECKPOINT_DIR = /mnt/ckpts ] && cd $BT_CHECKPOINT_DIR && mkdir -p checkpoint-1/sub tmp-checkpoint-2 && \
         head -c 5000000 /dev/urandom > checkpoint-1/model && echo small > checkpoint-1/sub/config && mkfifo pipe && \
         sha256sum checkpoint-1/model && echo half > tmp-checkpoint-2/model && ln -s /etc/passwd checkpoint-1/link",
    );
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert_eq!(checkpoints(&status), [saved("checkpoint-1", true, 1)], "{status}");
    let reported = events(&status);
    assert!(
        reported
            .iter()
            .any(|event| event.starts_with("saved checkpoint-1 (generation 1, complete): 2 files")),
        "{reported:?}"
    );
    assert!(
        reported.iter().any(|event| event == "/mnt/ckpts/pipe is not saved: it is a fifo"),
        "{reported:?}"
    );
    let log = job(&saving.machine, &["logs", &number]).succeeds();
    let model = ("model".to_owned(), log.split(' ').next().unwrap().to_owned());
    assert_eq!(
        saving.files("bt://p@first/checkpoint-1"),
        Some(Files::from([model, file("sub/config", "small\n")]))
    );
    saving.verify();
    assert!(!saving.volume("first").exists(), "what is saved is not kept here");
    let shown = job(&saving.machine, &["show", &number]).succeeds();
    assert!(shown.contains("project p id first, rank 0 of 1") && shown.contains("checkpoint-1"), "{shown}");
}

#[test]
fn checkpoint_that_changes_is_saved_as_the_next_generation() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "twice",
        &format!(
            "cd $BT_CHECKPOINT_DIR && mkdir step && echo one > step/latest.pt && echo same > step/other && touch step/.metadata
             while [ ! -e {}/go ]; do sleep 0.1; done; echo two > step/latest.pt; exit 3",
            text(&flag)
        ),
    );
    saving.await_event(&number, "saved step (generation 1, complete)");
    let first = Files::from([file("latest.pt", "one\n"), file("other", "same\n"), file(".metadata", "")]);
    assert_eq!(saving.files("bt://p@twice/step"), Some(first));
    fs::write(flag.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "what it wrote is saved all the same");
    // Its marker is older than what was written since.
    assert_eq!(checkpoints(&status), [saved("step", false, 2)], "{status}");
    let second = Files::from([file("latest.pt", "two\n"), file("other", "same\n"), file(".metadata", "")]);
    assert_eq!(saving.files("bt://p@twice/step"), Some(second));
}

#[test]
fn checkpoint_with_a_writer_is_not_saved_before_it_is_closed() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let script = format!(
        "import mmap, os, time
os.chdir(os.environ['BT_CHECKPOINT_DIR'])
for name in ('open', 'mapped'):
    os.mkdir(name)
held = open('open/file', 'wb', 0)
held.write(b'half')
fd = os.open('mapped/file', os.O_RDWR | os.O_CREAT)
os.write(fd, b'half')
mapped = mmap.mmap(fd, 4)
os.close(fd)
for name in ('open', 'mapped'):
    open(name + '/.metadata', 'w').close()
while not os.path.exists('{0}/go'):
    time.sleep(0.1)
held.write(b'whole')
held.close()
mapped[:] = b'full'
mapped.close()",
        text(&flag)
    );
    let path = saving.machine.directory("specs").join("writer.py");
    fs::write(&path, script).unwrap();
    let number = saving.submit("held", &format!("python3 {}", text(&path)));
    eventually("both are seen", || checkpoints(&saving.status(&number)).len() == 2);
    // Several times what a checkpoint with such a marker takes to settle.
    sleep(Duration::from_secs(8));
    for (name, state, _, generation) in checkpoints(&saving.status(&number)) {
        assert_eq!((&*state, generation), ("writing", 0), "{name}");
    }
    fs::write(flag.join("go"), "").unwrap();
    saving.ended(&number);
    let whole = |content| Some(Files::from([file("file", content), file(".metadata", "")]));
    assert_eq!(saving.files("bt://p@held/open"), whole("halfwhole"));
    assert_eq!(saving.files("bt://p@held/mapped"), whole("full"));
}

#[test]
fn saver_goes_on_without_agent_until_all_is_saved() {
    let mut saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR; touch {0}/runs; while [ ! -e {0}/go ]; do sleep 0.1; done; mkdir last; echo x > last/model",
        text(&flag)
    );
    let number = saving.submit("alone", &command);
    eventually("there is a saver", || flag.join("runs").exists() && !saving.machine.savers().is_empty());
    saving.machine.crash();
    fs::write(flag.join("go"), "").unwrap();
    eventually("it is saved", || saving.files("bt://p@alone/last").is_some());
    eventually("the saver ends by itself", || saving.machine.savers().is_empty());
    saving.agent = start(&saving.machine);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert_eq!(checkpoints(&status), [saved("last", true, 1)], "{status}");
}

#[test]
fn saver_has_the_least_priority_within_its_session_and_beside_others() {
    let saving = SavingMachine::new();
    let number = saving.submit("mild", "sleep 1000");
    eventually("there is a saver", || !saving.machine.savers().is_empty());
    let saver = saving.machine.savers()[0];
    eventually("it has named its session's priority", || {
        let session = fs::read_to_string(format!("/proc/{}/autogroup", saver.as_raw_nonzero()));
        // Kernels without such groups have no such file.
        session.map_or(true, |session| session.trim_end().ends_with("nice 19"))
    });
    assert_eq!(getpriority_process(Some(saver)), Ok(19));
    job(&saving.machine, &["stop", "--now", &number]).succeeds();
}

#[test]
fn job_killed_with_its_supervisor_has_saved_what_was_closed() {
    let saving = SavingMachine::new();
    let number = saving.submit(
        "killed",
        "cd $BT_CHECKPOINT_DIR && mkdir a b && echo a > a/model && echo b > b/model && mkdir c && exec 3> c/model && echo half >&3; sleep 1000",
    );
    let state = |name: &str| {
        let all = checkpoints(&saving.status(&number));
        all.into_iter().find(|one| one.0 == name).map(|one| one.1)
    };
    let is_sealed = |name| state(name).is_some_and(|state| state != "writing");
    eventually("two are sealed", || is_sealed("a") && is_sealed("b") && state("c").is_some());
    kill_and_wait(&saving.machine.supervisors());
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED");
    for name in ["a", "b"] {
        let whole = Files::from([file("model", &format!("{name}\n"))]);
        assert_eq!(saving.files(&format!("bt://p@killed/{name}")), Some(whole), "{status}");
    }
    assert_eq!(state("c").as_deref(), Some("torn"), "{status}");
    assert!(saving.files("bt://p@killed/c").is_none());
    let reported = events(&status);
    assert!(
        reported.iter().any(|event| event.starts_with("c was being written when the job was killed")),
        "{reported:?}"
    );
    let left = saving.volume("killed").join("checkpoints/c/model");
    assert_eq!(fs::read_to_string(left).unwrap(), "half\n", "kept");
    // The others may be, where their next one began within another tick of the file system's clock.
    let incomplete = |(name, _, complete, _): &(String, String, bool, u64)| name != "c" || !complete;
    assert!(checkpoints(&status).iter().all(incomplete), "nothing says so: {status}");
}

#[test]
fn mirror_that_is_away_delays_the_end_and_loses_nothing() {
    let saving = SavingMachine::new();
    saving.take_mirror_away();
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "away",
        &format!(
            "cd $BT_CHECKPOINT_DIR && mkdir a b && echo a > a/model && touch a/.metadata && echo b > b/model && touch b/.metadata
             while [ ! -e {}/go ]; do sleep 0.1; done; rm -r a",
            text(&flag)
        ),
    );
    saving.await_event(&number, "cannot save ");
    eventually("both are sealed", || {
        checkpoints(&saving.status(&number)).iter().all(|(_, state, ..)| state == "sealed")
    });
    eventually("it is told", || saving.status(&number)["saving"]["backlog"].as_u64() > Some(0));
    let metrics = saving.agent.get("/metrics").body;
    for name in
        ["backlog_bytes", "saved_bytes_total", "failures_total", "last_save_seconds", "save_interval_seconds"]
    {
        let line = format!("bdnfs_checkpoint_{name}{{project=\"p\",job=\"away\"}} ");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    let rules = include_str!("../../../deploy/alerts.yaml");
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named: BTreeSet<_> = words.filter(|word| word.starts_with("bdnfs_")).collect();
    assert!(named.len() > 3, "{named:?}");
    for metric in named {
        assert!(metrics.contains(&format!("{metric}{{project=\"p\",job=\"away\"}} ")), "{metric}");
    }
    fs::write(flag.join("go"), "").unwrap();
    job(&saving.machine, &["wait", "--until", "exited", &number]).succeeds();
    saving.await_event(&number, "a was deleted by the job before it was saved");
    let status = saving.status(&number);
    assert_eq!(status["state"], "TRAINING_JOB_RUNNING", "{status}");
    let listed = job(&saving.machine, &["ls"]).succeeds();
    assert!(listed.contains("TRAINING_JOB_RUNNING (saving)") && listed.contains("TO SAVE"), "{listed}");
    saving.bring_mirror_back();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    let skipped = ("a".to_owned(), "skipped".to_owned(), true, 0);
    assert_eq!(checkpoints(&status), [skipped, saved("b", true, 1)], "{status}");
    assert!(saving.files("bt://p@away/a").is_none() && saving.files("bt://p@away/b").is_some());
}

#[test]
fn checkpoint_seen_while_it_is_deleted_is_told_of_as_deleted() {
    let saving = SavingMachine::new();
    saving.take_mirror_away();
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "emptied",
        &format!(
            "await() {{ while [ ! -e {0}/$1 ]; do sleep 0.1; done; }}
             cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && touch a/.metadata && await empty && rm a/model a/.metadata && await go && rmdir a",
            text(&flag)
        ),
    );
    let is_a = |state: &str, bytes: u64| {
        let reported = saving.status(&number)["saving"]["checkpoints"][0].clone();
        reported["state"] == state && reported["bytes"] == bytes
    };
    eventually("it is sealed", || is_a("sealed", 2));
    fs::write(flag.join("empty"), "").unwrap();
    eventually("a scan finds it empty", || is_a("writing", 0));
    fs::write(flag.join("go"), "").unwrap();
    saving.await_event(&number, "a was deleted by the job before it was saved");
    saving.bring_mirror_back();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED");
    assert_eq!(checkpoints(&status), [("a".to_owned(), "skipped".to_owned(), true, 0)], "{status}");
}

#[test]
fn job_whose_mirror_stays_away_fails_naming_the_directory() {
    let machine = Machine::new();
    let saving = SavingMachine { agent: start_with(&machine, "[volumes]\ngive_up = \"1s\""), machine };
    saving.take_mirror_away();
    let number = saving.submit("lost", "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model");
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED");
    assert_eq!(status["exit_code"], 125, "its commands ended with 0: {status}");
    let directory = saving.volume("lost").join("checkpoints");
    let why = status["why"]["message"].as_str().unwrap();
    assert!(why.ends_with(&format!("they are kept in {}", directory.display())), "{why}");
    assert_eq!(fs::read_to_string(directory.join("a/model")).unwrap(), "a\n");
    saving.machine.crash();
    let next = start(&saving.machine);
    eventually("the next agent lists it", || {
        let unsaved = next.status()["unsaved"].clone();
        (&unsaved[0]["id"], unsaved[0]["directory"].as_str()) == (&"lost".into(), directory.to_str())
    });
    let shown = saving.machine.run(&["status", "--cache-dir", text(saving.machine.cache())]).succeeds();
    assert!(shown.contains("UNSAVED") && shown.contains(text(&directory)), "{shown}");
    assert!(directory.join("a/model").exists(), "no agent clears it");
    let again =
        job(&saving.machine, &["run", "--id", "lost", text(&saving_spec(&saving.machine, "again", "true"))]);
    assert!(again.code == Some(125) && again.err.contains("choose another --id"), "{}", again.err);
    assert!(directory.join("a/model").exists(), "no job of the same id has it saved or cleared");
    saving.bring_mirror_back();
    let url = format!("file://{}", mirror(&saving.machine).display());
    let checkpoint = |words: &[&str]| {
        saving
            .machine
            .run(&[&["checkpoint"], words, &["--project", "p", "--mirror", &url]].concat())
            .succeeds()
    };
    checkpoint(&["push", text(&directory.join("a")), "--job", "pushed"]);
    let listed = checkpoint(&["ls"]);
    assert!(listed.contains("pushed") && listed.contains("UNSAVED"), "{listed}");
    assert!(listed.contains(text(&directory)), "{listed}");
    assert!(!checkpoint(&["ls", "--job", "pushed"]).contains("UNSAVED"), "it is another job's");
    assert!(!checkpoint(&["ls", "-o", "csv"]).contains("UNSAVED"), "that is truss's");
    let of_another = ["checkpoint", "ls", "--project", "q", "--mirror", &url];
    assert!(!saving.machine.run(&of_another).succeeds().contains("UNSAVED"), "it is another project's");
}

#[test]
fn job_whose_saver_can_record_nothing_fails_naming_the_directory() {
    let machine = Machine::new();
    let saving = SavingMachine { agent: start_with(&machine, "[volumes]\ngive_up = \"1s\""), machine };
    saving.take_mirror_away();
    let number = saving.submit(
        "mute",
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model; while [ ! -e go ]; do sleep 0.1; done",
    );
    let volume = saving.volume("mute");
    eventually("it has a record, and no file can take its place, as on a full disk", || {
        fs::remove_file(volume.join("saver.json")).is_ok()
            && fs::create_dir_all(volume.join("saver.json/below")).is_ok()
    });
    fs::write(volume.join("checkpoints/go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED");
    let why = status["why"]["message"].as_str().unwrap();
    assert!(why.ends_with(&format!("they are kept in {}", volume.join("checkpoints").display())), "{why}");
    assert!(volume.join("checkpoints/a/model").exists());
}

#[test]
fn job_run_signaled_while_it_saves_leaves_what_is_not_saved() {
    let machine = Machine::new();
    let mirror = machine.directory("home").join("mirror");
    fs::write(&mirror, "no directory").unwrap();
    let spec = saving_spec(&machine, "left", "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model");
    let url = format!("file://{}", mirror.display());
    let cache = text(machine.cache()).to_owned();
    let said = machine.directory("said").join("err");
    let mut run = machine.command(&[
        "job",
        "run",
        "--id",
        "left",
        "--mirror",
        &url,
        "--cache-dir",
        &cache,
        text(&spec),
    ]);
    let mut run = run.stdout(Stdio::null()).stderr(File::create(&said).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&said).unwrap();
    let signal = || kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
    eventually("its commands ended", || said().contains("its commands have ended"));
    eventually("it can't be saved", || said().contains("cannot save "));
    signal();
    eventually("it says what a second one does", || said().contains("--now"));
    signal();
    let code = wait_for_exit(&mut run, "bdnfs job run").code();
    assert_eq!(code, Some(125), "{}", said());
    let directory = machine.volumes().join("default/jobs/left/checkpoints");
    let end = said().lines().last().unwrap_or_default().to_owned();
    assert!(end.contains("was stopped: not all checkpoints could be saved"), "{end}");
    assert!(end.ends_with(&format!("they are kept in {}", directory.display())), "{end}");
    assert_eq!(fs::read_to_string(directory.join("a/model")).unwrap(), "a\n");
    assert!(machine.savers().is_empty() && machine.agent_pids().is_empty());
}

#[test]
fn checkpoints_that_are_discarded_do_not_delay_the_end() {
    let saving = SavingMachine::new();
    saving.take_mirror_away();
    let number = saving.submit("dropped", "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model");
    saving.await_event(&number, "cannot save a");
    job(&saving.machine, &["stop", "--discard", &number]).succeeds();
    assert_eq!(saving.status(&number)["state"], "TRAINING_JOB_STOPPED");
    eventually("the saver ends", || saving.machine.savers().is_empty());
    assert!(!saving.volume("dropped").exists());
}
