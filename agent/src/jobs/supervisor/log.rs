//! The log of a job: the end of what its commands print, in a few files.
//!
//! The file `log.<n>` begins with byte `n` of all that was printed. When it is full the next one begins, and the oldest goes.
//! A reader goes by that count, so it sees what it missed. The file `streams.<n>` beside it, which may be missing, says where the
//! output changes between stdout, with which it begins, and stderr: eight bytes for each change, little-endian, twice the number
//! of the byte, plus one for stderr.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};

use crate::api::job::{LogChunk, OutputStream};

/// The prefixes of the names of its files.
const LOG_FILE_PREFIX: &str = "log.";
const STREAMS_FILE_PREFIX: &str = "streams.";
/// The maximum length of both files together, in bytes, and the number of such that are kept: 64 MiB are days of what a training
/// job says. On a disk that is full now and then files are shorter, and more are kept.
const LOG_FILE_BYTES: u64 = 16 << 20;
const LOG_FILES_KEPT: u64 = 4;
/// The number of bytes that are read at once.
const LOG_READ_BYTES: usize = 64 << 10;
/// The bytes of a change of the stream.
const STREAM_CHANGE_BYTES: usize = 8;

/// A log that is being written.
#[derive(Debug)]
pub struct JobLog {
    directory: PathBuf,
    /// The file that is written, where it begins, how long it is, and how long its changes of the stream are.
    file: Option<File>,
    start: u64,
    len: u64,
    changes_len: u64,
    /// The stream of the last byte in it.
    stream: OutputStream,
}

impl JobLog {
    /// An empty one in `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, file: None, start: 0, len: 0, changes_len: 0, stream: OutputStream::Stdout }
    }

    /// Takes what comes from these pipes until there is no more. What can't be written is lost: a full disk must not stop a
    /// job.
    pub fn take(&mut self, stdout: File, stderr: File) {
        let mut pipes = vec![(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)];
        let mut piece = vec![0; LOG_READ_BYTES];
        while !pipes.is_empty() {
            let mut polled: Vec<_> = pipes.iter().map(|(_, pipe)| PollFd::new(pipe, PollFlags::IN)).collect();
            if let Err(error) = poll(&mut polled, None)
                && error != rustix::io::Errno::INTR
            {
                return;
            }
            let ready: Vec<_> = polled.iter().map(|polled| !polled.revents().is_empty()).collect();
            let mut ready = ready.into_iter();
            pipes.retain_mut(|(stream, pipe)| {
                !ready.next().unwrap_or(false) || self.take_piece(*stream, pipe, &mut piece)
            });
        }
    }

    /// Takes one piece from a pipe that has something, or has ended; then it returns false.
    fn take_piece(&mut self, stream: OutputStream, pipe: &mut File, piece: &mut [u8]) -> bool {
        match pipe.read(piece) {
            Ok(0) => false,
            Ok(len) => {
                self.append(stream, &piece[..len]);
                true
            }
            Err(error) => error.kind() == ErrorKind::Interrupted,
        }
    }

    fn append(&mut self, stream: OutputStream, piece: &[u8]) {
        if self.write(stream, piece).is_err() {
            // Such a file needs no block on the disk: there would be one for each piece.
            if self.file.take().is_some_and(|file| file.metadata().is_ok_and(|empty| empty.len() == 0)) {
                remove(&self.directory, self.start);
            }
            // The count goes on, so that a reader sees the gap.
            self.begin_at(self.start + self.len + piece.len() as u64);
        }
    }

    /// Begins the next file, with byte `start`.
    fn begin_at(&mut self, start: u64) {
        *self = Self { start, ..Self::new(std::mem::take(&mut self.directory)) };
    }

    fn write(&mut self, stream: OutputStream, piece: &[u8]) -> io::Result<()> {
        if self.len + self.changes_len >= LOG_FILE_BYTES {
            self.begin_at(self.start + self.len);
        }
        let is_new = self.file.is_none();
        if is_new {
            self.file = Some(File::create(log_path(&self.directory, self.start))?);
        }
        if stream != self.stream {
            // Written before the bytes, so that their reader finds it.
            let change = (self.start + self.len) << 1 | u64::from(stream == OutputStream::Stderr);
            let path = streams_path(&self.directory, self.start);
            File::options().create(true).append(true).open(path)?.write_all(&change.to_le_bytes())?;
            (self.stream, self.changes_len) = (stream, self.changes_len + STREAM_CHANGE_BYTES as u64);
        }
        if let Some(file) = &mut self.file {
            file.write_all(piece)?;
        }
        self.len += piece.len() as u64;
        if is_new {
            // Not before something is written: a full disk must not cost what is kept.
            self.remove_oldest();
        }
        Ok(())
    }

    /// Removes the files that are older than the last that are kept.
    fn remove_oldest(&self) {
        let mut newer = 0;
        for (start, len) in files(&self.directory).unwrap_or_default().into_iter().rev() {
            if newer >= (LOG_FILES_KEPT - 1) * LOG_FILE_BYTES {
                remove(&self.directory, start);
            }
            let changes = fs::metadata(streams_path(&self.directory, start)).map_or(0, |file| file.len());
            newer += len + changes;
        }
    }
}

/// Removes the files of a log that begin with byte `start`.
fn remove(directory: &Path, start: u64) {
    let _ = fs::remove_file(streams_path(directory, start));
    let _ = fs::remove_file(log_path(directory, start));
}

fn log_path(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{LOG_FILE_PREFIX}{start}"))
}

fn streams_path(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{STREAMS_FILE_PREFIX}{start}"))
}

