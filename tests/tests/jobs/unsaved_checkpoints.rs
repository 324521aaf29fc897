//! Checkpoints that nearly were not saved, or not as what they are: killed jobs, temporary names, logs, mirrors with faults.

use std::fs;
use std::path::Path;

use bdnfs_tests::process::{eventually, kill_and_wait};
use serde_json::Value;

use super::kit::{events, job, text};
use super::saving::{Files, SavingMachine, checkpoints, file, mirror, saved, start_with};
use bdnfs_tests::machine::Machine;

/// A command that waits until there is a file `name` in the directory `flags`.
fn wait_for(flags: &Path, name: &str) -> String {
    format!("while [ ! -e {}/{name} ]; do sleep 0.1; done", text(flags))
}

/// Waits until the checkpoint `name` of the job is sealed; where it says so, complete.
fn await_sealed(saving: &SavingMachine, number: &str, name: &str, complete: bool) {
    eventually("it is sealed", || {
        let wanted = (name.to_owned(), "sealed".to_owned(), complete, 0);
        checkpoints(&saving.status(number)).contains(&wanted)
    });
}

/// Waits until the saver of the job `id` has written down that a checkpoint has a writer.
fn await_writer_seen(saving: &SavingMachine, id: &str) {
    let record = saving.volume(id).join("saver.json");
    eventually("the writer is seen", || {
        fs::read_to_string(&record).is_ok_and(|record| record.contains("written_to"))
    });
}

fn has_event(status: &Value, begin: &str) -> bool {
    events(status).iter().any(|event| event.starts_with(begin))
}

#[test]
fn files_that_were_sealed_before_the_job_was_killed_are_saved() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && echo one > m1.pt && echo two > m2.pt && {} && echo half > m3.pt && kill -KILL $$",
        wait_for(&flags, "go")
    );
    let number = saving.submit("loose", &command);
    saving.take_mirror_away();
    await_sealed(&saving, &number, ".", false);
    fs::write(flags.join("go"), "").unwrap();
    eventually("it is torn", || has_event(&saving.status(&number), ". was being written when the job"));
    saving.bring_mirror_back();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    let sealed = Files::from([file("m1.pt", "one\n"), file("m2.pt", "two\n")]);
    assert_eq!(saving.files("bt://p@loose/."), Some(sealed), "{status}");
    assert!(saving.volume("loose").join("checkpoints/m3.pt").exists(), "what may be torn is kept");
    saving.verify();
}

#[test]
fn checkpoint_that_a_handler_of_sigterm_finished_is_saved() {
    let saving = SavingMachine::new();
    let command = "cd $BT_CHECKPOINT_DIR && mkdir last torn half && echo whole > last/model && sleep 0.1
        printf '{\\n  \"loss\": NaN\\n}\\n' > last/trainer_state.json
        echo model > half/model && sleep 0.1 && printf '{\\n' > half/trainer_state.json
        echo model > torn/.metadata && sleep 0.1 && echo later > torn/model; exit 143";
    let number = saving.submit("handler", command);
    let status = saving.ended(&number);
    let found = checkpoints(&status);
    assert!(found.contains(&saved("last", true, 1)), "{status}");
    for name in ["half", "torn"] {
        assert!(found.iter().any(|one| one.0 == name && one.1 == "torn"), "{status}");
        assert_eq!(saving.files(&format!("bt://p@handler/{name}")), None);
    }
}

#[test]
fn checkpoint_whose_killed_writer_was_seen_is_torn_whatever_hint_it_has() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir open closed && echo model > closed/model && exec 8>open/model && echo half >&8
        sleep 0.2; touch closed/.metadata open/.metadata; {}; kill -9 $$",
        wait_for(&flags, "go")
    );
    let number = saving.submit("seen", &command);
    await_writer_seen(&saving, "seen");
    saving.await_event(&number, "saved closed ");
    fs::write(flags.join("go"), "").unwrap();
    let status = saving.ended(&number);
    let found = checkpoints(&status);
    assert!(found.contains(&saved("closed", true, 1)), "{status}");
    assert!(found.iter().any(|one| one.0 == "open" && one.1 == "torn"), "{status}");
    assert_eq!(saving.files("bt://p@seen/open"), None);
}

