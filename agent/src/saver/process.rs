//! The saver process of a job, as the agent sees it.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::task::blocking;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::SAVER_LOCK_FILE;
use super::order::SaveOrder;
use crate::context::Context;
use crate::volumes;

/// The file in a volume that its saver prints to: it outlives the reader of the agent's output.
const SAVER_LOG_FILE: &str = "saver.log";
/// The time in which a saver must begin: it opens a file or two.
const SAVER_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the saver of the `volume` lives, whichever agent started it.
pub fn has_saver(volume: &Path) -> bool {
    volumes::is_locked(&volume.join(SAVER_LOCK_FILE))
}

/// Starts a saver, and waits until it has begun. It outlives this process.
///
/// # Errors
/// [`Kind::Unavailable`]; [`Kind::Disk`], [`Kind::NoSpace`].
pub async fn start(order: &SaveOrder) -> Result<()> {
    let failed = |why: String| Error::new(Kind::Unavailable, format!("the saver cannot be started: {why}"));
    let mut command = Command::new("/proc/self/exe");
    command.arg0("bdnfs").arg("save").env_clear().current_dir("/");
    if let Some(level) = std::env::var_os("BDNFS_LOG") {
        command.env("BDNFS_LOG", level);
    }
    let log = order.volume.join(SAVER_LOG_FILE);
    let path = log.clone();
    let file =
        blocking(move || File::create(&path).with_context(|| format!("cannot create {}", path.display())));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::from(file.await?));
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(failed("it has no pipes".to_owned()));
    };
    let ask = async {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        input.write_all(&line).await?;
        drop(input);
        let mut answer = String::new();
        BufReader::new(output).read_line(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(SAVER_START_TIMEOUT, ask).await;
    // This only reaps the zombie.
    tokio::spawn(async move { child.wait().await });
    match answer {
        Ok(Ok(answer)) if answer.starts_with("ready") => Ok(()),
        Ok(Ok(_)) => Err(failed(format!("it ended at once, and {} says why", log.display()))),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("it was not ready after {SAVER_START_TIMEOUT:?}"))),
    }
}