/// The files of a log, oldest first: where each begins, and its length.
fn files(directory: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let start =
            entry.file_name().to_str().and_then(|name| name.strip_prefix(LOG_FILE_PREFIX)?.parse().ok());
        if let Some(start) = start {
            found.push((start, entry.metadata()?.len()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// At most `most` bytes of the log in `directory`, all of one stream, from byte `from` on or from the first one behind it that
/// is kept.
pub fn read(directory: &Path, from: u64, most: usize) -> io::Result<LogChunk> {
    for (start, len) in files(directory)? {
        if start + len <= from {
            continue;
        }
        let from = from.max(start);
        let mut file = match File::open(log_path(directory, start)) {
            // The file was just removed as too old; the next one exists.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            file => file?,
        };
        file.seek(SeekFrom::Start(from - start))?;
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes)?;
        let (stream, end) = stream_at(&streams_path(directory, start), from)?;
        bytes.truncate(usize::try_from(end - from).unwrap_or(usize::MAX));
        return Ok(LogChunk { from, stream, bytes });
    }
    Ok(LogChunk { from, ..LogChunk::default() })
}

/// The stream of the byte `at`, and the byte with which another one follows. Read after the bytes themselves. An older log tells
/// nothing of streams.
fn stream_at(path: &Path, at: u64) -> io::Result<(OutputStream, u64)> {
    let changes = match fs::read(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        changes => changes?,
    };
    let (mut stream, mut end) = (OutputStream::Stdout, u64::MAX);
    for change in changes.chunks_exact(STREAM_CHANGE_BYTES) {
        let change = change.try_into().map_or(0, u64::from_le_bytes);
        if change >> 1 > at {
            end = change >> 1;
            break;
        }
        stream = if change & 1 == 1 { OutputStream::Stderr } else { OutputStream::Stdout };
    }
    Ok((stream, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::tests::{fill, mount_small_disk};

    const OUT: OutputStream = OutputStream::Stdout;
    const ERR: OutputStream = OutputStream::Stderr;

    fn chunk(from: u64, stream: OutputStream, bytes: &[u8]) -> LogChunk {
        LogChunk { from, stream, bytes: bytes.to_vec() }
    }

    #[test]
    fn job_log_beyond_its_size_keeps_the_end_and_its_offset() {
        let dir = tempfile::tempdir().expect("directory");
        assert_eq!(read(dir.path(), 0, 10).expect("read"), LogChunk::default());
        let mut log = JobLog::new(dir.path().to_owned());
        log.append(OUT, b"hello ");
        log.append(OUT, b"world");
        assert_eq!(read(dir.path(), 3, 5).expect("read"), chunk(3, OUT, b"lo wo"));
        assert_eq!(read(dir.path(), 11, 5).expect("read").bytes, b"");
        let all = (LOG_FILES_KEPT + 2) * LOG_FILE_BYTES;
        let piece = [b'x'; LOG_READ_BYTES];
        for number in 0..all / LOG_READ_BYTES as u64 {
            log.append(if number % 2 == 0 { OUT } else { ERR }, &piece);
        }
        let files = files(dir.path()).expect("read");
        let (lost, end) = (files[0].0, files.iter().map(|(start, len)| start + len).max().expect("some"));
        assert_eq!(end, 11 + all);
        assert!(
            lost > 0 && end - lost <= LOG_FILES_KEPT * (LOG_FILE_BYTES + LOG_READ_BYTES as u64),
            "{lost} of {end}"
        );
        let first = read(dir.path(), 0, 7).expect("read");
        assert_eq!((first.from, &first.bytes[..]), (lost, &b"xxxxxxx"[..]));
        let names = fs::read_dir(dir.path()).expect("read").count();
        assert!(names as u64 <= 2 * LOG_FILES_KEPT, "{names} files");
    }

    #[test]
    fn job_log_on_a_full_disk_keeps_what_it_has_and_goes_on_when_there_is_space() {
        let dir = tempfile::tempdir().expect("directory");
        if !mount_small_disk(dir.path()) {
            return;
        }
        let mut log = JobLog::new(dir.path().to_owned());
        log.append(OUT, b"before");
        fill(dir.path());
        for _ in 0..6 {
            log.append(ERR, &[b'x'; 2 * 4096]);
        }
        assert_eq!(read(dir.path(), 0, 6).expect("read"), chunk(0, OUT, b"before"));
        fs::remove_file(dir.path().join("others")).expect("removed");
        log.append(ERR, b"after");
        let end = 6 + 6 * 2 * 4096;
        assert_eq!(read(dir.path(), end, 99).expect("read"), chunk(end, ERR, b"after"));
        assert_eq!(read(dir.path(), 0, 6).expect("read"), chunk(0, OUT, b"before"));
        assert_eq!(files(dir.path()).expect("read").len(), 2);
    }

    #[test]
    fn job_log_of_two_streams_returns_the_stream_of_each_byte() {
        let dir = tempfile::tempdir().expect("directory");
        let mut log = JobLog::new(dir.path().to_owned());
        for (stream, text) in [(ERR, "one"), (ERR, "two"), (OUT, "three"), (ERR, "four")] {
            log.append(stream, text.as_bytes());
        }
        assert_eq!(read(dir.path(), 0, 99).expect("read"), chunk(0, ERR, b"onetwo"));
        assert_eq!(read(dir.path(), 4, 1).expect("read"), chunk(4, ERR, b"w"));
        assert_eq!(read(dir.path(), 6, 99).expect("read"), chunk(6, OUT, b"three"));
        assert_eq!(read(dir.path(), 11, 99).expect("read"), chunk(11, ERR, b"four"));
        // A log that an older supervisor wrote.
        fs::remove_file(streams_path(dir.path(), 0)).expect("removed");
        assert_eq!(read(dir.path(), 0, 99).expect("read"), chunk(0, OUT, b"onetwothreefour"));
    }
}
