//! Checkpoints and training caches on a disk that fails to write them.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use bdnfs::tree_merge::MergeTree;
use bdnfs::volume::{FormerFiles, UnwrittenContent, VolumeDirectory, ignore_lease_signal};
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tools::{program, run};

use super::kit::{events, submitted, text};
use super::saved_caches::{cached, has_event};
use super::saving::{SavingMachine, mirror, start};

#[test]
fn checkpoint_that_a_disk_failed_to_write_is_not_saved_before_it_is_written_again() {
    assert_saved_when_written_again(3);
}

#[test]
fn checkpoint_of_many_files_that_a_disk_failed_to_write_is_not_saved_before_it_is_written_again() {
    // Many are made durable together.
    assert_saved_when_written_again(100);
}

/// Files by which a job and its test wait for each other.
struct Flags(PathBuf);

impl Flags {
    fn new(machine: &Machine) -> Self {
        Self(machine.directory("flags"))
    }

    /// The function `await` of a shell: it waits until the flag that it names is set.
    fn shell_function(&self) -> String {
        format!("await() {{ touch {0}/$1-awaited; until [ -e {0}/$1 ]; do sleep 0.1; done; }}", text(&self.0))
    }

    /// Waits until the job awaits the flag `name`.
    fn until_awaited(&self, name: &str) {
        eventually(&format!("the job awaits {name}"), || self.0.join(format!("{name}-awaited")).exists());
    }

    fn set(&self, name: &str) {
        fs::write(self.0.join(name), "").unwrap();
    }
}

/// A job that writes the checkpoint `one` on a disk that is full at that time.
struct FailingDisk {
    saving: SavingMachine,
    flags: Flags,
    number: String,
    disk: LoopDisk,
}

impl FailingDisk {
    /// A job that calls `write`, which is `writing` in a shell, while the disk is full, and does what is `then` to be done. `None` where
    /// there are no such disks.
    fn with_job(writing: &str, then: &str) -> Option<Self> {
        let disk = LoopDisk::thin(64 << 20)?;
        let machine = Machine::new().env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
        let saving = SavingMachine { agent: start(&machine), machine };
        let flags = Flags::new(&saving.machine);
        // Its directory is on the disk, and has a writer.
        let number = saving.submit(
            "job",
            &format!(
                "cd $BT_CHECKPOINT_DIR && mkdir one two && for number in $(seq 100); do : > one/model-$number; done
                 {}
                 write() {{ {writing}; }}
                 exec 3>> one/model-1; sync; await full; write; {then}",
                flags.shell_function()
            ),
        );
        let failing = Self { saving, flags, number, disk };
        failing.flags.until_awaited("full");
        failing.disk.fill_store();
        failing.flags.set("full");
        Some(failing)
    }

    fn event_texts(&self) -> Vec<String> {
        events(&self.saving.status(&self.number)).into_iter().map(|event| event.to_string()).collect()
    }

    fn has_event_text(&self, begin: &str) -> bool {
        self.event_texts().iter().any(|event| event.starts_with(begin))
    }

    /// Waits until the saver has met the fault and has told it, and gives the disk its blocks again.
    fn await_refusal(&self) {
        let log = self.disk.path().join("volumes/default/jobs/job/saver.log");
        let is_logged = || fs::read_to_string(&log).unwrap_or_default().contains("cannot make ");
        eventually("the saver meets the fault", is_logged);
        self.disk.empty_store();
        eventually("it is told", || {
            self.has_event_text("\"one\" cannot be saved: the disk failed to write one/model-")
        });
    }
}

/// Asserts that a checkpoint of so many files is not saved as memory still has it where the disk failed to write it, whoever looks, but
/// when it is written again.
fn assert_saved_when_written_again(count: usize) {
    let writing = format!(
        "rm -f $(seq -f one/model-%.0f {} 101); \
         for number in $(seq {count}); do head -c 10000 /dev/urandom > one/model-$number; done; : > one/.metadata",
        count + 1
    );
    let then = "exec 3>&-; await empty; echo two > two/model; await again; write; await end";
    let Some(failing) = FailingDisk::with_job(&writing, then) else { return };
    failing.await_refusal();
    let FailingDisk { saving, number, .. } = &failing;
    // The next saver knows it, too.
    saving.machine.kill_savers();
    failing.flags.set("empty");
    saving.await_event(number, "saved two (generation 1");
    assert!(!failing.has_event_text("saved one"), "{:?}", failing.event_texts());
    assert_eq!(saving.files("bt://p@job/one"), None);
    failing.flags.set("again");
    saving.await_event(number, "saved one (generation 1, complete)");
    assert_eq!(saving.files("bt://p@job/one").map(|files| files.len()), Some(count + 1));
    saving.machine.run(&["job", "stop", number]).succeeds();
    saving.ended(number);
}

