//! The supervisor process of a job, as the agent sees it: started, watched and told to stop.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::blocking;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::supervisor::{self, SupervisorInfo, SupervisorOrder, SupervisorReply, is_supervised};

/// The time that it may take until the commands run: some dozens of mounts, which a broken file system of the host may hold up.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(60);

/// The pause before a supervisor is looked for again that there was no descriptor for.
const FIND_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A process that unmounts sources when this is dropped, or this process is killed: the supervisor has ended by the time at which
/// the sources are unmounted.
#[derive(Debug)]
pub struct MountGuard {
    _input: ChildStdin,
}

impl MountGuard {
    /// Starts the process, which guards `mountpoints`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`].
    pub async fn start(mountpoints: &[PathBuf]) -> Result<Self> {
        let (mut child, mut input, _output) = spawn(Stdio::null())?;
        send(&mut input, &mountpoints).await.map_err(|e| failed(e.to_string()))?;
        tokio::spawn(async move { child.wait().await });
        Ok(Self { _input: input })
    }
}

/// A supervisor that has no order yet. It ends when it is dropped, or this process is killed.
#[derive(Debug)]
pub struct IdleSupervisor {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

impl IdleSupervisor {
    /// Starts the supervisor of the job in `directory`.
    ///
    /// # Errors
    /// [`Kind::Unavailable`].
    pub async fn start(directory: &Path) -> Result<Self> {
        let directory = directory.to_owned();
        let lock = blocking(move || supervisor::lock(&directory)).await.map_err(|e| failed(e.to_string()))?;
        let (child, mut input, output) = spawn(Stdio::from(lock))?;
        send(&mut input, &[(); 0]).await.map_err(|e| failed(e.to_string()))?;
        Ok(Self { child, input, output })
    }

    /// Waits until the supervisor has ended, which it should not.
    pub async fn await_end(&mut self) -> Error {
        let _ = self.child.wait().await;
        failed("its supervisor was killed".to_owned())
    }

    /// Orders it to run the commands, and waits until they run. An attached job ends when the pipe that comes with it is
    /// dropped.
    ///
    /// # Errors
    /// [`Kind::Unavailable`], with what the supervisor said.
    pub async fn launch(mut self, order: &SupervisorOrder) -> Result<(SupervisorInfo, Option<ChildStdin>)> {
        let reply = self.ask(order).await;
        let Self { mut child, input, .. } = self;
        match reply {
            Ok(SupervisorReply::Started(supervisor)) => {
                // This only reaps the zombie: agents notice the end by other means.
                tokio::spawn(async move { child.wait().await });
                Ok((supervisor, order.attached.then_some(input)))
            }
            Ok(SupervisorReply::Failed(why)) => Err(failed(why)),
            Err(why) => {
                // One that a hung file system holds ends later, and runs no command.
                let _ = tokio::time::timeout(supervisor::KILL_TIMEOUT, child.kill()).await;
                let directory = order.directory.clone();
                // It may have started the commands, and not come to say so.
                let killed = blocking(move || {
                    supervisor::read_info(&directory).iter().for_each(supervisor::kill_rest);
                    Ok(())
                });
                let _ = killed.await;
                Err(failed(why))
            }
        }
    }

    async fn ask(&mut self, order: &SupervisorOrder) -> std::result::Result<SupervisorReply, String> {
        let ask = async {
            send(&mut self.input, order).await?;
            let mut line = String::new();
            BufReader::new(&mut self.output).read_line(&mut line).await?;
            Ok::<_, std::io::Error>(serde_json::from_str(&line)?)
        };
        let asked = tokio::time::timeout(LAUNCH_TIMEOUT, ask).await;
        match asked {
            Ok(Ok(reply)) => Ok(reply),
            // It has closed its pipes: even one that can't do what it is asked to says so first.
            Ok(Err(_)) => {
                let _ = self.child.start_kill();
                let end = self.child.wait().await.map_or_else(|e| e.to_string(), |status| status.to_string());
                Err(format!("its supervisor ended before the commands ran ({end})"))
            }
            Err(_) => Err(format!("its supervisor was not ready after {LAUNCH_TIMEOUT:?}")),
        }
    }
}

/// Starts a process that is a supervisor, or guards mounts; its standard error is what it keeps locked.
fn spawn(lock: Stdio) -> Result<(Child, ChildStdin, ChildStdout)> {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bdnfs").arg("launch").env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(lock);
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(input), Some(output)) => Ok((child, input, output)),
        _ => Err(failed("it has no pipes".to_owned())),
    }
}

