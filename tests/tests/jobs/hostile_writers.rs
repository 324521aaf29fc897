//! Jobs whose checkpoints are hard to save: no file of others and no torn file is ever published.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use super::kit::{events, sha256, text};
use super::saving::{Files, SavingMachine, checkpoints, file, mirror, saved, start_with};
use bdnfs_tests::machine::Machine;

#[test]
fn hostile_tree_is_saved_without_what_is_not_the_jobs() {
    let saving = SavingMachine::new();
    let outside = saving.machine.directory("outside");
    fs::write(outside.join("secret"), "secret").unwrap();
    fs::write(outside.join("model"), "secret too").unwrap();
    symlink(outside.join("secret"), outside.join("link")).unwrap();
    // A directory and a link to another one change places all the time, below a checkpoint that is saved meanwhile.
    let script = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir many a && (cd many && seq 1000 | xargs touch) && mkfifo a/fifo && ln -s {0} a/out && \
         ln -s {0}/secret a/file && ln {0}/secret a/hard; mkdir a/real && echo mine > a/real/model && touch a/.metadata many/.metadata && \
         python3 -c \"
import os, socket, time
socket.socket(socket.AF_UNIX).bind('a/socket')
end = time.time() + 6
while time.time() < end:
    os.rename('a/real', 'a/.real')
    os.symlink('{0}', 'a/real')
    os.unlink('a/real')
    os.rename('a/.real', 'a/real')
\"; mkdir -p \"$(printf 'bad\\377')\" && echo x > \"$(printf 'bad\\377')\"/model",
        text(&outside)
    );
    let number = saving.submit("hostile", &script);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "not all that it wrote can be saved: {status}");
    let kept = saving.volume("hostile").join("checkpoints").join(OsStr::from_bytes(b"bad\xff")).join("model");
    assert_eq!(fs::read_to_string(kept).unwrap(), "x\n");
    let saved = saving.files("bt://p@hostile/a").unwrap();
    assert!(saved.contains(&file("real/model", "mine\n")), "{saved:?}");
    let secrets = ["secret", "secret too"].map(|secret| sha256(secret.as_bytes()));
    // The one hard link is to a file of its own user, which root may link.
    let others = saved.iter().filter(|(path, hash)| path != "hard" && secrets.contains(hash));
    assert_eq!(others.count(), 0, "{saved:?}");
    assert_eq!(saving.files("bt://p@hostile/many").unwrap().len(), 1_001);
    let told = events(&status);
    for (path, why) in
        [("a/fifo", "it is a fifo"), ("a/socket", "it is a socket"), ("bad\\xff", "its name is not UTF-8")]
    {
        let text = format!("/mnt/ckpts/{path} is not saved: {why}");
        assert!(told.contains(&text), "{path}: {told:?}");
    }
    saving.verify();
}

#[test]
fn rotation_faster_than_the_upload_saves_the_newest_and_reports_what_it_skipped() {
    let machine = Machine::new();
    let saving = SavingMachine { agent: start_with(&machine, "[volumes]\nupload_rate = \"1MB\""), machine };
    // Six of 8 MB, of which it keeps one: an upload takes as long as two of them.
    let script = "cd $BT_CHECKPOINT_DIR && for n in 1 2 3 4 5 6; do mkdir checkpoint-$n && \
         head -c 8000000 /dev/urandom > checkpoint-$n/model && touch checkpoint-$n/.metadata && sha256sum checkpoint-$n/model && sleep 4; \
         rm -rf checkpoint-$((n - 1)); done";
    let number = saving.submit("fast", script);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    let all = checkpoints(&status);
    let of =
        |state: &str| all.iter().filter(|one| one.1 == state).map(|one| one.0.clone()).collect::<Vec<_>>();
    assert_eq!(of("saved").len() + of("skipped").len(), all.len(), "{status}");
    assert!(of("saved").contains(&"checkpoint-6".to_owned()), "{status}");
    let log = super::kit::job(&saving.machine, &["logs", &number]).succeeds();
    for name in of("saved") {
        let path = format!("{name}/model");
        let line = log.lines().find(|line| line.ends_with(&path)).unwrap();
        let model = ("model".to_owned(), line.split(' ').next().unwrap().to_owned());
        assert_eq!(
            saving.files(&format!("bt://p@fast/{name}")),
            Some(Files::from([model, file(".metadata", "")]))
        );
    }
    for name in of("skipped") {
        let text = format!("{name} was deleted by the job before it was saved");
        assert!(events(&status).contains(&text), "{name}");
        assert!(!mirror(&saving.machine).join("tenants/default/checkpoints/p/fast").join(&name).exists());
    }
    saving.verify();
}

