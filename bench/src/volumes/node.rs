//! A node whose jobs write: an agent with a mirror beside it, and a job that does what it is told from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::BenchAgent;
use crate::interrupt;
use crate::lab::BenchEnv;
use crate::run::{self, ProgramOutput};

/// How long a command may take.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);
/// A job's request for a checkpoint directory.
pub const CHECKPOINTS: &str = "[runtime.checkpointing_config]\nenabled = true\n";
/// A job's request for a training cache.
pub const TRAINING_CACHE: &str = "[runtime.cache_config]\nenabled = true\n";
/// How often the state of a job is asked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An agent, and where its mirror is. Its jobs end with it.
pub struct VolumesNode<'a> {
    lab: &'a BenchEnv,
    agent: BenchAgent,
    mirror: PathBuf,
    room: TempDir,
}

/// A job that runs until it is told to end. Its directories as this program sees them.
pub struct WritingJob<'a> {
    node: &'a VolumesNode<'a>,
    number: String,
    /// The process of its command.
    pid: String,
    flag: PathBuf,
    /// Its checkpoint directory.
    pub checkpoints: PathBuf,
    /// Its scratch directory.
    pub scratch: PathBuf,
    /// What it sees as its scratch directory, its checkpoint directory and its project cache; empty for those that it has not.
    pub seen: [PathBuf; 3],
}

impl<'a> VolumesNode<'a> {
    /// Starts one that has room for `bytes`.
    ///
    /// # Errors
    /// The disk is too full, or the agent does not start.
    pub fn start(lab: &'a BenchEnv, bytes: u64) -> Result<Self> {
        let room = lab.room("volumes", bytes)?;
        let mirror = room.path().join("mirror");
        Self::start_in(lab, room, mirror)
    }

