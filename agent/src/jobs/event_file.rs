//! The file in a job's directory with its events, one a line.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::cache::directory::CacheDirectory;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use tempfile::NamedTempFile;
use tokio::runtime::Handle;

use crate::api::job_event::{JobEvent, MAX_KEPT_EVENTS, push_event};

/// The name of the file.
const EVENTS_FILE: &str = "events.jsonl";
/// The length of the end of a longer file that is read: more than its events have, whose texts are short.
const MAX_TAIL_BYTES: u64 = 64 << 20;
/// The maximum number of lines: beyond it, those of events that are left out are removed.
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

    /// Appends `events`. Touches the local disk.
    ///
    /// # Errors
    /// The disk's own.
    pub fn append(&mut self, events: &[JobEvent]) -> io::Result<()> {
        let directory = CacheDirectory::open(&self.directory).map_err(io::Error::other)?;
        if self.lines + events.len() > MAX_LINES {
            let (_, mut kept) = Self::read(&self.directory);
            events.iter().for_each(|event| push_event(&mut kept, event.clone()));
            let draft = NamedTempFile::new_in(&self.directory)?;
            draft.as_file().write_all(&lines(&kept)?)?;
            draft.persist(self.directory.join(EVENTS_FILE)).map_err(|e| e.error)?;
            self.lines = kept.len();
            return Ok(());
        }
        let mut file = directory.file(EVENTS_FILE, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        file.write_all(&lines(events)?)?;
        self.lines += events.len();
        Ok(())
    }
}

/// Writes the events of a job to their file in the background: a disk that hangs keeps nobody waiting who adds one.
#[derive(Debug)]
pub struct EventWriter {
    file: Mutex<EventFile>,
    queue: Mutex<EventQueue>,
}

/// The events that are not written yet.
#[derive(Debug, Default)]
struct EventQueue {
    /// As many as are kept, at most.
    events: Vec<JobEvent>,
    /// Whether a thread is to write them.
    has_thread: bool,
}

impl EventWriter {
    /// The writer of `file`.
    pub fn new(file: EventFile) -> Self {
        Self { file: Mutex::new(file), queue: Mutex::default() }
    }

    /// Adds an event, which is written on a thread that may wait; without a runtime on this one.
    pub fn add(self: &Arc<Self>, event: JobEvent) {
        let mut queue = self.queue.lock();
        push_event(&mut queue.events, event);
        if mem::replace(&mut queue.has_thread, true) {
            return;
        }
        drop(queue);
        let writer = Arc::clone(self);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || writer.write_all())),
            Err(_) => writer.write_all(),
        }
    }

    /// Writes events as long as there are any.
    fn write_all(&self) {
        loop {
            self.flush();
            let mut queue = self.queue.lock();
            if queue.events.is_empty() {
                queue.has_thread = false;
                return;
            }
        }
    }

    /// Writes all events that were added. Touches the local disk.
    pub fn flush(&self) {
        // First, so that the lines are in order.
        let mut file = self.file.lock();
        let events = mem::take(&mut self.queue.lock().events);
        if events.is_empty() {
            return;
        }
        if let Err(error) = file.append(&events) {
            tracing::warn!("cannot write events of the job in {}: {error}", file.directory.display());
        }
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
    use crate::api::job::{JobState, event_count};

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
            push_event(&mut events, event.clone());
            file.append(&[event]).unwrap();
        }
        let lines = fs::read_to_string(home.path().join(EVENTS_FILE)).unwrap().lines().count();
        assert!((MAX_KEPT_EVENTS..=MAX_LINES).contains(&lines), "{lines}");
        let (read, again) = EventFile::read(home.path());
        assert!(again == events && read.lines == lines, "{} of {}", again.len(), events.len());
    }

    #[tokio::test]
    async fn event_writer_of_a_disk_that_hangs_keeps_nobody_waiting_and_loses_no_order() {
        let home = tempfile::tempdir().unwrap();
        let writer = Arc::new(EventWriter::new(EventFile::new(home.path())));
        let event =
            |number: usize| JobEvent::new(DateTime::UNIX_EPOCH, JobState::Running, number.to_string());
        let all = 3 * MAX_KEPT_EVENTS;
        // As long as it hangs.
        let written = writer.file.lock();
        (0..all).for_each(|number| writer.add(event(number)));
        assert_eq!(EventFile::read(home.path()).1, []);
        assert_eq!(writer.queue.lock().events.len(), MAX_KEPT_EVENTS, "it takes memory without end");
        drop(written);
        writer.add(event(all));
        while writer.queue.lock().has_thread {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let (_, read) = EventFile::read(home.path());
        assert_eq!(event_count(&read), all + 1);
        let numbers: Vec<usize> = read.iter().map(|event| event.text.parse().unwrap()).collect();
        assert!(numbers.is_sorted() && numbers.last() == Some(&all), "{numbers:?}");
    }
}
