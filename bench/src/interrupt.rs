//! Interruption: SIGINT and SIGTERM end the run where it is, and what it made is cleaned up on the way out.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

/// A signal handler can reach nothing but a global.
static ASKED: AtomicBool = AtomicBool::new(false);

/// The run was interrupted.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// From now on the signals are noted instead of ending the process.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is safe in a signal handler, and lives for ever.
        unsafe { libc::signal(signal, note as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

extern "C" fn note(_signal: libc::c_int) {
    ASKED.store(true, Ordering::Relaxed);
}

/// # Errors
/// [`Interrupted`] once a signal has come.
pub fn check() -> Result<()> {
    if ASKED.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}