    /// Starts another one that has room for `bytes`, with the mirror of this one.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_other(&self, bytes: u64) -> Result<Self> {
        Self::start_in(self.lab, self.lab.room("volumes", bytes)?, self.mirror.clone())
    }

    fn start_in(lab: &'a BenchEnv, room: TempDir, mirror: PathBuf) -> Result<Self> {
        let config = format!(
            "[mirror]\nurl = \"file://{}\"\n[volumes]\ndir = \"{}/volumes\"\n",
            mirror.display(),
            room.path().display()
        );
        Ok(Self { lab, agent: BenchAgent::start(lab, room.path(), &config)?, mirror, room })
    }

    /// A directory of the disk that is none of a job's.
    pub fn room(&self) -> &Path {
        self.room.path()
    }

    /// The training cache of the project of its jobs.
    pub fn project_cache(&self) -> PathBuf {
        self.room.path().join("volumes/default/caches/project/bench/tree")
    }

    /// The mirror as commands name it.
    pub fn mirror_url(&self) -> String {
        format!("file://{}", self.mirror.display())
    }

    /// The bytes of all files of the mirror, which may change meanwhile.
    pub fn mirror_bytes(&self) -> u64 {
        let (mut bytes, mut todo) = (0, vec![self.mirror.clone()]);
        while let Some(directory) = todo.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => todo.push(entry.path()),
                    Ok(meta) => bytes += meta.len(),
                    // It was renamed or removed.
                    Err(_) => {}
                }
            }
        }
        bytes
    }

    /// Starts the job `id` of the project `bench`, with the directories that `config` asks for beside its scratch directory.
    ///
    /// # Errors
    /// It does not run.
    pub fn job(&'a self, id: &str, config: &str) -> Result<WritingJob<'a>> {
        let [spec, seen, flag] =
            ["toml", "seen", "end"].map(|kind| self.room.path().join(format!("{id}.{kind}")));
        let command = format!(
            "printf '%s\\n' $$ \"$BT_SCRATCH_DIR\" \"$BT_CHECKPOINT_DIR\" \"$BT_PROJECT_CACHE_DIR\" > {0}.new && mv {0}.new {0}; \
             while [ ! -e {1} ]; do sleep 0.01; done",
            seen.display(),
            flag.display()
        );
        let text = format!("[runtime]\nstart_commands = [{command:?}]\n{config}");
        fs::write(&spec, text).context("cannot write a job")?;
        let mut submit = self.command(&["job", "submit", "--id", id, "--project", "bench"]);
        let said = run::run(submit.arg(&spec), COMMAND_TIMEOUT)?.out;
        let number = said.trim().strip_prefix("job ").context("a job has no number")?.to_owned();
        let begin = Instant::now();
        while !seen.exists() {
            let job = self.show(&number)?;
            if !job["ended"].is_null() || begin.elapsed() > COMMAND_TIMEOUT {
                bail!("a job does not run: {}", job["events"]);
            }
            pause()?;
        }
        let seen = fs::read_to_string(&seen).context("cannot read what a job has written")?;
        let mut lines = seen.lines().map(str::to_owned);
        let mut next = || lines.next().context("a job lacks a directory");
        let volume = self.room.path().join("volumes/default/jobs").join(id);
        Ok(WritingJob {
            node: self,
            number,
            flag,
            pid: next()?,
            checkpoints: volume.join("checkpoints"),
            scratch: volume.join("scratch"),
            seen: [next()?.into(), next()?.into(), next()?.into()],
        })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = run::command(&self.lab.bdnfs);
        command.args(words).env("BDNFS_SOCKET", &self.agent.socket);
        command
    }

    fn show(&self, number: &str) -> Result<Value> {
        let shown = run::run(&mut self.command(&["job", "show", "--json", number]), COMMAND_TIMEOUT)?;
        serde_json::from_str(&shown.out).context("a job is shown in another format")
    }

    /// What is reported of the checkpoint `name` of `job`, once it is saved.
    ///
    /// # Errors
    /// There is none, or what [`show`](Self::show) says.
    pub fn saved(&self, job: &WritingJob, name: &str) -> Result<Option<Value>> {
        interrupt::check()?;
        let shown = self.show(&job.number)?;
        let units = shown["saving"]["checkpoints"].as_array().cloned().unwrap_or_default();
        Ok(units.into_iter().find(|unit| unit["name"] == name && unit["state"] == "saved"))
    }

    /// Waits until the checkpoint `name` of `job` is saved, and returns what is reported of it.
    ///
    /// # Errors
    /// It is not.
    pub fn await_saved(&self, job: &WritingJob, name: &str) -> Result<Value> {
        let begin = Instant::now();
        while begin.elapsed() < COMMAND_TIMEOUT {
            if let Some(unit) = self.saved(job, name)? {
                return Ok(unit);
            }
            pause()?;
        }
        bail!("{name} is not saved after {} s", COMMAND_TIMEOUT.as_secs())
    }

    /// Waits until `job` has ended.
    ///
    /// # Errors
    /// It failed.
    pub fn await_ended(&self, job: &WritingJob) -> Result<ProgramOutput> {
        run::run(&mut self.command(&["job", "wait", &job.number]), COMMAND_TIMEOUT)
    }

    /// Saves the training cache of the project of its jobs, which no job uses and nobody has changed; returns the seconds that it took.
    ///
    /// # Errors
    /// It can't be saved, or was changed.
    pub fn save_unchanged_cache(&self) -> Result<f64> {
        let volumes = self.room.path().join("volumes");
        let mut save = self.command(&["project", "save", "bench", "--json", "--mirror", &self.mirror_url()]);
        let saved = run::run(save.arg("--volumes-dir").arg(volumes), COMMAND_TIMEOUT)?;
        let result: Value = serde_json::from_str(&saved.out).context("a save is shown in another format")?;
        ensure!(result["changed"] == false, "a training cache was not saved when its job ended");
        Ok(saved.seconds)
    }

    /// Waits until what jobs have left is removed, `limit` at the most.
    ///
    /// # Errors
    /// Interruption only.
    pub fn await_empty_trash(&self, limit: Duration) -> Result<()> {
        let (trash, begin) = (self.room.path().join("volumes/default/trash"), Instant::now());
        let is_empty = || fs::read_dir(&trash).map_or(true, |mut entries| entries.next().is_none());
        while !is_empty() && begin.elapsed() < limit {
            pause()?;
        }
        Ok(())
    }
}

impl WritingJob<'_> {
    /// Runs a command in its namespace.
    ///
    /// # Errors
    /// It fails.
    pub fn run(&self, words: &[&str]) -> Result<ProgramOutput> {
        let mut command = run::command("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.pid)).arg("--").args(words);
        run::run(&mut command, COMMAND_TIMEOUT)
    }

    /// Has its command end.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(&self) -> Result<()> {
        fs::write(&self.flag, "").context("cannot end a job")
    }
}

impl Drop for WritingJob<'_> {
    fn drop(&mut self) {
        // It may have ended already. A saver would outlive its agent.
        let stop = ["job", "stop", "--discard", "--now", &self.number];
        let _ = run::run(&mut self.node.command(&stop), COMMAND_TIMEOUT);
        let _ = self.node.await_ended(self);
    }
}

fn pause() -> Result<()> {
    sleep(POLL_INTERVAL);
    interrupt::check()
}