#[test]
fn job_that_deletes_many_checkpoints_before_they_are_saved_has_few_events() {
    let saving = SavingMachine::new();
    // Each hundred is there for a scan, and not long enough for a seal.
    let script = "cd $BT_CHECKPOINT_DIR && for round in 1 2 3; do
        for n in $(seq ${round}00 ${round}99); do mkdir $n && echo x > $n/model; done; sleep 1.7; rm -r *; done";
    let number = saving.submit("churn", script);
    let status = saving.ended(&number);
    let told = events(&status);
    let deleted = told.iter().filter(|event| event.contains(" was deleted by the job before it was saved"));
    assert_eq!(deleted.count(), 100, "{told:?}");
    assert!(told.iter().any(|event| event.ends_with("; more events of that kind are left out for an hour")));
}

#[test]
fn checkpoint_deleted_file_by_file_stays_saved_as_it_was() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    // Each part of it is quiet, and the next one begins meanwhile.
    let number = saving.submit(
        "slow",
        &format!(
            "cd $BT_CHECKPOINT_DIR && mkdir one && for f in a b .metadata; do echo $f > one/$f; done
             while [ ! -e {}/go ]; do sleep 0.1; done
             rm one/a; sleep 4; mkdir two; echo two > two/model; rm one/b; sleep 4",
            text(&flag)
        ),
    );
    saving.await_event(&number, "saved one (generation 1, complete)");
    fs::write(flag.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert_eq!(checkpoints(&status), [saved("one", true, 1), saved("two", true, 1)], "{status}");
    let whole = Files::from([file("a", "a\n"), file("b", "b\n"), file(".metadata", ".metadata\n")]);
    assert_eq!(saving.files("bt://p@slow/one"), Some(whole));
    saving.verify();
}

#[test]
fn checkpoint_that_cannot_be_sealed_delays_no_other() {
    let machine = Machine::new();
    let saving = SavingMachine { agent: start_with(&machine, "[volumes]\ngive_up = \"60s\""), machine };
    let flag = saving.machine.directory("flag");
    // A file that nobody else can open as long as its job has a lease of it.
    let script = format!(
        "cd $BT_CHECKPOINT_DIR && python3 -c \"
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
os.mkdir('leased')
open('leased/model', 'w').close()
file = os.open('leased/model', os.O_RDONLY)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
time.sleep(4)
os.mkdir('good')
for name in ('model', '.metadata'):
    open('good/' + name, 'w').close()
while not os.path.exists('{}/go'):
    time.sleep(0.1)
\"",
        text(&flag)
    );
    let number = saving.submit("leased", &script);
    saving.await_event(&number, "saved good (generation 1, complete)");
    let status = saving.status(&number);
    let told = events(&status);
    assert!(told.iter().any(|event| event.starts_with("cannot save leased, and tries again: ")), "{told:?}");
    assert!(checkpoints(&status).iter().any(|one| one.0 == "leased" && one.1 == "writing"), "{status}");
    fs::write(flag.join("go"), "").unwrap();
    assert_eq!(saving.ended(&number)["state"], "TRAINING_JOB_COMPLETED");
}

#[test]
fn checkpoint_with_a_path_that_is_too_long_is_saved_without_it_and_its_job_fails() {
    let saving = SavingMachine::new();
    let script = "cd $BT_CHECKPOINT_DIR && python3 -c \"
import os
os.mkdir('deep')
os.chdir('deep')
open('model', 'w').close()
for _ in range(16):
    os.mkdir('d' * 250)
    os.chdir('d' * 250)
open('f' * 200, 'w').close()
\"";
    let number = saving.submit("deep", script);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    assert_eq!(saving.files("bt://p@deep/deep"), Some(Files::from([file("model", "")])), "{status}");
    let told = events(&status);
    let is_named = |event: &String| {
        event.starts_with("/mnt/ckpts/deep/ddd") && event.ends_with("fff is not saved: its path is too long")
    };
    assert!(told.iter().any(is_named), "{told:?}");
    assert!(saving.volume("deep").join("checkpoints/deep").exists(), "kept");
}
