//! The log of a job: the end of what its commands print, in a few files.
//!
//! The file `log.<n>` begins with byte `n` of all that was printed. When it is full the next one begins, and the oldest goes.
//! A reader goes by that count, so it sees what it missed.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::api::job::LogChunk;

/// The prefix of the names of its files.
const PREFIX: &str = "log.";
/// How long a file may become, in bytes, and how many are kept: 64 MiB are days of what a training job says.
const FILE_BYTES: u64 = 16 << 20;
const FILES_KEPT: usize = 4;
/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// A log that is being written.
#[derive(Debug)]
pub struct JobLog {
    directory: PathBuf,
    /// The file that is written, where it begins, and how long it is.
    file: Option<File>,
    start: u64,
    len: u64,
}

impl JobLog {
    /// An empty one in `directory`.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, file: None, start: 0, len: 0 }
    }

    /// Takes what comes until there is no more. What can't be written is lost: a full disk must not stop a job.
    pub fn take(&mut self, mut from: impl Read) {
        let mut piece = vec![0; READ_BYTES];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return,
                Ok(len) => {
                    if self.write(&piece[..len]).is_err() {
                        // The count goes on, so that a reader sees the gap.
                        (self.start, self.len, self.file) = (self.start + self.len + len as u64, 0, None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        if self.len >= FILE_BYTES {
            (self.start, self.len, self.file) = (self.start + self.len, 0, None);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let path = self.directory.join(format!("{PREFIX}{}", self.start));
                let mut options = File::options();
                options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
                let file = options.open(path)?;
                let files = files(&self.directory)?;
                for (start, _) in files.iter().rev().skip(FILES_KEPT) {
                    let _ = fs::remove_file(self.directory.join(format!("{PREFIX}{start}")));
                }
                self.file.insert(file)
            }
        };
        file.write_all(piece)?;
        self.len += piece.len() as u64;
        Ok(())
    }
}

/// The files of a log, oldest first: where each begins, and its length.
fn files(directory: &Path) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let start = entry.file_name().to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        if let Some(start) = start {
            found.push((start, entry.metadata()?.len()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// At most `most` bytes of the log in `directory`, from byte `from` on or from the first one behind it that is kept.
pub fn read(directory: &Path, from: u64, most: usize) -> io::Result<LogChunk> {
    for (start, len) in files(directory)? {
        if start + len <= from {
            continue;
        }
        let from = from.max(start);
        let mut file = match File::open(directory.join(format!("{PREFIX}{start}"))) {
            // It has become too old just now; the next one is there.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        file.seek(SeekFrom::Start(from - start))?;
        let mut bytes = Vec::new();
        file.take(most as u64).read_to_end(&mut bytes)?;
        return Ok(LogChunk { from, bytes });
    }
    Ok(LogChunk { from, bytes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_keeps_the_end_and_its_offset() {
        let dir = tempfile::tempdir().expect("directory");
        assert_eq!(read(dir.path(), 0, 10).expect("read"), LogChunk::default());
        let mut log = JobLog::new(dir.path().to_owned());
        log.take(&b"hello "[..]);
        log.take(&b"world"[..]);
        assert_eq!(read(dir.path(), 3, 5).expect("read"), LogChunk { from: 3, bytes: b"lo wo".to_vec() });
        assert_eq!(read(dir.path(), 11, 5).expect("read").bytes, b"");
        let all = (FILES_KEPT as u64 + 2) * FILE_BYTES;
        log.take(io::repeat(b'x').take(all));
        let files = files(dir.path()).expect("read");
        let (lost, end) = (files[0].0, files.iter().map(|(start, len)| start + len).max().expect("some"));
        assert_eq!(end, 11 + all);
        assert!(
            lost > 0 && end - lost <= FILES_KEPT as u64 * (FILE_BYTES + READ_BYTES as u64),
            "{lost} of {end}"
        );
        let first = read(dir.path(), 0, 7).expect("read");
        assert_eq!((first.from, &first.bytes[..]), (lost, &b"xxxxxxx"[..]));
    }
}
