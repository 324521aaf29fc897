//! Running a job's commands to their end, or until they are told to end.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::log::Log;
use super::{Home, Order, offspring};
use crate::api::job::JobExit;
use crate::runtime;

/// What runs a command.
const SHELL: &str = "/bin/sh";
/// How long what a job's commands left running may take to end once they have.
const LEFT: Duration = Duration::from_secs(5);
/// How long killed processes may take to vanish: one that waits for a broken disk may never.
const VANISH: Duration = Duration::from_secs(30);
/// How often those who are to vanish are looked for.
const LOOK: Duration = Duration::from_millis(20);
/// How long the last of what they printed may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Runs the commands one after the other until one fails, and ends what they leave running.
pub fn run(order: &Order, home: &Home) -> Result<JobExit> {
    let (output, input) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context("there is no pipe")?;
    let (mut log, written) = (Log::new(home.path()), oneshot::channel());
    let writer = std::thread::Builder::new().name("bdnfs-log".into());
    writer
        .spawn(move || {
            log.take(File::from(output));
            let _ = written.0.send(());
        })
        .context("cannot start a thread")?;
    runtime::block_on(async {
        let exit = Supervisor::new(order)?.run(File::from(input)).await;
        // Something that escaped may hold the pipe open.
        let _ = tokio::time::timeout(LAST_WORDS, written.1).await;
        Ok(exit)
    })
}

struct Supervisor<'a> {
    order: &'a Order,
    children: tokio::signal::unix::Signal,
    asked: tokio::signal::unix::Signal,
    told: tokio::signal::unix::Signal,
    abandoned: oneshot::Receiver<()>,
    /// Where nobody else has it: then it is never told.
    _kept: Option<oneshot::Sender<()>>,
    /// When those that were asked to end are killed.
    deadline: Option<Instant>,
}

impl<'a> Supervisor<'a> {
    fn new(order: &'a Order) -> Result<Self> {
        let catch = |kind| signal(kind).context("cannot receive signals");
        let (abandon, abandoned) = oneshot::channel();
        let mut kept = Some(abandon);
        if let Some(abandon) = kept.take_if(|_| order.attached) {
            std::thread::spawn(move || {
                // Nothing more comes: it ends with whoever holds the other end.
                let _ = std::io::stdin().read(&mut [0]);
                let _ = abandon.send(());
            });
        }
        Ok(Self {
            order,
            children: catch(SignalKind::child())?,
            asked: catch(SignalKind::terminate())?,
            told: catch(SignalKind::quit())?,
            abandoned,
            _kept: kept,
            deadline: None,
        })
    }

    async fn run(mut self, output: File) -> JobExit {
        let mut exit = JobExit::default();
        for command in &self.order.commands {
            exit = match self.start(command, &output) {
                Ok(pid) => self.ended(pid).await,
                Err(error) => {
                    JobExit { code: Some(127), why: Some(format!("{error:#}")), ..JobExit::default() }
                }
            };
            if exit.code != Some(0) || self.deadline.is_some() {
                break;
            }
        }
        drop(output);
        self.end_rest().await;
        exit
    }

    fn start(&self, command: &str, output: &File) -> Result<Pid> {
        let mut shell = Command::new(SHELL);
        shell.arg("-c").arg(command).env_clear();
        shell.envs(self.order.environment.iter().map(|(name, value)| (name, value.expose())));
        shell.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?).process_group(0);
        // It is reaped with all others.
        let child = shell.spawn().with_context(|| format!("cannot run {SHELL}"))?;
        Pid::from_raw(child.id() as i32).context("a process without a number")
    }

    /// Waits for the end of the process `main`, and meanwhile does what it is told.
    async fn ended(&mut self, main: Pid) -> JobExit {
        loop {
            while let Some((pid, status)) = offspring::reap() {
                if pid == main {
                    let status = ExitStatus::from_raw(status.as_raw());
                    return JobExit { code: status.code(), signal: status.signal(), ..JobExit::default() };
                }
            }
            let deadline = self.deadline;
            tokio::select! {
                _ = self.children.recv() => {}
                _ = self.asked.recv() => self.ask_to_end(Duration::from_secs(self.order.grace)),
                _ = self.told.recv() => self.ask_to_end(Duration::ZERO),
                _ = &mut self.abandoned => self.ask_to_end(Duration::ZERO),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    offspring::signal(Signal::KILL);
                    // Until they are gone: some may have been born meanwhile.
                    self.deadline = Some(Instant::now() + LOOK);
                }
            }
        }
    }

    fn ask_to_end(&mut self, grace: Duration) {
        if !grace.is_zero() {
            offspring::signal(Signal::TERM);
            // One that is stopped would not hear it.
            offspring::signal(Signal::CONT);
        }
        let deadline = Instant::now() + grace;
        self.deadline = Some(self.deadline.map_or(deadline, |earlier| earlier.min(deadline)));
    }

    /// Ends what the commands left running.
    async fn end_rest(&mut self) {
        let end = Instant::now();
        offspring::signal(Signal::TERM);
        let kill = self.deadline.unwrap_or(end + LEFT).min(end + LEFT);
        loop {
            while offspring::reap().is_some() {}
            let signal = if Instant::now() < kill { Signal::CONT } else { Signal::KILL };
            if offspring::signal(signal) == 0 || end.elapsed() > LEFT + VANISH {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
