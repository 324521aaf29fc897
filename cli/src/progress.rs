//! Progress of a stage: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use bdnfs::stage::Progress;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::{StageState, StageStatus};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text;

/// The least time that a rate is told of: shorter ones are mostly chance.
const LEAST: Duration = Duration::from_millis(200);
/// In a log, a line at least this often...
const LINE_EVERY: Duration = Duration::from_secs(10);
/// ...and one for each tenth of the way.
const LINE_STEPS: u64 = 10;

/// Makes all of mount `id` local, showing how far that is on stderr; returns when it is done, or can't be.
pub async fn stage(client: &Client, id: u64) -> Result<StageStatus, ClientError> {
    let mut staging = client.stage(id).await?;
    let mut display = Display::new("staging", &staging.progress);
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

/// What shows it.
pub enum Display {
    /// On a terminal, with what was found to be here already.
    Bar(ProgressBar, u64),
    /// Elsewhere.
    Lines(Lines),
}

impl Display {
    /// Shows `what` is done, on stderr.
    pub fn new(what: &'static str, progress: &Progress) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines(Lines::new(what, Instant::now(), progress));
        }
        let bar = ProgressBar::with_draw_target(Some(progress.bytes), ProgressDrawTarget::stderr());
        let style = "{bar:30} {percent:>3} %  {decimal_bytes} of {decimal_total_bytes}  {decimal_bytes_per_sec}  \
                     {eta} left  {msg}";
        // The template is constant and the tests read it; a plain bar would do as well.
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar, 0)
    }

    /// Shows how far it is.
    pub fn show(&mut self, progress: &Progress) {
        match self {
            Self::Bar(bar, found) => {
                bar.set_position(progress.bytes_done);
                // What is found to be here already says nothing of the rate.
                if *found != progress.bytes_found {
                    *found = progress.bytes_found;
                    bar.reset_eta();
                }
                bar.set_message(format!("{} of {}", progress.files_done, text::files(progress.files)));
            }
            Self::Lines(lines) => {
                if let Some(line) = lines.due(Instant::now(), progress) {
                    eprintln!("{line}");
                }
            }
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Self::Bar(bar, _) = self {
            bar.finish_and_clear();
        }
    }
}

/// When a line is due, and what it says.
pub struct Lines {
    what: &'static str,
    last: Instant,
    fetched: u64,
    step: Option<u64>,
}

impl Lines {
    fn new(what: &'static str, now: Instant, progress: &Progress) -> Self {
        Self { what, last: now, fetched: fetched(progress), step: None }
    }

    fn due(&mut self, now: Instant, progress: &Progress) -> Option<String> {
        let step = (progress.bytes_done * LINE_STEPS).checked_div(progress.bytes).unwrap_or(LINE_STEPS);
        let passed = now.duration_since(self.last);
        if self.step == Some(step) && passed < LINE_EVERY {
            return None;
        }
        let got = fetched(progress).saturating_sub(self.fetched);
        let rate = (got as f64 / passed.as_secs_f64().max(LEAST.as_secs_f64())) as u64;
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

/// What was not here before: the part that a rate can be told of.
fn fetched(progress: &Progress) -> u64 {
    progress.bytes_done.saturating_sub(progress.bytes_found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_by_tenths_and_by_time() {
        let start = Instant::now();
        let at = |bytes_done| Progress { files: 2, files_done: 1, bytes: 1000, bytes_done, bytes_found: 0 };
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut lines = Lines::new("staging", start, &at(0));
        assert!(lines.due(start, &at(0)).is_some(), "the first");
        assert!(lines.due(after(1), &at(99)).is_none());
        let line = lines.due(after(2), &at(500)).expect("a tenth has passed");
        assert_eq!(line, "staging: 500 B of 1.0 kB (50 %), 1 of 2 files, 250 B/s");
        assert!(lines.due(after(11), &at(501)).is_none());
        assert!(lines.due(after(12), &at(501)).is_some(), "time has passed");
    }

    #[test]
    fn an_empty_stage_is_told_too() {
        let nothing = Progress::default();
        assert!(Lines::new("staging", Instant::now(), &nothing).due(Instant::now(), &nothing).is_some());
    }
}
