//! The agent: how soon it is ready, what it costs at rest, and how soon a job may run whose data is here, or is not.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::bucket::BenchBucket;
use crate::data::{self, FILES_IN_DIRECTORY};
use crate::lab::BenchEnv;
use crate::process::ProcessStats;
use crate::report::{BenchReport, Comparison, Figure, Rows};
use crate::run::{self, RunningProgram};
use crate::samples::{Samples, Side, in_turn};
use crate::unit::MeasureUnit;
use crate::{cold, interrupt};

const ABOUT: &str = "An agent with a cache of its own. Restage: `bdnfs mount --wait` of what its cache has all of, listing \
    included; in packs: of the same from a mirror, where it is packed. Ready: from its start until `/readyz` says so, with one blob in the cache for each file. A job: `bdnfs job run` \
    of a command that does nothing, whose data lies in S3 on loopback, beside 8 curls that bring the same and an fsync.";
/// The share of a parallel download that staging a job must reach.
const WANTED_DOWNLOAD_RATIO: f64 = 0.85;
/// Seconds for staging 10 local files again, at the most.
const RESTAGE_LIMIT_SECONDS: f64 = 0.05;
/// The same for a million files, and for an agent with many blobs to be ready.
const RESTAGE_MILLION_LIMIT_SECONDS: f64 = 2.0;
/// The disk space of a file, in bytes: a block and an inode, with some to spare.
const DISK_BYTES_PER_FILE: usize = 8 << 10;
/// How long a command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(900);
/// How long the agent may take to be ready.
const AGENT_READY_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the agent may take to end.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an idle agent is measured.
const IDLE_MEASUREMENT_TIME: Duration = Duration::from_secs(10);

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    // A million single files would take as long to make as all else to measure.
    let files = lab.sizes.many / 10;
    report.group("agent", "Agent", format!("{ABOUT} The job's data: {} MiB.", size(lab) >> 20));
    report.measure("10 files", || {
        let place = AgentMount::stage(lab, 10, false)?;
        let again = place.again(lab, 10)?;
        let figure = Figure { limit: Some(RESTAGE_LIMIT_SECONDS), ..again };
        Ok(Rows { figures: vec![figure], ..Rows::default() })
    })?;
    report.measure("many files", || {
        let place = AgentMount::stage(lab, files, false)?;
        let figures = vec![place.again(lab, files)?, place.idle(files)?, place.ready(lab, files)?];
        Ok(Rows { figures, ..Rows::default() })
    })?;
    report.measure("very many files", || {
        let place = AgentMount::stage(lab, lab.sizes.many, true)?;
        let again = place.again(lab, lab.sizes.many)?;
        let figure = Figure { limit: Some(RESTAGE_MILLION_LIMIT_SECONDS), ..again };
        Ok(Rows { figures: vec![figure], ..Rows::default() })
    })?;
    report.measure("a job", || job(lab))
}

fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

/// An agent, and a source that is complete in its cache.
struct AgentMount {
    // First, so that it ends before its directory goes.
    agent: BenchAgent,
    source: String,
    mirror: Option<String>,
    room: TempDir,
}

impl AgentMount {
    /// Stages a source of `files` files, each a blob, or part of a pack in a mirror if they are `packed`.
    fn stage(lab: &BenchEnv, files: usize, packed: bool) -> Result<Self> {
        let blobs = if packed { 0 } else { files };
        let room = lab.room("agent", ((files + blobs) * DISK_BYTES_PER_FILE) as u64)?;
        let url = |name: &str| format!("file://{}", room.path().join(name).display());
        let (source, mirror) = (url("source"), packed.then(|| url("mirror")));
        data::tree(&room.path().join("source"), files, FILES_IN_DIRECTORY, 1)?;
        if let Some(mirror) = &mirror {
            run::run(
                run::command(&lab.bdnfs).args(["mirror", "add", &source, "--mirror", mirror]),
                COMMAND_TIMEOUT,
            )?;
        }
        let agent = BenchAgent::start(lab, room.path(), "")?;
        let place = Self { agent, source, mirror, room };
        place.mount(lab)?;
        Ok(place)
    }

    /// Mounts the source until all of it is local, unmounts it, and returns the seconds that the first took.
    fn mount(&self, lab: &BenchEnv) -> Result<f64> {
        let point = self.room.path().join("mount");
        fs::create_dir_all(&point).context("cannot make a directory")?;
        let mut mount = self.command(lab, "mount");
        mount.args(self.mirror.iter().flat_map(|mirror| ["--mirror", mirror]));
        let took = run::run(mount.args(["--wait", &self.source]).arg(&point), COMMAND_TIMEOUT)?.seconds;
        run::run(run::command(&lab.bdnfs).arg("umount").arg(&point), COMMAND_TIMEOUT)?;
        Ok(took)
    }

    fn command(&self, lab: &BenchEnv, name: &str) -> Command {
        let mut command = run::command(&lab.bdnfs);
        command.arg(name).arg("--cache-dir").arg(&self.agent.cache);
        command
    }

