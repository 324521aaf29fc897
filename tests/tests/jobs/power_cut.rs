//! A job's checkpoints after a power cut of the node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, kill_and_wait, processes_with_bind};
use bdnfs_tests::tree::{Rng, regular_files, write_file};

use super::killed_savers::{Witness, restless_writer};
use super::kit::{campaign_rounds, events, job, submitted, text};
use super::saved_caches::cached;
use super::saving::{Files, SavingMachine, checkpoints, file, mirror, start};

/// How often the power is cut at night.
const NIGHTLY_CUTS: usize = 50;
/// The longest time until then, in milliseconds: some checkpoints are saved, and others sealed.
const PAUSE_MILLISECONDS: u64 = 12_000;
/// What records name as the boot of before the cut.
const EARLIER_BOOT: &str = "another";

/// A node whose cache and volumes lie on a disk of which the power is cut. The mirror does not.
struct PowerCutNode {
    // Before the disk: what runs there ends first.
    saving: SavingMachine,
    disk: LoopDisk,
}

impl PowerCutNode {
    /// `None` where there are no such disks.
    fn new(size: u64) -> Option<Self> {
        let disk = LoopDisk::new(size)?;
        fs::write(disk.path().join("mark"), "").unwrap();
        let machine = Machine::new()
            .with_cache(&disk.path().join("cache"))
            .env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
        let saving = SavingMachine { agent: start(&machine), machine };
        rustix::fs::sync();
        Some(Self { saving, disk })
    }

    /// The volume of the job `id`.
    fn volume(&self, id: &str) -> PathBuf {
        self.disk.path().join("volumes/default/jobs").join(id)
    }

    /// Cuts the power, and leaves the disk as the next boot finds it.
    fn cut(&self) {
        let device = fs::metadata(self.disk.path()).unwrap().dev();
        self.disk.cut();
        kill_and_wait(&self.saving.machine.supervisors());
        // The agent, which ends the commands otherwise, is gone before it is told.
        kill_and_wait(&processes_with_bind(device, "/volumes/"));
        self.saving.machine.reset();
        // The kernel lets the job's namespace go a moment after its processes, and the disk with it.
        eventually("the disk is read again", || {
            self.disk.restore();
            fs::read_to_string(self.disk.path().join("mark")).is_ok()
        });
        // What the machine's next boot would be told by.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        for directory in ["volumes", "cache/jobs"].map(|name| self.disk.path().join(name)) {
            for (path, _) in regular_files(&directory) {
                let path = directory.join(path);
                let is_record = path.extension().is_some_and(|kind| kind == "json");
                let record = if is_record { fs::read_to_string(&path).unwrap() } else { String::new() };
                if record.contains(boot.trim()) {
                    fs::write(path, record.replace(boot.trim(), EARLIER_BOOT)).unwrap();
                }
            }
        }
    }

    fn boot(&mut self) {
        self.saving.agent = start(&self.saving.machine);
    }
}

#[test]
fn checkpoints_after_power_cut_are_saved_as_sealed_or_listed_torn() {
    let Some(mut node) = PowerCutNode::new(1 << 30) else { return };
    let saving = &node.saving;
    // One of them is saved before, and the mirror is away then.
    let flag = saving.machine.directory("flag");
    let number = saving.submit(
        "cut",
        &format!(
            "cd $BT_CHECKPOINT_DIR && write() {{ mkdir -p $1 && echo $1 $2 > $1/model && touch $1/.metadata; }}
             write whole one; while [ ! -e {0}/away ]; do sleep 0.1; done; write whole two; write kept; write torn; write gone
             while [ ! -e {0}/go ]; do sleep 0.1; done
             rm -r gone; echo changed > torn/model; echo changed > whole/model; mkdir empty late; echo late > late/model; sync; sleep 1000",
            text(&flag)
        ),
    );
    saving.await_event(&number, "saved whole (generation 1, complete)");
    saving.take_mirror_away();
    fs::write(flag.join("away"), "").unwrap();
    eventually("all are sealed", || {
        let all = checkpoints(&saving.status(&number));
        all.len() == 4 && all.iter().all(|(_, state, ..)| state == "sealed")
    });
    let volume = node.volume("cut");
    // No scan finds what comes before the cut.
    let frozen: Vec<_> = saving.machine.savers().into_iter().map(FrozenProcess::new).collect();
    assert!(!frozen.is_empty());
    fs::write(flag.join("go"), "").unwrap();
    eventually("it is on the disk", || volume.join("checkpoints/late/model").exists());
    rustix::fs::sync();
    node.cut();
    drop(frozen);
    let record = fs::read_to_string(volume.join("saver.json")).unwrap();
    assert!(record.contains(EARLIER_BOOT));
    node.saving.bring_mirror_back();
    node.boot();
    let saving = &node.saving;
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    assert_eq!(
        saving.files("bt://p@cut/kept"),
        Some(Files::from([file("model", "kept\n"), file(".metadata", "")]))
    );
    let before = Files::from([file("model", "whole one\n"), file(".metadata", "")]);
    assert_eq!(saving.files("bt://p@cut/whole"), Some(before), "not replaced by a part");
    let torn = saving.files("bt://p@cut/torn");
    assert!(torn.is_none_or(|files| files == Files::from([file(".metadata", "")])), "only what was sealed");
    assert!(saving.files("bt://p@cut/late").is_none(), "never sealed");
    assert!(checkpoints(&status).iter().all(|(_, state, ..)| state != "writing"), "{status}");
    let reported = events(&status);
    assert!(
        reported.iter().any(|event| event.starts_with("torn is torn by a power cut, kept in ")),
        "{reported:?}"
    );
    assert!(
        reported.iter().any(|event| event == "gone was deleted by the job before it was saved"),
        "{reported:?}"
    );
    assert!(
        checkpoints(&status).iter().any(|(name, state, ..)| name == "gone" && state == "skipped"),
        "{status}"
    );
    assert_eq!(fs::read_to_string(volume.join("checkpoints/torn/model")).unwrap(), "changed\n", "kept");
    saving.verify();
}

