//! Libraries that write checkpoints, in jobs of which something is killed at random moments: the mirror has only what the library
//! closed, and it resumes from that. They are installed by nightly only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::process::{eventually, eventually_within, kill_and_wait};
use bdnfs_tests::tools::writers_python_path;
use bdnfs_tests::tree::Rng;
use serde_json::Value;

use super::kit::{campaign_rounds, events, job, spec, submitted, text, toml};
use super::saving::{Files, SavingMachine, checkpoints, mirror, saved_checkpoint, saved_names, start};

/// How many things are killed in a campaign at night.
const NIGHTLY_ROUNDS: usize = 40;
/// The longest pause between two of them, in milliseconds: the start of a library, and what a checkpoint needs to settle.
const PAUSE_MILLISECONDS: u64 = 15_000;

/// How long the first checkpoint of a job may take: its saver has the lowest priority, and the other writers take all processors.
const SAVED_TIMEOUT: Duration = Duration::from_secs(600);

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum WriterKill {
    Saver,
    Agent,
    Job,
    All,
}

/// What a writer has logged: the hashes of files that it closed, and all files of checkpoints that its library called saved.
#[derive(Default)]
struct ClosedStates {
    files: BTreeSet<String>,
    units: BTreeSet<(String, Files)>,
}

impl ClosedStates {
    fn read(log: &Path) -> Self {
        let mut states = Self::default();
        for line in fs::read_to_string(log).unwrap_or_default().lines() {
            // The writer may have been killed meanwhile.
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            let string = |value: &Value| value.as_str().unwrap().to_owned();
            if let Some(unit) = line["unit"].as_str() {
                let files = line["files"].as_object().unwrap().iter();
                let files: Files = files.map(|(path, hash)| (path.clone(), string(hash))).collect();
                states.files.extend(files.iter().map(|(_, hash)| hash.clone()));
                states.units.insert((unit.to_owned(), files));
            } else {
                states.files.insert(string(&line["closed"]));
            }
        }
        states
    }
}

/// A library that writes checkpoints, in one job after the other, each of which resumes from what the one before has saved.
struct WriterCampaign {
    saving: SavingMachine,
    python: PathBuf,
    script: PathBuf,
    directory: PathBuf,
    rng: Rng,
    /// How many jobs there were, and the number of the one that runs.
    jobs: usize,
    running: Option<String>,
    /// The checkpoints that were complete.
    complete: BTreeSet<String>,
}

impl WriterCampaign {
    /// `None` where the libraries are not installed.
    fn new(writer: &str) -> Option<Self> {
        let python = writers_python_path()?;
        let saving = SavingMachine::new();
        let directory = saving.machine.directory("log");
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs/writers");
        Some(Self {
            python,
            script: scripts.join(format!("{writer}.py")),
            directory,
            rng: Rng(std::env::var("SEED").map_or(21, |seed| seed.parse().expect("a number"))),
            jobs: 0,
            running: None,
            complete: BTreeSet::new(),
            saving,
        })
    }

    fn id(&self) -> String {
        format!("job{}", self.jobs)
    }

    /// Starts the next job, if none is running.
    fn start_job(&mut self) {
        if self.running.is_some() {
            return;
        }
        self.jobs += 1;
        let id = self.id();
        let paths = [&self.script, &self.directory.join(&id), &self.directory.join("stop")];
        let command = format!("exec {} -B {}", text(&self.python), paths.map(|path| text(path)).join(" "));
        let folder = self.saving.machine.directory("work").join("loaded");
        let specification = format!(
            "{}[runtime.checkpointing_config]\nenabled = true\n[runtime.load_checkpoint_config]\nenabled = true\n\
             download_folder = {folder:?}\n",
            toml(&[], &[&command])
        );
        let file = spec(&self.saving.machine, &format!("{id}.toml"), &specification);
        self.running = Some(submitted(&self.saving.machine, &["--id", &id, "--project", "p", text(&file)]));
        eventually("it runs", || !self.saving.machine.supervisors().is_empty());
    }

