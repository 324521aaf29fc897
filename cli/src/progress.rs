//! Progress on stderr: a bar on a terminal, log lines elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bdnfs::mirroring::{MirrorPhase, MirrorProgress};
use bdnfs::stage::Progress;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::{StageState, StageStatus};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::stderr_line;
use crate::text;

/// The interval at which the progress of an operation of this process is shown.
const SHOW_INTERVAL: Duration = Duration::from_millis(200);
/// The shortest time over which a rate is computed: shorter ones are mostly chance.
const MIN_RATE_INTERVAL: Duration = Duration::from_millis(200);
/// A log has a line at least this often...
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// ...and one for each tenth of the bytes.
const LOG_STEPS: u64 = 10;

/// Stages the mount `id` and shows the progress; returns when it is staged, and with `verify` verified, or has failed.
pub async fn stage(client: &Client, id: u64, verify: bool) -> Result<StageStatus, ClientError> {
    let mut staging = client.stage(id, verify).await?;
    let mut display = ProgressDisplay::new("staging", &staging.progress);
    loop {
        display.show(&staging.progress);
        match staging.state {
            StageState::Running => {}
            StageState::Done => return Ok(staging),
            StageState::Failed(failure) => return Err(ClientError::Failed(failure)),
        }
        staging = client.staging(id).await?;
    }
}

/// Shows the progress of mirroring, the operation `what`, until it is aborted.
pub async fn show_mirror_progress(what: &'static str, progress: Arc<MirrorProgress>) {
    let read = move || {
        let is_counted = matches!(progress.state(), MirrorPhase::Copying | MirrorPhase::Finishing);
        is_counted.then(|| Progress {
            files: progress.files.load(Relaxed),
            files_done: progress.files_done.load(Relaxed),
            bytes: progress.bytes.load(Relaxed),
            bytes_done: progress.bytes_done.load(Relaxed),
            bytes_found: 0,
        })
    };
    show_progress(what, read).await;
}

/// Shows the progress that `read` returns, once there is any, of the operation `what`, until it is aborted.
pub async fn show_progress(what: &'static str, read: impl Fn() -> Option<Progress>) {
    let mut display = None;
    loop {
        tokio::time::sleep(SHOW_INTERVAL).await;
        if let Some(progress) = read() {
            display.get_or_insert_with(|| ProgressDisplay::new(what, &progress)).show(&progress);
        }
    }
}

/// Awaits `work` while `display` shows its progress.
pub async fn while_shown<T>(
    display: impl Future<Output = ()> + Send + 'static,
    work: impl Future<Output = T>,
) -> T {
    let display = tokio::spawn(display);
    let outcome = work.await;
    display.abort();
    // The end of the display clears the bar.
    let _ = display.await;
    outcome
}

/// The display of progress.
pub enum ProgressDisplay {
    /// A bar on a terminal, and how many bytes were local before.
    Bar(ProgressBar, u64),
    /// Lines in a log.
    Log(ProgressLog),
}

impl ProgressDisplay {
    /// A display of the operation `what`, on stderr.
    pub fn new(what: &'static str, progress: &Progress) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Log(ProgressLog::new(what, Instant::now(), progress));
        }
        let bar = ProgressBar::with_draw_target(Some(progress.bytes), ProgressDrawTarget::stderr());
        let style = "{bar:30} {percent:>3} %  {decimal_bytes} of {decimal_total_bytes}  {decimal_bytes_per_sec}  \
                     {eta} left  {msg}";
        // The template is constant and the tests read it; a plain bar would do as well.
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar, 0)
    }

    /// Updates the display.
    pub fn show(&mut self, progress: &Progress) {
        match self {
            Self::Bar(bar, cached) => {
                bar.set_position(progress.bytes_done);
                // Bytes that were local before say nothing of the rate.
                if *cached != progress.bytes_found {
                    *cached = progress.bytes_found;
                    bar.reset_eta();
                }
                bar.set_message(format!("{} of {}", progress.files_done, text::files(progress.files)));
            }
            Self::Log(log) => {
                if let Some(line) = log.next_line(Instant::now(), progress) {
                    stderr_line!("{line}");
                }
            }
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Self::Bar(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}

/// The lines of progress in a log.
pub struct ProgressLog {
    what: &'static str,
    last: Instant,
    fetched: u64,
    step: Option<u64>,
}

impl ProgressLog {
    fn new(what: &'static str, now: Instant, progress: &Progress) -> Self {
        Self { what, last: now, fetched: fetched(progress), step: None }
    }

    /// The next line, when one is due.
    fn next_line(&mut self, now: Instant, progress: &Progress) -> Option<String> {
        let step = (progress.bytes_done * LOG_STEPS).checked_div(progress.bytes).unwrap_or(LOG_STEPS);
        let passed = now.duration_since(self.last);
        if self.step == Some(step) && passed < LOG_INTERVAL {
            return None;
        }
        let got = fetched(progress).saturating_sub(self.fetched);
        let rate = (got as f64 / passed.as_secs_f64().max(MIN_RATE_INTERVAL.as_secs_f64())) as u64;
        *self = Self { what: self.what, last: now, fetched: fetched(progress), step: Some(step) };
        Some(format!(
            "{}: {} of {} ({}), {} of {}, {}/s",
            self.what,
            text::size(progress.bytes_done),
            text::size(progress.bytes),
            text::percent(progress.bytes_done, progress.bytes),
            progress.files_done,
            text::files(progress.files),
            text::size(rate),
        ))
    }
}

/// Bytes fetched by this operation, for the rate.
fn fetched(progress: &Progress) -> u64 {
    progress.bytes_done.saturating_sub(progress.bytes_found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_log_has_a_line_per_tenth_and_per_interval() {
        let start = Instant::now();
        let at = |bytes_done| Progress { files: 2, files_done: 1, bytes: 1000, bytes_done, bytes_found: 0 };
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut log = ProgressLog::new("staging", start, &at(0));
        assert!(log.next_line(start, &at(0)).is_some(), "the first");
        assert!(log.next_line(after(1), &at(99)).is_none());
        let line = log.next_line(after(2), &at(500)).expect("a tenth has passed");
        assert_eq!(line, "staging: 500 B of 1.0 kB (50 %), 1 of 2 files, 250 B/s");
        assert!(log.next_line(after(11), &at(501)).is_none());
        assert!(log.next_line(after(12), &at(501)).is_some(), "time has passed");
    }

    #[test]
    fn progress_log_of_an_empty_stage_has_a_line() {
        let nothing = Progress::default();
        assert!(
            ProgressLog::new("staging", Instant::now(), &nothing)
                .next_line(Instant::now(), &nothing)
                .is_some()
        );
    }
}
