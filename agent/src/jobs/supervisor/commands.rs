//! Runs a job's commands until they end, or are stopped.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use bdnfs::error::Result;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, getpid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::log::JobLog;
use super::{JobDirectory, KILL_POLL_INTERVAL, KILL_TIMEOUT, SupervisorOrder, processes, written_files};
use crate::api::job::{CommandsEnd, JobExit, WrittenFiles};
use crate::context::Context;
use crate::runtime;

/// The shell of the commands.
const SHELL: &str = "/bin/sh";
/// The time that processes that the commands left running may take to end.
const LEFTOVER_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// The time that the end of the log may take to be written.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the commands one after the other until one fails, and ends what they leave running.
///
/// # Errors
/// [`Kind::Disk`] where the kernel has no pipe, thread or signal for them.
pub fn run(order: &SupervisorOrder, directory: &JobDirectory) -> Result<CommandsEnd> {
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("cannot make a pipe");
    let ((stdout, stdout_input), (stderr, stderr_input)) = (pipe()?, pipe()?);
    let (mut log, written) = (JobLog::new(directory.path()), oneshot::channel());
    let writer = std::thread::Builder::new().name("bdnfs-log".into());
    writer
        .spawn(move || {
            log.take(stdout.into(), stderr.into());
            let _ = written.0.send(());
        })
        .context("cannot start a thread")?;
    let run = async {
        let end =
            CommandRunner::new(order, directory)?.run([stdout_input, stderr_input].map(File::from)).await;
        // A process that escaped may hold the pipe open.
        let _ = tokio::time::timeout(LOG_FLUSH_TIMEOUT, written.1).await;
        Ok(end)
    };
    runtime::block_on(async { Ok::<_, io::Error>(run.await) }).context("cannot start a runtime")?
}

/// Makes this process stop its commands at once when the other end of its standard input is closed.
fn quit_with_agent() {
    // Nothing more is sent, so a read returns at the end.
    let _ = io::stdin().read(&mut [0]);
    let _ = kill_process(getpid(), Signal::QUIT);
}

/// The exit of a command that could not be started, with the code that a shell has for it.
fn not_started(error: &io::Error) -> JobExit {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    JobExit { code: Some(code), why: Some(format!("cannot run {SHELL}: {error}")), ..JobExit::default() }
}

struct CommandRunner<'a> {
    order: &'a SupervisorOrder,
    directory: &'a JobDirectory,
    children: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    /// The time at which processes that were asked to end are killed.
    deadline: Option<Instant>,
    /// The device on which the job's checkpoints lie, if it writes some.
    checkpoint_device: Option<u64>,
    /// The files there that were being written when their writers were ended.
    cut: WrittenFiles,
    /// The processes that were looked at before they were killed.
    killed: BTreeSet<i32>,
}

impl<'a> CommandRunner<'a> {
    fn new(order: &'a SupervisorOrder, directory: &'a JobDirectory) -> Result<Self> {
        let catch = |kind| signal(kind).context("cannot receive signals");
        let checkpoints = order.volume.checkpoints.as_ref();
        let runner = Self {
            order,
            directory,
            children: catch(SignalKind::child())?,
            terminate: catch(SignalKind::terminate())?,
            quit: catch(SignalKind::quit())?,
            deadline: None,
            // Before the job can mount something there.
            checkpoint_device: checkpoints.and_then(|place| Some(fs::metadata(place).ok()?.dev())),
            cut: WrittenFiles::default(),
            killed: BTreeSet::new(),
        };
        if order.attached {
            // It is not joined: it waits for as long as this process lives.
            std::thread::Builder::new()
                .name("bdnfs-attached".into())
                .spawn(quit_with_agent)
                .context("cannot start a thread")?;
        }
        Ok(runner)
    }

    async fn run(mut self, output: [File; 2]) -> CommandsEnd {
        let mut exit = JobExit::default();
        for command in &self.order.commands {
            exit = match self.start(command, &output) {
                Ok(pid) => self.await_exit(pid).await,
                Err(error) => not_started(&error),
            };
            if exit.code != Some(0) || self.deadline.is_some() {
                break;
            }
        }
        exit.stopped = self.deadline.is_some();
        self.directory.release_commands_lock();
        drop(output);
        self.end_rest().await;
        CommandsEnd { exit, cut: self.cut }
    }

    fn start(&self, command: &str, [stdout, stderr]: &[File; 2]) -> io::Result<Pid> {
        let mut shell = Command::new(SHELL);
        shell.arg("-c").arg(command).env_clear();
        shell.envs(self.order.environment.iter().map(|(name, value)| (name, value.expose())));
        shell.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
        // The child is reaped with all others.
        let child = shell.spawn()?;
        Pid::from_raw(child.id() as i32).ok_or_else(|| io::Error::other("a process without an id"))
    }

    /// Waits until the process `main` ends, and stops all of them meanwhile where it is asked to.
    async fn await_exit(&mut self, main: Pid) -> JobExit {
        loop {
            while let Some((pid, status)) = processes::reap() {
                if pid == main {
                    let status = ExitStatus::from_raw(status.as_raw());
                    return JobExit { code: status.code(), signal: status.signal(), ..JobExit::default() };
                }
            }
            let deadline = self.deadline;
            tokio::select! {
                _ = self.children.recv() => {}
                _ = self.terminate.recv() => self.stop(Duration::from_secs(self.order.grace)).await,
                _ = self.quit.recv() => self.stop(Duration::ZERO).await,
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.end_all(Signal::KILL).await;
                    // Until they are gone: others may have been started meanwhile.
                    self.deadline = Some(Instant::now() + KILL_POLL_INTERVAL);
                }
            }
        }
    }

    async fn stop(&mut self, grace: Duration) {
        self.directory.release_commands_lock();
        if !grace.is_zero() {
            self.end_all(Signal::TERM).await;
            // A stopped process would not handle the signal.
            processes::signal(Signal::CONT);
        }
        let deadline = Instant::now() + grace;
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Ends what the commands left running.
    async fn end_rest(&mut self) {
        let end = Instant::now();
        self.end_all(Signal::TERM).await;
        let kill = self.deadline.unwrap_or(end + LEFTOVER_GRACE_PERIOD).min(end + LEFTOVER_GRACE_PERIOD);
        loop {
            while processes::reap().is_some() {}
            let rest = match Instant::now() < kill {
                true => processes::signal(Signal::CONT),
                false => self.end_all(Signal::KILL).await,
            };
            if rest == 0 || end.elapsed() > LEFTOVER_GRACE_PERIOD + KILL_TIMEOUT {
                return;
            }
            tokio::time::sleep(KILL_POLL_INTERVAL).await;
        }
    }

    /// Sends `signal`, SIGTERM or SIGKILL, to all processes, and notes before which files those are writing that it ends. Returns
    /// how many processes there are.
    async fn end_all(&mut self, signal: Signal) -> usize {
        if let Some(device) = self.checkpoint_device {
            let mut ended = processes::all();
            match signal {
                Signal::KILL => ended.retain(|pid| self.killed.insert(*pid)),
                // Who handles it may finish what it writes. A child to which it gave the file is cut off all the same.
                _ => ended.retain(|pid| written_files::is_ended_by(signal, *pid)),
            }
            if !ended.is_empty() {
                let WrittenFiles { files, is_incomplete } = written_files::find(ended, device).await;
                self.cut.files.extend(files);
                self.cut.is_incomplete |= is_incomplete;
            }
        }
        processes::signal(signal)
    }
}
