//! Jobs that save while their saver, the agent or they themselves are killed at random moments: what is in the mirror is whole.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bdnfs_tests::process::{eventually, kill_and_wait};
use bdnfs_tests::tree::Rng;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use super::kit::{campaign_rounds, text};
use super::saving::{
    Files, SavingMachine, checkpoints, file, mirror, saved, saved_files, saved_names, start,
};

/// How many things are killed in all runs of the suite, and how many at night.
const ROUNDS: usize = 4;
const NIGHTLY_ROUNDS: usize = 40;
/// The longest pause between two of them, in milliseconds: what a checkpoint needs to settle and to be saved, twice.
const PAUSE_MILLISECONDS: u64 = 6000;

/// The longest time until a first checkpoint is saved.
const SAVE_TIMEOUT: Duration = Duration::from_secs(100);

/// A job that writes checkpoints in each way that libraries have, over and over, and logs the hash of every state that it closes
/// before it writes it: rewritten in place, mapped, renamed when it is whole, and the oldest deleted.
pub fn restless_writer(log: &Path, stop: &Path) -> String {
    format!(
        "import hashlib, mmap, os, random, shutil, time
os.chdir(os.environ['BT_CHECKPOINT_DIR'])
log = open('{}', 'a')
def state(size):
    data = os.urandom(size)
    log.write(hashlib.sha256(data).hexdigest() + '\\n')
    log.flush()
    return data
def put(path, size):
    data = state(size)
    with open(path, 'wb') as out:
        for at in range(0, size, 65536):
            out.write(data[at:at + 65536])
            time.sleep(0.01)
def put_mapped(path, size):
    data = state(size)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, size)
    out = mmap.mmap(fd, size)
    os.close(fd)
    for at in range(0, size, 65536):
        out[at:at + 65536] = data[at:at + 65536]
        time.sleep(0.05)
    out.close()
for name in ('in-place', 'mapped'):
    os.mkdir(name)
step = 0
while not os.path.exists('{}'):
    step += 1
    put('in-place/latest.pt', 300000)
    put_mapped('mapped/file', 655360)
    os.mkdir('tmp-checkpoint-%d' % step)
    put('tmp-checkpoint-%d/model' % step, 700000)
    put('tmp-checkpoint-%d/config' % step, 100)
    os.rename('tmp-checkpoint-%d' % step, 'checkpoint-%d' % step)
    if step > 3:
        shutil.rmtree('checkpoint-%d' % (step - 3))
    time.sleep(random.uniform(0.5, 4))
",
        text(log),
        text(stop)
    )
}

/// The checkpoints in the mirror of a job that logs what it writes.
pub struct Witness {
    pub log: PathBuf,
    pub mirror: PathBuf,
    pub id: String,
    pub seen: BTreeSet<String>,
}

impl Witness {
    /// Makes sure that each file of all that is saved now is one that the job closed.
    pub fn check_saved(&mut self) {
        let mut saved = Vec::new();
        for name in saved_names(&self.mirror, &self.id) {
            let source = format!("bt://p@{}/{name}", self.id);
            let files = saved_files(&self.mirror, &source).unwrap_or_default();
            saved.extend(files.into_iter().map(|(path, hash)| (format!("{name}/{path}"), hash)));
        }
        // Afterwards: what was written while the mirror was read is logged by now.
        let hashes = fs::read_to_string(&self.log).unwrap_or_default();
        let hashes: BTreeSet<_> = hashes.lines().collect();
        for (path, hash) in saved {
            assert!(hashes.contains(&*hash), "{path} is torn");
            self.seen.insert(hash);
        }
    }
}