/// Sends one line of JSON.
async fn send(input: &mut ChildStdin, what: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    input.write_all(&line).await?;
    input.flush().await
}

fn failed(why: String) -> Error {
    Error::new(Kind::Unavailable, format!("the job cannot be launched: {why}"))
}

/// A supervisor that lives, whichever agent started it.
#[derive(Debug)]
pub struct SupervisorProcess(AsyncFd<OwnedFd>);

impl SupervisorProcess {
    /// The supervisor of the job in `directory`; `None` when it has ended. Touches the local disk.
    ///
    /// # Errors
    /// Those of the kernel where it has no descriptor for it: then it may live.
    pub fn find(directory: &Path, supervisor: &SupervisorInfo) -> std::io::Result<Option<Self>> {
        let pid = Pid::from_raw(supervisor.pid).filter(|_| !supervisor.is_of_earlier_boot());
        let Some(pid) = pid else { return Ok(None) };
        let process = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Err(Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        // Checked after the process is open: if it still has its lock, its id was not reused.
        if !is_supervised(directory) {
            return Ok(None);
        }
        // SAFETY: the descriptor is owned by what is registered, and so open as long as that.
        let process = unsafe { AsyncFd::register_with_interest(process, tokio::io::Interest::READABLE) };
        Ok(Some(Self(process?)))
    }

    /// As [`find`](Self::find), and retries until the kernel has a descriptor for it: a live supervisor is not to be taken for an
    /// ended one.
    pub async fn find_with_retry(directory: &Path, supervisor: &SupervisorInfo) -> Option<Self> {
        loop {
            match Self::find(directory, supervisor) {
                Ok(found) => return found,
                Err(error) => {
                    tracing::warn!(
                        "cannot watch the supervisor of the job in {}: {error}",
                        directory.display()
                    );
                    tokio::time::sleep(FIND_RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Waits until it has ended.
    pub async fn await_end(&self) {
        // A process that has ended is readable.
        let _ = self.0.readable().await;
    }

    /// Asks it to stop its commands, or with `now` to kill them. One that a signal has stopped is continued, else it could not.
    pub fn stop(&self, now: bool) {
        for signal in [if now { Signal::QUIT } else { Signal::TERM }, Signal::CONT] {
            // A process that has ended needs no signal.
            let _ = pidfd_send_signal(self.0.get_ref(), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[tokio::test]
    async fn supervisor_without_a_descriptor_for_it_is_not_taken_for_one_that_has_ended() {
        let home = tempfile::tempdir().expect("a directory");
        let lock = supervisor::lock(home.path()).expect("a lock");
        let (covered, hiding, pid) = (Vec::new(), Vec::new(), std::process::id() as i32);
        let own = SupervisorInfo {
            pid,
            namespace: 0,
            namespace_id: None,
            covered,
            hiding,
            boot: None,
            volume: None,
        };
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).expect("less is allowed");
        let found = SupervisorProcess::find(home.path(), &own);
        setrlimit(Resource::Nofile, limit).expect("as it was");
        let error = found.expect_err("it lives");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::MFILE));
        assert!(SupervisorProcess::find(home.path(), &own).expect("descriptors").is_some());
        drop(lock);
        assert!(SupervisorProcess::find(home.path(), &own).expect("descriptors").is_none());
    }
}