#[test]
fn job_that_ends_with_a_checkpoint_that_the_disk_failed_to_write_fails_and_keeps_it() {
    // The first file is uploaded while others are still to be written, again and again.
    let writing = "head -c 17000000 /dev/urandom > one/model-2; \
                   for second in $(seq 6); do sleep 1; date > one/model-3; done; : > one/.metadata";
    let Some(failing) = FailingDisk::with_job(writing, "exec 3>&-; await empty") else { return };
    failing.await_refusal();
    let FailingDisk { saving, number, .. } = &failing;
    failing.flags.set("empty");
    let status = saving.ended(number);
    assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{status}");
    let refused =
        failing.event_texts().iter().filter(|event| event.contains("the disk failed to write")).count();
    assert!(refused <= 5, "{:?}", failing.event_texts());
    let why = "not all checkpoints could be saved: the disk failed to write one/model-";
    assert!(failing.has_event_text(why), "{:?}", failing.event_texts());
    assert!(
        failing.has_event_text("one has content that the disk failed to write: it is kept in"),
        "{:?}",
        failing.event_texts()
    );
    assert!(failing.disk.path().join("volumes/default/jobs/job/checkpoints/one/model-2").exists());
    assert_eq!(saving.files("bt://p@job/one"), None);
}

/// Writes all that is in memory to the disks, which tells nobody of what fails.
fn write_back() {
    run(&mut program("sync"));
}

#[test]
fn quiet_tree_is_without_what_the_disk_failed_to_write_until_it_is_written_again() {
    let Some(disk) = LoopDisk::thin(16 << 20) else { return };
    ignore_lease_signal();
    let home = disk.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("whole"), "whole").unwrap();
    fs::write(home.join("lost"), "").unwrap();
    write_back();
    disk.fill_store();
    fs::write(home.join("lost"), vec![1; 1 << 20]).unwrap();
    write_back();
    disk.empty_store();
    let directory = Arc::new(VolumeDirectory::open(&home).unwrap());
    let mut unwritten = UnwrittenContent::default();
    let mut left_out = || {
        let scan = directory.walk().unwrap();
        let (tree, former) = (scan.tree(0), MergeTree::new());
        let former = (&former, FormerFiles::new());
        let quiet = scan.into_quiet_tree(&directory, &tree, former, None, &mut unwritten).unwrap();
        assert!(quiet.left_out.busy.is_empty());
        assert_eq!(quiet.left_out.since.is_some(), !quiet.left_out.unwritten.is_empty());
        assert_eq!(quiet.unit.seal.files.len() + quiet.left_out.unwritten.len(), 2);
        quiet.left_out.unwritten
    };
    assert_eq!(left_out(), [b"lost"]);
    assert_eq!(left_out(), [b"lost"], "the kernel tells it once");
    fs::write(home.join("lost"), "found").unwrap();
    assert!(left_out().is_empty());
}

#[test]
fn training_cache_is_saved_without_what_the_disk_failed_to_write() {
    let Some(disk) = LoopDisk::thin(64 << 20) else { return };
    let machine = Machine::new().env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"));
    let saving = SavingMachine { agent: start(&machine), machine };
    let flags = Flags::new(&saving.machine);
    let run = |command: &str| {
        let command = format!("{}\ncd $BT_PROJECT_CACHE_DIR && {command}", flags.shell_function());
        submitted(&saving.machine, &["--project", "p", text(&cached(&saving.machine, &command))])
    };
    let number = run(
        "echo whole > whole && : > lost && sync && await full && head -c 1000000 /dev/urandom > lost && sync && await end",
    );
    flags.until_awaited("full");
    disk.fill_store();
    flags.set("full");
    flags.until_awaited("end");
    disk.empty_store();
    flags.set("end");
    let status = saving.ended(&number);
    assert!(has_event(&status, "saved the cache of the project p: 1 file"), "{status}");
    let without = "what the disk failed to write of the cache of the project p is not saved: lost";
    assert!(has_event(&status, without), "{status}");
    // The kernel tells it once; the next job, and its node, know it.
    let number = run("[ -e whole ] && echo more > more");
    let status = saving.ended(&number);
    assert!(has_event(&status, without), "{status}");
    let url = format!("file://{}", mirror(&saving.machine).display());
    let save = ["project", "save", "p", "--json", "--mirror", &url];
    let saved = saving.machine.run(&save).succeeds();
    assert!(saved.contains(r#""unwritten":["lost"]"#), "{saved}");
    let number = run("echo again > lost");
    let status = saving.ended(&number);
    assert!(has_event(&status, "saved the cache of the project p: 3 files"), "{status}");
    assert!(!has_event(&status, without), "{status}");
}