    /// Makes sure that all that is saved of the last job was closed by it, that what is complete was called saved by its library, and that
    /// the mirror is whole.
    fn check_saved(&mut self) {
        let (id, mirror) = (self.id(), mirror(&self.saving.machine));
        for name in saved_names(&mirror, &id) {
            let Some((complete, files)) = saved_checkpoint(&mirror, &format!("bt://p@{id}/{name}")) else {
                continue;
            };
            // What Python closes is logged before, other files a moment after.
            let states = ClosedStates::read(&self.directory.join(&id));
            for (path, hash) in &files {
                assert!(states.files.contains(hash), "{id}/{name}/{path} is torn");
                assert!(!path.contains(".tmp") && !name.contains("tmp"), "{id}/{name}/{path} is temporary");
            }
            if complete {
                let is_known = states.units.contains(&(name.clone(), files.clone()));
                assert!(is_known, "{id}/{name} is incomplete: {files:#?}");
                self.complete.insert(format!("{id}/{name}"));
            }
        }
        self.saving.verify_if_begun();
    }

    fn round(&mut self) {
        self.start_job();
        sleep(Duration::from_millis(self.rng.below(PAUSE_MILLISECONDS)));
        let kills = [WriterKill::Saver, WriterKill::Agent, WriterKill::Job, WriterKill::All];
        let victim = kills[self.rng.below(kills.len() as u64) as usize];
        let machine = &self.saving.machine;
        let is_agent = matches!(victim, WriterKill::Agent | WriterKill::All);
        if is_agent {
            machine.crash();
        }
        if matches!(victim, WriterKill::Saver | WriterKill::All) {
            machine.kill_savers();
        }
        if matches!(victim, WriterKill::Job | WriterKill::All) {
            kill_and_wait(&machine.supervisors());
        }
        if is_agent {
            self.saving.agent = start(&self.saving.machine);
        }
        if let WriterKill::Job | WriterKill::All = victim {
            let status = self.ended();
            assert_eq!(status["state"], "TRAINING_JOB_FAILED", "{victim:?}: {status}");
        }
        self.check_saved();
    }

    /// Waits until the job has ended, and answers with its status.
    fn ended(&mut self) -> Value {
        let number = self.running.take().expect("a job");
        self.saving.ended(&number)
    }

    /// Ends the job that runs, and makes sure that all of it is saved, and that the library resumes from it.
    fn finish(mut self) {
        self.start_job();
        let number = self.running.clone().unwrap();
        eventually_within(SAVED_TIMEOUT, "it has saved one", || {
            let status = self.saving.status(&number);
            assert!(status["ended"].is_null(), "{status:#}");
            checkpoints(&status).iter().any(|one| one.1 == "saved")
        });
        fs::write(self.directory.join("stop"), "").unwrap();
        let status = self.ended();
        assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
        for (name, state, complete, _) in checkpoints(&status) {
            assert!(state == "skipped" || (state == "saved" && complete), "{name} is {state}: {status}");
        }
        self.check_saved();
        let last = format!("{}/", self.id());
        assert!(self.complete.iter().any(|one| one.starts_with(&last)), "{:?}", self.complete);
        self.start_job();
        let number = self.running.clone().unwrap();
        let status = self.ended();
        assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
        let log = job(&self.saving.machine, &["logs", &number]).succeeds();
        assert!(log.contains("resumed from step "), "{log}\n{:?}", events(&status));
    }
}

/// Kills something of a job of `writer` at random moments.
fn kill_many_times(writer: &str) {
    let Some(mut campaign) = WriterCampaign::new(writer) else { return };
    for _ in 0..campaign_rounds(NIGHTLY_ROUNDS) {
        campaign.round();
    }
    campaign.finish();
}

#[test]
#[ignore = "takes minutes, and PyTorch: scripts/training-libraries; CAMPAIGN_ROUNDS=4 cargo nextest run --test jobs --run-ignored all foreign_writers"]
fn trainer_killed_many_times_saves_only_what_it_closed() {
    kill_many_times("trainer");
}

#[test]
#[ignore = "takes minutes, and PyTorch: scripts/training-libraries; CAMPAIGN_ROUNDS=4 cargo nextest run --test jobs --run-ignored all foreign_writers"]
fn torch_dcp_killed_many_times_saves_only_what_it_closed() {
    kill_many_times("dcp");
}

#[test]
#[ignore = "takes minutes, and PyTorch: scripts/training-libraries; CAMPAIGN_ROUNDS=4 cargo nextest run --test jobs --run-ignored all foreign_writers"]
fn lightning_killed_many_times_saves_only_what_it_closed() {
    kill_many_times("lightning");
}

#[test]
#[ignore = "takes minutes, and PyTorch: scripts/training-libraries; CAMPAIGN_ROUNDS=4 cargo nextest run --test jobs --run-ignored all foreign_writers"]
fn deepspeed_killed_many_times_saves_only_what_it_closed() {
    kill_many_times("deepspeed");
}
