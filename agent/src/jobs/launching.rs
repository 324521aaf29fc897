//! Launching: the supervisor of a job is started, watched and told to end.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bdnfs::error::Kind;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, Command};

use crate::api::Failure;
use crate::jobs::supervisor::{self, Answer, Order, Started, is_supervised};
use crate::mounts::host::blocking;
use crate::text;

/// How long it may take until the commands run: some dozens of mounts, which a broken file system among the host's may hold
/// up.
const DEADLINE: Duration = Duration::from_secs(60);

/// Starts the supervisor, and waits until the commands run. What comes with it is to be kept as long as an attached job is
/// to live.
pub async fn launch(order: &Order) -> Result<(Started, Option<ChildStdin>), Failure> {
    let failed = |what: String| Failure::new(Kind::Unavailable, format!("the job can't be launched: {what}"));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bdnfs").arg("launch").env_clear().current_dir("/");
    let directory = order.directory.clone();
    let lock = blocking(move || Ok(supervisor::lock(&directory))).await?;
    let lock = lock.map_err(|e| failed(text::line(e.as_ref())))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(lock));
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    // It has the lock alone from here on.
    drop(command);
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed("it has no pipes".to_owned()));
    };
    let mut order_line = serde_json::to_vec(order).map_err(|e| failed(e.to_string()))?;
    order_line.push(b'\n');
    let ask = async {
        input.write_all(&order_line).await?;
        input.flush().await?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).await?;
        Ok::<_, std::io::Error>(line)
    };
    let answered = tokio::time::timeout(DEADLINE, ask).await;
    let answer = match answered {
        Ok(Ok(line)) => serde_json::from_str(&line).map_err(|_| "its supervisor ended at once".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("its supervisor was not ready after {DEADLINE:?}")),
    };
    match answer {
        Ok(Answer::Started(started)) => {
            // Only so that it does not stay as a zombie: its end is noticed by all agents alike.
            tokio::spawn(async move { child.wait().await });
            Ok((started, order.attached.then_some(input)))
        }
        Ok(Answer::Failed(why)) => Err(failed(why)),
        Err(why) => {
            let _ = child.kill().await;
            Err(failed(why))
        }
    }
}

/// A supervisor that lives, whoever started it.
#[derive(Debug)]
pub struct Watched(AsyncFd<std::os::fd::OwnedFd>);

impl Watched {
    /// The supervisor of the job in `directory`; `None` when it has ended. Touches the local disk.
    pub fn find(directory: &Path, started: &Started) -> Option<Self> {
        let pid = Pid::from_raw(started.pid)?;
        let process = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        // After the process: its number was not another's meanwhile, if it still holds its lock.
        if !is_supervised(directory) {
            return None;
        }
        // SAFETY: the descriptor is owned by what is registered, and so open as long as that.
        unsafe { AsyncFd::register_with_interest(process, tokio::io::Interest::READABLE) }.map(Self).ok()
    }

    /// Waits for its end.
    pub async fn ended(&self) {
        // Readable is what a process is that has ended.
        let _ = self.0.readable().await;
    }

    /// Tells it to end, `now` or as its commands like.
    pub fn tell(&self, now: bool) {
        // Who has ended needs no word.
        let _ = pidfd_send_signal(self.0.get_ref(), if now { Signal::QUIT } else { Signal::TERM });
    }
}