#[test]
fn checkpoint_whose_writer_was_seen_by_an_earlier_saver_is_torn() {
    let saving = SavingMachine::new();
    let end = saving.machine.directory("etc").join("end");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir open && exec 8>open/model && echo half >&8
        sleep 0.2; touch open/.metadata; while [ ! -e {} ]; do sleep 0.05; done; kill -9 $$",
        end.display()
    );
    let number = saving.submit("seen", &command);
    await_writer_seen(&saving, "seen");
    kill_and_wait(&saving.machine.savers());
    fs::write(end, "").unwrap();
    let status = saving.ended(&number);
    assert!(checkpoints(&status).iter().any(|one| one.0 == "open" && one.1 == "torn"), "{status}");
    assert_eq!(saving.files("bt://p@seen/open"), None);
}

#[test]
fn checkpoint_being_written_when_the_job_is_stopped_is_torn_unless_that_ends_in_good_order() {
    let saving = SavingMachine::new();
    for (code, state) in [(1, "torn"), (0, "saved")] {
        let id = format!("stopped{code}");
        let command = format!(
            "trap 'exit {code}' TERM; cd $BT_CHECKPOINT_DIR && mkdir a b && echo a > a/model && touch a/.metadata
            while :; do echo more >> b/model; sleep 0.1; done"
        );
        let number = saving.submit(&id, &command);
        saving.await_event(&number, "saved a ");
        job(&saving.machine, &["stop", &number]).succeeds();
        let status = saving.ended(&number);
        assert_eq!(
            (&status["exit"]["code"], &status["exit"]["stopped"]),
            (&code.into(), &true.into()),
            "{status}"
        );
        let found = checkpoints(&status);
        assert!(found.iter().any(|one| one.0 == "b" && one.1 == state), "{status}");
        assert_eq!(saving.files(&format!("bt://p@{id}/b")).is_some(), state == "saved", "{status}");
        assert!(found.contains(&saved("a", true, 1)), "{status}");
        // Only a hint tells that a job that was stopped had finished it.
        assert_eq!(found.contains(&saved("b", false, 1)), state == "saved", "{status}");
    }
}

#[test]
fn checkpoint_that_a_killed_process_closes_while_its_job_winds_down_is_torn() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let (begin, more) = (
        "cd $BT_CHECKPOINT_DIR && mkdir a b && echo a > a/model && touch a/.metadata",
        "echo more; sleep 0.1",
    );
    // Each has time for a seal of what its writer has closed: the first a shell that ends later, the second a process that is left.
    let stopped = format!(
        "trap 'sleep 6; exit 1' TERM; {begin}
        sh -c 'exec > b/model; while :; do {more}; done' & wait; wait"
    );
    let killed = format!(
        "{begin}; (trap '' TERM; exec sleep 100) & exec > b/model; while [ ! -e {}/go ]; do {more}; done; kill -KILL $$",
        text(&flags)
    );
    for (id, command) in [("stopped", stopped), ("killed", killed)] {
        let number = saving.submit(id, &command);
        saving.await_event(&number, "saved a ");
        match id {
            "stopped" => drop(job(&saving.machine, &["stop", &number]).succeeds()),
            _ => fs::write(flags.join("go"), "").unwrap(),
        }
        let status = saving.ended(&number);
        assert!(checkpoints(&status).iter().any(|one| one.0 == "b" && one.1 == "torn"), "{status}");
        assert_eq!(saving.files(&format!("bt://p@{id}/b")), None, "{status}");
    }
}

#[test]
fn checkpoint_of_a_process_that_the_end_of_its_job_kills_is_torn() {
    let saving = SavingMachine::new();
    let (begin, more) = (
        "cd $BT_CHECKPOINT_DIR && mkdir a b c d && echo a > a/model",
        "while :; do echo more; sleep 0.1; done",
    );
    // Writers that SIGTERM ends, that only SIGKILL does, and one that closes its file itself, which no child of it has.
    let left = format!(
        "{begin}; (exec > b/model; {more}) & (trap '' TERM; exec > c/model; {more}) &
        (trap exit TERM; exec > d/model; while :; do echo more; sleep 0.1 > /dev/null; done) & sleep 5; exit 0"
    );
    // The shell above them ends in good order.
    let stopped =
        format!("trap 'exit 0' TERM; {begin}; (exec > b/model; {more}) & (exec > c/model; {more}) & wait");
    for (id, command) in [("left", left), ("stopped", stopped)] {
        let number = saving.submit(id, &command);
        if id == "stopped" {
            saving.await_event(&number, "saved a ");
            job(&saving.machine, &["stop", &number]).succeeds();
        }
        let status = saving.ended(&number);
        assert_eq!(status["exit"]["code"], 0, "{status}");
        let found = checkpoints(&status);
        for name in ["b", "c"] {
            let torn = (name.to_owned(), "torn".to_owned(), false, 0);
            assert!(found.contains(&torn), "{status}");
            assert_eq!(saving.files(&format!("bt://p@{id}/{name}")), None, "{status}");
        }
        let is_left = id == "left";
        assert!(found.contains(&saved("a", is_left, 1)), "{status}");
        assert_eq!(found.contains(&saved("d", true, 1)), is_left, "{status}");
        assert_eq!(saving.files(&format!("bt://p@{id}/a")), Some(Files::from([file("model", "a\n")])));
    }
}

