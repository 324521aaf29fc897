//! The signals that ask a process to end, and the one that must not end it.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The kind of shutdown that an agent is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Another agent is to come: mounts are handed over to it.
    HandOver,
    /// Everything is unmounted and stopped.
    Stop,
}

/// Has a write beyond the limit of a file's size (`ulimit -f`) fail with EFBIG, as on a full disk, and not end the process. What
/// this process executes has the default again.
pub fn survive_file_size_limit() {
    extern "C" fn ignore(_: libc::c_int) {}
    // Not SIG_IGN, which execve(2) would pass on.
    // SAFETY: the action is whole: a handler that touches nothing, an empty mask, and no flag that gives it other arguments.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGXFSZ, &raw const action, std::ptr::null_mut());
    }
}

/// Waits until an agent is asked to end: by SIGTERM, after which the next one comes, or by a person's SIGINT. SIGHUP is no
/// reason to end: a terminal that closes is not what mounts depend on. From the call on, not the first poll, none of them ends
/// the process by itself.
pub fn shutdown_request() -> impl Future<Output = io::Result<Shutdown>> {
    let caught = catch();
    async move {
        let [mut interrupt, mut terminate, _ignored] = caught?;
        tokio::select! {
            _ = interrupt.recv() => Ok(Shutdown::Stop),
            _ = terminate.recv() => Ok(Shutdown::HandOver),
        }
    }
}

/// Waits until a process that serves mounts in the foreground is asked to end: by SIGINT or SIGTERM. SIGHUP is no reason here
/// either, all the less under nohup(1). From the call on, not the first poll, none of them ends the process by itself.
pub fn stop_request() -> impl Future<Output = io::Result<()>> {
    let asked = shutdown_request();
    async move { asked.await.map(drop) }
}

/// Waits for one of them: SIGINT, SIGTERM, SIGHUP. From the call on they no longer end the process by themselves.
pub fn termination() -> impl Future<Output = io::Result<()>> {
    let asked = TerminationSignals::listen();
    async move {
        asked?.next().await;
        Ok(())
    }
}

/// Termination signals as a stream: one that arrives between two waits is not missed.
#[derive(Debug)]
pub struct TerminationSignals([Signal; 3]);

impl TerminationSignals {
    /// Catches the signals from now on: they no longer end the process by themselves.
    pub fn listen() -> io::Result<Self> {
        catch().map(Self)
    }

    /// Waits for the next one. Some that come at once may count as one.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

fn catch() -> io::Result<[Signal; 3]> {
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?])
}