    fn again(&self, lab: &BenchEnv, files: usize) -> Result<Figure> {
        let times = (0..lab.sizes.runs).map(|_| interrupt::check().and_then(|()| self.mount(lab)));
        let packs = if self.mirror.is_some() { " in packs" } else { "" };
        Ok(Figure::new(
            &format!("restage of {files} files{packs}"),
            MeasureUnit::Seconds,
            times.collect::<Result<_>>()?,
        ))
    }

    /// Seconds of CPU that the agent takes while it is idle.
    fn idle(&self, files: usize) -> Result<Figure> {
        let agent = self.agent.process();
        let (begin, before) = (Instant::now(), agent.cpu()?);
        while begin.elapsed() < IDLE_MEASUREMENT_TIME {
            interrupt::check()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        let used: Samples = [agent.cpu()? - before].into_iter().collect();
        let name = format!("CPU in {} s at rest, with {files} blobs", IDLE_MEASUREMENT_TIME.as_secs());
        Ok(Figure::new(&name, MeasureUnit::Seconds, used))
    }

    fn ready(mut self, lab: &BenchEnv, files: usize) -> Result<Figure> {
        let mut times = Samples::default();
        for _ in 0..lab.sizes.runs {
            interrupt::check()?;
            self.agent.process().end(AGENT_STOP_TIMEOUT);
            self.agent = BenchAgent::start(lab, self.room.path(), "")?;
            times.push(self.agent.took);
        }
        let figure = Figure::new(&format!("ready, with {files} blobs"), MeasureUnit::Seconds, times);
        Ok(Figure { limit: Some(RESTAGE_MILLION_LIMIT_SECONDS), ..figure })
    }
}

/// An agent; it ends when dropped.
pub struct BenchAgent {
    /// Its cache.
    pub cache: PathBuf,
    /// Where it listens.
    pub socket: PathBuf,
    running: RunningProgram,
    /// Seconds until it was ready.
    took: f64,
}

impl BenchAgent {
    /// Starts one whose cache and sockets lie in `room`, and whose configuration has the lines `more`.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start(lab: &BenchEnv, room: &Path, more: &str) -> Result<Self> {
        let (config, cache, socket) = (room.join("agent.toml"), room.join("cache"), room.join("agent.sock"));
        let text = format!("cache_dir = \"{}\"\nsocket = \"{}\"\n{more}", cache.display(), socket.display());
        fs::write(&config, text).context("cannot write a configuration")?;
        let out = tempfile::tempfile().context("cannot make a temporary file")?;
        let begin = Instant::now();
        let mut command = run::command(&lab.bdnfs);
        let running = RunningProgram::start(command.arg("agent").arg("--config").arg(&config), out)?;
        while !is_ready(&socket) {
            interrupt::check()?;
            if running.has_ended() {
                running.wait(AGENT_READY_TIMEOUT)?;
                bail!("the agent ended by itself");
            }
            if begin.elapsed() > AGENT_READY_TIMEOUT {
                bail!("the agent is not ready after {} s", AGENT_READY_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Self { cache, socket, running, took: begin.elapsed().as_secs_f64() })
    }

    /// Its process, and not the owner of its cache, which may be the next agent already.
    pub fn process(&self) -> ProcessStats {
        self.running.process()
    }
}

impl Drop for BenchAgent {
    fn drop(&mut self) {
        // It unmounts what it has, as it would not if it were killed.
        self.process().end(AGENT_STOP_TIMEOUT);
    }
}

/// Whether the agent at `socket` is ready.
fn is_ready(socket: &Path) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(AGENT_READY_TIMEOUT))?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

fn job(lab: &BenchEnv) -> Result<Comparison> {
    let bucket = cold::bucket(lab, 4, size(lab))?;
    let objects = bucket.objects()?;
    let sides = in_turn(lab.sizes.runs, |side| {
        let seconds = bucket.in_room(lab, |room| match side {
            Side::Baseline => Ok(bucket.server.download(&objects, room)?.durable),
            Side::Bdnfs => run_job(lab, &bucket, room),
        })?;
        Ok(size(lab) as f64 / 1e6 / seconds)
    })?;
    Ok(Comparison::new("a job, cold", MeasureUnit::Megabytes, "8 curls, then fsync", sides)
        .with_wanted(WANTED_DOWNLOAD_RATIO))
}

/// Seconds from the submission of a job until it has ended.
fn run_job(lab: &BenchEnv, bucket: &BenchBucket, room: &Path) -> Result<f64> {
    let spec = room.join("job.toml");
    let text = format!(
        "[runtime]\nstart_commands = [\"true\"]\n[[weights]]\nsource = \"{}\"\nmount_location = \"{}\"\n",
        bucket.source(),
        room.join("data").display()
    );
    fs::write(&spec, text).context("cannot write a job")?;
    let mut command = run::command(&lab.bdnfs);
    command.args(["job", "run", "--no-mirror", "--cache-dir"]).arg(room.join("cache")).arg(&spec);
    Ok(run::run(command.envs(bucket.server.env()), COMMAND_TIMEOUT)?.seconds)
}