#[test]
fn checkpoint_of_a_worker_that_was_killed_below_its_launcher_is_saved_and_not_the_latest() {
    let saving = SavingMachine::new();
    // As torchrun, which ends with 1 whatever has killed its worker.
    let command = "cd $BT_CHECKPOINT_DIR && mkdir a b && echo a > a/model && touch a/.metadata && sleep 4
        sh -c 'echo half > b/model; kill -KILL $$'; exit 1";
    let number = saving.submit("launcher", command);
    let status = saving.ended(&number);
    assert_eq!(checkpoints(&status), [saved("a", true, 1), saved("b", false, 1)], "{status}");
    let url = format!("file://{}", mirror(&saving.machine).display());
    let latest = saving.machine.run(&["checkpoint", "show", "bt://p", "--mirror", &url]).succeeds();
    assert!(latest.contains("bt://p@launcher/a"), "{latest}");
}

#[test]
fn stopped_job_whose_mirror_stays_away_names_the_directory() {
    let machine = Machine::new();
    let saving = SavingMachine { agent: start_with(&machine, "[volumes]\ngive_up = \"1s\""), machine };
    saving.take_mirror_away();
    for (code, state) in [(0, "TRAINING_JOB_FAILED"), (1, "TRAINING_JOB_STOPPED")] {
        let id = format!("away{code}");
        let command = format!(
            "trap 'exit {code}' TERM; cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && touch a/.metadata
            while :; do sleep 0.1; done"
        );
        let number = saving.submit(&id, &command);
        await_sealed(&saving, &number, "a", true);
        job(&saving.machine, &["stop", &number]).succeeds();
        let status = saving.ended(&number);
        assert_eq!((&status["state"], &status["exit"]["code"]), (&state.into(), &code.into()), "{status}");
        assert_eq!(status["exit_code"], if code == 0 { 125 } else { 1 }, "{status}");
        let directory = saving.volume(&id).join("checkpoints");
        let why = status["why"]["message"].as_str().unwrap();
        assert!(why.ends_with(&format!("they are kept in {}", text(&directory))), "{why}");
    }
}

#[test]
fn mirror_that_is_refused_for_now_is_no_fault_of_the_checkpoint() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && touch a/.metadata && {}",
        wait_for(&flags, "go")
    );
    let format = mirror(&saving.machine).join("format.json");
    fs::create_dir_all(mirror(&saving.machine)).unwrap();
    fs::write(&format, "{\"format\":\"bdnfs mirror\",\"version\":99}\n").unwrap();
    let number = saving.submit("refused", &command);
    eventually("it fails twice", || saving.status(&number)["saving"]["failures"].as_u64() > Some(1));
    fs::remove_file(&format).unwrap();
    fs::write(flags.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert_eq!(checkpoints(&status), [saved("a", true, 1)], "{status}");
}

#[test]
fn mirror_that_is_gone_is_not_made_anew_and_gets_what_is_saved_when_it_is_back() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let write = |step: u32| {
        format!(
            "mkdir $BT_CHECKPOINT_DIR/checkpoint-{step} && echo {step} > $BT_CHECKPOINT_DIR/checkpoint-{step}/x"
        )
    };
    let command = format!("{}; {}; {}", write(1), wait_for(&flags, "gone"), write(2));
    let number = saving.submit("unmounted", &command);
    saving.await_event(&number, "saved checkpoint-1");
    // As where its disk is unmounted: what is below the mount point is an empty directory.
    let (mirror, away) = (mirror(&saving.machine), mirror(&saving.machine).with_extension("away"));
    fs::rename(&mirror, &away).unwrap();
    fs::write(flags.join("gone"), "").unwrap();
    saving.await_event(&number, "cannot save checkpoint-");
    let reason = events(&saving.status(&number)).concat();
    assert!(reason.contains("is gone, which was there before"), "{reason}");
    assert!(!mirror.join("format.json").exists());
    let _ = fs::remove_dir_all(&mirror);
    fs::rename(&away, &mirror).unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert!(saving.files("bt://p@unmounted/checkpoint-2").is_some());
    saving.verify();
}