fn killed(rounds: usize) {
    let mut saving = SavingMachine::new();
    let logs = saving.machine.directory("log");
    let (log, stop) = (logs.join("hashes"), logs.join("stop"));
    let path = saving.machine.directory("specs").join("restless.py");
    fs::write(&path, restless_writer(&log, &stop)).unwrap();
    let mut rng = Rng(19);
    let number = saving.submit("restless", &format!("exec python3 {}", text(&path)));
    let mut witness =
        Witness { log, mirror: mirror(&saving.machine), id: "restless".into(), seen: BTreeSet::new() };
    for round in 0..rounds {
        eventually("there is a saver", || !saving.machine.savers().is_empty());
        sleep(Duration::from_millis(rng.below(PAUSE_MILLISECONDS)));
        let is_agent = round % 2 == 1;
        if !is_agent || rng.below(2) == 0 {
            saving.machine.kill_savers();
        }
        if is_agent {
            saving.machine.crash();
            saving.agent = start(&saving.machine);
        }
        witness.check_saved();
        saving.verify_if_begun();
    }
    fs::write(&stop, "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    witness.check_saved();
    assert!(witness.seen.len() >= 3, "{status}");
    for (name, state, complete, _) in checkpoints(&status) {
        assert!(state == "skipped" || (state == "saved" && complete), "{name} is {state}: {status}");
    }
    for name in ["in-place", "mapped"] {
        assert!(checkpoints(&status).iter().any(|one| one.0 == name), "{status}");
    }
    saving.verify();
}

#[test]
fn saver_and_agent_killed_at_any_moment_save_only_whole_files() {
    killed(ROUNDS);
}

#[test]
#[ignore = "takes minutes; for a change of savers: CAMPAIGN_ROUNDS=200 cargo nextest run --test jobs --run-ignored all many_times"]
fn saver_and_agent_killed_many_times_save_only_whole_files() {
    killed(campaign_rounds(NIGHTLY_ROUNDS));
}

#[test]
fn job_killed_while_it_writes_saves_only_whole_files() {
    let saving = SavingMachine::new();
    let mut rng = Rng(20);
    for id in ["first", "second"] {
        let logs = saving.machine.directory(id);
        let log = logs.join("hashes");
        let path = saving.machine.directory("specs").join("restless.py");
        fs::write(&path, restless_writer(&log, &logs.join("stop"))).unwrap();
        let number = saving.submit(id, &format!("exec python3 {}", text(&path)));
        let begin = Instant::now();
        eventually("one is saved", || {
            let status = saving.status(&number);
            assert!(status["ended"].is_null() && begin.elapsed() < SAVE_TIMEOUT, "{status:#}");
            status["saving"]["saved"].as_u64() > Some(0)
        });
        sleep(Duration::from_millis(rng.below(3000)));
        kill_and_wait(&saving.machine.supervisors());
        let status = saving.ended(&number);
        assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
        let mut witness =
            Witness { log, mirror: mirror(&saving.machine), id: id.into(), seen: BTreeSet::new() };
        witness.check_saved();
        assert!(!witness.seen.is_empty());
    }
    saving.verify();
}

#[test]
fn saver_that_finished_while_the_job_runs_is_started_again() {
    let saving = SavingMachine::new();
    let flag = saving.machine.directory("flag");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && touch a/.metadata
         while [ ! -e {}/go ]; do sleep 0.1; done; mkdir b && echo b > b/model",
        text(&flag)
    );
    let number = saving.submit("early", &command);
    saving.await_event(&number, "saved a ");
    let savers = saving.machine.savers();
    savers.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    let path = saving.volume("early").join("saver.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["report"]["finished"] = json!(true);
    fs::write(&path, record.to_string()).unwrap();
    kill_and_wait(&savers);
    eventually("there is another one", || !saving.machine.savers().is_empty());
    fs::write(flag.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    assert!(saving.files("bt://p@early/b").is_some(), "{status}");
}

#[test]
fn checkpoint_whose_save_was_not_written_down_is_not_replaced_by_its_rest() {
    let saving = SavingMachine::new();
    let flags = saving.machine.directory("flags");
    let command = format!(
        "cd $BT_CHECKPOINT_DIR && mkdir a && echo a > a/model && echo b > a/optimizer && touch a/.metadata
         while [ ! -e {0}/prune ]; do sleep 0.1; done; rm a/optimizer
         while [ ! -e {0}/go ]; do sleep 0.1; done; exit 3",
        text(&flags)
    );
    let number = saving.submit("unwritten", &command);
    saving.take_mirror_away();
    let sealed = ("a".to_owned(), "sealed".to_owned(), true, 0);
    eventually("it is sealed", || checkpoints(&saving.status(&number)).contains(&sealed));
    let record = saving.volume("unwritten").join("saver.json");
    let before = fs::read(&record).unwrap();
    saving.bring_mirror_back();
    saving.await_event(&number, "saved a ");
    // As where the disk was full when it was saved, or the saver was killed in that moment.
    let savers = saving.machine.savers();
    savers.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    fs::write(&record, before).unwrap();
    fs::write(flags.join("prune"), "").unwrap();
    let pruned = saving.volume("unwritten").join("checkpoints/a/optimizer");
    eventually("its job deletes a part", || !pruned.exists());
    kill_and_wait(&savers);
    eventually("there is another one", || !saving.machine.savers().is_empty());
    fs::write(flags.join("go"), "").unwrap();
    let status = saving.ended(&number);
    assert_eq!(checkpoints(&status), [saved("a", true, 1)], "{status}");
    let whole = Files::from([file("model", "a\n"), file("optimizer", "b\n"), file(".metadata", "")]);
    assert_eq!(saving.files("bt://p@unwritten/a"), Some(whole), "{status}");
}
