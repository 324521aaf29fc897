//! Running a command with a time limit, and measuring its cost.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::interrupt;
use crate::process::ProcessStats;

/// How soon a signal is noticed while a command runs. The command's own end is noticed at once.
const SIGNAL_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The result of a command.
#[derive(Debug)]
pub struct ProgramOutput {
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Seconds of CPU that it and its children used, in user and kernel mode.
    pub cpu: f64,
    /// MiB of memory that the largest of them had at the most.
    pub peak: f64,
    /// Its standard output, where that was kept.
    pub out: String,
}

/// A command under way. Dropping it kills it.
#[derive(Debug)]
pub struct RunningProgram {
    pid: Pid,
    what: String,
    begin: Instant,
    out: Option<File>,
    err: File,
    ended: bool,
}

/// Runs `command` to its end and keeps what it prints.
///
/// # Errors
/// It can't be started, fails, or takes longer than `limit`; with what it said.
pub fn run(command: &mut Command, limit: Duration) -> Result<ProgramOutput> {
    let out = tempfile::tempfile().context("cannot make a temporary file")?;
    let mut running = RunningProgram::start(command, out.try_clone().context("cannot share a file")?)?;
    running.out = Some(out);
    running.wait(limit)
}

impl RunningProgram {
    /// Starts `command`, with its standard output going to `out`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(command: &mut Command, out: File) -> Result<Self> {
        interrupt::check()?;
        let program = Path::new(command.get_program());
        let what = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
        let err = tempfile::tempfile().context("cannot make a temporary file")?;
        // A group of its own, so that its children can be ended with it.
        command.process_group(0).stdout(out).stderr(err.try_clone().context("cannot share a file")?);
        let begin = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot run {what}"))?;
        // The handle can go: the process is waited for by its id, which tells its resources as well.
        let pid = Pid::from_child(&child);
        Ok(Self { pid, what, begin, out: None, err, ended: false })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It fails or takes longer than `limit`; with what it said.
    pub fn wait(mut self, limit: Duration) -> Result<ProgramOutput> {
        self.until(limit)?;
        let seconds = self.begin.elapsed().as_secs_f64();
        let (status, cpu, peak) = self.reap()?;
        if !status.success() {
            let said = text(&mut self.err);
            bail!("{} ended with {status}: {}", self.what, said.trim_end().replace('\n', "; "));
        }
        Ok(ProgramOutput { seconds, cpu, peak, out: self.out.as_mut().map(text).unwrap_or_default() })
    }

    /// Its process.
    pub fn process(&self) -> ProcessStats {
        ProcessStats::of(self.pid)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let fd = pidfd_open(self.pid, PidfdFlags::empty());
        fd.is_ok_and(|fd| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&Timespec::default())) == Ok(1))
    }

    fn until(&self, limit: Duration) -> Result<()> {
        let fd = pidfd_open(self.pid, PidfdFlags::empty()).context("cannot watch a process")?;
        while self.begin.elapsed() < limit {
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&SIGNAL_POLL_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => interrupt::check()?,
                Ok(_) => return Ok(()),
                Err(error) => return Err(error).context("cannot watch a process"),
            }
        }
        bail!("{} took longer than {} s", self.what, limit.as_secs())
    }

    /// How it ended, its seconds of CPU, and its MiB of memory.
    fn reap(&mut self) -> Result<(ExitStatus, f64, f64)> {
        let mut status = 0;
        // SAFETY: all zeros is a valid `rusage`, a struct of integers.
        let mut used: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are to live values of the right types, and the process is ours and not yet waited for.
        let pid = unsafe { libc::wait4(self.pid.as_raw_nonzero().get(), &mut status, 0, &mut used) };
        self.ended = true;
        if pid < 0 {
            return Err(std::io::Error::last_os_error()).context("cannot wait for a process");
        }
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let cpu = seconds(used.ru_utime) + seconds(used.ru_stime);
        Ok((ExitStatus::from_raw(status), cpu, used.ru_maxrss as f64 / 1024.0))
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended by itself.
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = self.reap();
        }
    }
}

/// Where the program `name` lies.
///
/// # Errors
/// It is not installed.
pub fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(|path| path.is_file());
    found.with_context(|| format!("{name} is not installed"))
}

/// The command `name`, which reads nothing and has none of our environment's credentials.
pub fn command(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null());
    for variable in std::env::vars_os().map(|(name, _)| name) {
        if variable.to_string_lossy().starts_with("AWS_") {
            command.env_remove(variable);
        }
    }
    command
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // What can't be read back is only the explanation of something that has its own error.
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn command_output_is_kept() {
        let ran = run(command("sh").args(["-c", "echo here; echo there >&2"]), LONG).unwrap();
        assert_eq!(ran.out, "here\n");
        let failure = run(command("sh").args(["-c", "echo why >&2; exit 3"]), LONG).unwrap_err().to_string();
        assert!(failure.contains("exit status: 3") && failure.ends_with(": why"), "{failure}");
    }

    #[test]
    fn command_that_hangs_is_killed_with_its_children() {
        let (mut read, write) = std::io::pipe().unwrap();
        let hanging = RunningProgram::start(
            command("sh").args(["-c", "sleep 1000 & wait"]),
            File::from(std::os::fd::OwnedFd::from(write)),
        );
        let failure = hanging.unwrap().wait(Duration::from_millis(300)).unwrap_err().to_string();
        assert_eq!(failure, "sh took longer than 0 s");
        // The pipe ends when no process can write to it any more.
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
    }
}