#[test]
fn checkpoint_that_was_complete_is_so_for_the_next_saver_and_after_a_failure() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && {} && mkdir b && echo b > b/model && {} && rm -r b && {}; exit 3",
        wait_for(&flags, "next"),
        wait_for(&flags, "remove"),
        wait_for(&flags, "go")
    );
    let number = saving.submit("latched", &command);
    saving.take_mirror_away();
    await_sealed(&saving, &number, "a", false);
    fs::write(flags.join("next"), "").unwrap();
    await_sealed(&saving, &number, "a", true);
    fs::write(flags.join("remove"), "").unwrap();
    eventually("b is gone", || {
        checkpoints(&saving.status(&number)).iter().all(|one| one.0 != "b" || one.1 == "skipped")
    });
    kill_and_wait(&saving.machine.savers());
    eventually("there is another one", || !saving.machine.savers().is_empty());
    fs::write(flags.join("go"), "").unwrap();
    eventually("it has failed", || saving.status(&number)["saving"]["failures"].as_u64() > Some(0));
    saving.bring_mirror_back();
    let status = saving.ended(&number);
    assert!(checkpoints(&status).contains(&saved("a", true, 1)), "{status}");
}

#[test]
fn checkpoint_that_is_deleted_in_part_before_it_is_saved_is_not_complete() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && echo b > a/optimizer && touch a/.metadata && {} && rm a/optimizer; exit 3",
        wait_for(&flags, "go")
    );
    let number = saving.submit("half", &command);
    saving.take_mirror_away();
    await_sealed(&saving, &number, "a", true);
    fs::write(flags.join("go"), "").unwrap();
    eventually("the rest is sealed", || {
        checkpoints(&saving.status(&number)) == [("a".to_owned(), "sealed".to_owned(), false, 0)]
    });
    saving.bring_mirror_back();
    let status = saving.ended(&number);
    assert_eq!(checkpoints(&status), [saved("a", false, 1)], "{status}");
}

#[test]
fn job_that_writes_only_temporary_names_fails_and_keeps_them() {
    let saving = SavingMachine::new();
    let number =
        saving.submit("hidden", "cd $BT_CHECKPOINT_DIR && mkdir -p .out empty && echo a > .out/model");
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    assert!(has_event(&status, "/mnt/ckpts/.out is not saved: it has a temporary name"), "{status}");
    assert!(saving.volume("hidden").join("checkpoints/.out/model").exists());
}

#[test]
fn checkpoint_that_is_always_written_is_reported_after_a_minute() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo model > a/model && exec 3>a/log && {}",
        wait_for(&flags, "go")
    );
    let number = saving.submit("log", &command);
    eventually("it is reported", || {
        has_event(&saving.status(&number), "a is not saved so far: for a minute")
    });
    eventually("it waits", || saving.status(&number)["saving"]["backlog"].as_u64() == Some(6));
    fs::write(flags.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(checkpoints(&status), [saved("a", true, 1)], "{status}");
}

#[test]
fn saved_checkpoint_of_which_a_newer_state_is_deleted_stays_saved() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo one > a/model && touch a/.metadata && {} && exec 3>a/log && echo two > a/model && {} && rm -r a",
        wait_for(&flags, "go"),
        wait_for(&flags, "remove")
    );
    let number = saving.submit("newer", &command);
    saving.await_event(&number, "saved a (generation 1");
    fs::write(flags.join("go"), "").unwrap();
    eventually("it is written", || checkpoints(&saving.status(&number)).iter().any(|one| one.1 == "writing"));
    fs::write(flags.join("remove"), "").unwrap();
    let status = saving.ended(&number);
    assert!(has_event(&status, "a was changed and deleted by the job; generation 1 stays saved"), "{status}");
    assert_eq!(checkpoints(&status).iter().map(|one| &*one.1).collect::<Vec<_>>(), ["saved"], "{status}");
}
