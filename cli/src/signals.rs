//! The signals that ask a process to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

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