#[test]
fn training_cache_that_began_just_before_a_power_cut_begins_again_with_what_is_saved() {
    let Some(mut node) = PowerCutNode::new(1 << 30) else { return };
    let (writer, mirror) = (Machine::new(), mirror(&node.saving.machine));
    let model = writer.directory("model");
    for number in 0..500 {
        write_file(&model, format!("d{}/{number}", number % 7), 1 + number * 9);
    }
    let run = |command: &str| {
        let file = cached(&writer, command);
        let (cache, mirror) = (text(writer.cache()), text(&mirror));
        job(&writer, &["run", "--project", "p", "--cache-dir", cache, "--mirror", mirror, text(&file)])
            .succeeds()
    };
    run(&format!("cp -R {}/. $BT_PROJECT_CACHE_DIR", text(&model)));

    let flag = node.saving.machine.directory("flag");
    let saving = &node.saving;
    let command = format!("echo job > $BT_PROJECT_CACHE_DIR/own; touch {}/runs; sleep 1000", text(&flag));
    let file = cached(&saving.machine, &command);
    submitted(&saving.machine, &["--project", "p", text(&file)]);
    eventually("it runs", || flag.join("runs").exists());
    node.cut();
    let tree = node.disk.path().join("volumes/default/caches/project/p/tree");
    let lost = regular_files(&tree).into_iter().filter(|(_, stat)| stat.len() == 0).count();
    assert!(lost > 400, "the disk had got what a begin does not wait for: {lost}");

    node.boot();
    let saving = &node.saving;
    let compare = format!("diff -r -x own {} $BT_PROJECT_CACHE_DIR", text(&model));
    let number = submitted(&saving.machine, &["--project", "p", text(&cached(&saving.machine, &compare))]);
    let status = saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    saving.machine.run(&["project", "save", "p", "--mirror", text(&mirror)]).succeeds();
    run(&compare);
    saving.verify();
}

#[test]
#[ignore = "takes minutes; for a change of seals: CAMPAIGN_ROUNDS=50 cargo nextest run --test jobs --run-ignored all power_cut"]
fn node_whose_power_is_cut_many_times_saves_only_whole_files() {
    let Some(mut node) = PowerCutNode::new(8 << 30) else { return };
    let logs = node.saving.machine.directory("log");
    let (stop, path) = (logs.join("stop"), logs.join("restless.py"));
    let mut rng = Rng(23);
    let mut seen = 0;
    for round in 0..campaign_rounds(NIGHTLY_CUTS) {
        let id = format!("cut{round}");
        let log = logs.join(&id);
        fs::write(&path, restless_writer(&log, &stop)).unwrap();
        let number = node.saving.submit(&id, &format!("exec python3 {}", text(&path)));
        let mut witness = Witness { log, mirror: mirror(&node.saving.machine), id, seen: BTreeSet::new() };
        eventually("it runs", || !node.saving.machine.supervisors().is_empty());
        sleep(Duration::from_millis(rng.below(PAUSE_MILLISECONDS)));
        node.cut();
        node.boot();
        let status = node.saving.ended(&number);
        assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
        witness.check_saved();
        for (name, state, ..) in checkpoints(&status) {
            let is_final = ["saved", "skipped", "torn"].contains(&&*state);
            assert!(is_final, "{name} is {state}: {status}");
        }
        seen += witness.seen.len();
    }
    assert!(seen > 0);
    // The agent goes on.
    let log = logs.join("last");
    fs::write(&path, restless_writer(&log, &stop)).unwrap();
    let number = node.saving.submit("last", &format!("exec python3 {}", text(&path)));
    eventually("it has written", || fs::read_to_string(&log).is_ok_and(|log| log.lines().count() > 4));
    fs::write(&stop, "").unwrap();
    let status = node.saving.ended(&number);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    node.saving.verify();
}
