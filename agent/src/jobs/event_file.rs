//! The file in a job's directory with its events, one a line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bdnfs::cache::directory::CacheDirectory;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use crate::api::job_event::{JobEvent, MAX_KEPT_EVENTS, push_event};

/// The name of the file.
const EVENTS_FILE: &str = "events.jsonl";
/// How many lines it has at most: then those of events that are left out are removed.
const MAX_LINES: usize = 2 * MAX_KEPT_EVENTS;

/// The file with the events of a job.
#[derive(Debug)]
pub struct EventFile {
    directory: PathBuf,
    lines: usize,
}

impl EventFile {
    /// The file of a job in `directory` that has no events yet.
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), lines: 0 }
    }

    /// The file of an earlier run of a job, and the events in it. Touches the local disk.
    pub fn read(directory: &Path) -> (Self, Vec<JobEvent>) {
        let text = fs::read_to_string(directory.join(EVENTS_FILE)).unwrap_or_default();
        let mut events = Vec::new();
        // The last line may have been cut off.
        let read = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        read.for_each(|event| push_event(&mut events, event));
        (Self { directory: directory.to_owned(), lines: text.lines().count() }, events)
    }

    /// Appends the last one of `events`, which are all that are kept. Touches the local disk.
    ///
    /// # Errors
    /// The disk's own.
    pub fn append(&mut self, events: &[JobEvent]) -> io::Result<()> {
        let directory = CacheDirectory::open(&self.directory).map_err(io::Error::other)?;
        if self.lines >= MAX_LINES {
            let draft = NamedTempFile::new_in(&self.directory)?;
            draft.as_file().write_all(&lines(events)?)?;
            draft.persist(self.directory.join(EVENTS_FILE)).map_err(|e| e.error)?;
            self.lines = events.len();
            return Ok(());
        }
        let mut file = directory.file(EVENTS_FILE, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        file.write_all(&lines(&events[events.len().saturating_sub(1)..])?)?;
        self.lines += 1;
        Ok(())
    }
}

fn lines(events: &[JobEvent]) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for event in events {
        serde_json::to_writer(&mut lines, event)?;
        lines.push(b'\n');
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::api::job::JobState;

    #[test]
    fn event_file_of_many_events_stays_short_and_reads_back() {
        let home = tempfile::tempdir().unwrap();
        let (mut file, mut events) = (EventFile::new(home.path()), Vec::new());
        for number in 0..5 * MAX_KEPT_EVENTS / 2 {
            let event = JobEvent::new(DateTime::UNIX_EPOCH, JobState::Running, number.to_string());
            push_event(&mut events, event);
            file.append(&events).unwrap();
        }
        let lines = fs::read_to_string(home.path().join(EVENTS_FILE)).unwrap().lines().count();
        assert!((MAX_KEPT_EVENTS..=MAX_LINES).contains(&lines), "{lines}");
        let (read, again) = EventFile::read(home.path());
        assert!(again == events && read.lines == lines, "{} of {}", again.len(), events.len());
    }
}
