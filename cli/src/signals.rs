//! The signals that ask a process to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// How an agent may be asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Another one is to come: mounts are left to it.
    Leave,
    /// Everything is to be taken down.
    Stop,
}

/// Waits until an agent is asked to end: by SIGTERM, after which the next one comes, or by a person's SIGINT. SIGHUP is no
/// reason to end: a terminal that closes is not what mounts depend on.
pub async fn agent_asked_to_end() -> io::Result<End> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let _ignored = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => Ok(End::Stop),
        _ = terminate.recv() => Ok(End::Leave),
    }
}

/// Waits for one of them: SIGINT, SIGTERM, SIGHUP. From the first poll on they no longer end the process by themselves.
pub async fn asked_to_end() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
