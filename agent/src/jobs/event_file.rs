//! The file in a job's directory with its events, one a line.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bdnfs::cache::directory::CacheDirectory;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use crate::api::job_event::{JobEvent, MAX_KEPT_EVENTS, push_event};

/// The name of the file.
const EVENTS_FILE: &str = "events.jsonl";
/// How much of a longer file is read, its end: more than its events have, whose texts are short.
const MAX_TAIL_BYTES: u64 = 64 << 20;
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
        let text = end_of(directory).unwrap_or_default();
        let (mut events, mut lines) = (Vec::new(), 0);
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            lines += 1;
            // The first and the last line may have been cut off.
            if let Ok(event) = serde_json::from_slice(line) {
                push_event(&mut events, event);
            }
        }
        (Self { directory: directory.to_owned(), lines }, events)
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

/// The end of the file in `directory`, which is all of it unless something else wrote to it.
fn end_of(directory: &Path) -> io::Result<Vec<u8>> {
    let directory = CacheDirectory::open(directory).map_err(io::Error::other)?;
    let mut file = directory.file(EVENTS_FILE, OFlags::RDONLY)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(MAX_TAIL_BYTES)))?;
    let mut text = Vec::new();
    file.take(MAX_TAIL_BYTES).read_to_end(&mut text)?;
    Ok(text)
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
    use std::fs;

    use chrono::DateTime;

    use super::*;
    use crate::api::job::JobState;

    #[test]
    fn event_file_that_something_else_filled_is_read_from_its_end() {
        let home = tempfile::tempdir().unwrap();
        let mut file = EventFile::new(home.path());
        let events = [JobEvent::new(DateTime::UNIX_EPOCH, JobState::Running, "kept".to_owned())];
        fs::File::create(home.path().join(EVENTS_FILE)).unwrap().set_len(1 << 40).unwrap();
        file.append(&events).unwrap();
        // What was there had no end of a line.
        file.append(&events).unwrap();
        assert_eq!(EventFile::read(home.path()).1, events);
    }

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
