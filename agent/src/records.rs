//! Records: what a restart must not forget, a small JSON file each.
//!
//! They lie in `<cache>/state/<kind>/<name>.json` and belong to the process that holds the cache's lock. One is replaced
//! whole and is on the disk before it is reported; there is nothing to recover after a crash. No record holds a secret.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::{Error, Result};
use bdnfs::source::SecretJsonError;
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, UTIME_NOW, utimensat};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::context::Context;
use crate::durable::STATE_DIRECTORY;

/// The version of what is written. A higher one is left alone.
const VERSION: u32 = 1;
/// The suffix of a record's file name.
const RECORD_SUFFIX: &str = ".json";
/// The prefix of the name of one that is being written.
const DRAFT_PREFIX: &str = ".draft-";

/// The records of one kind. All functions block on the local disk.
#[derive(Debug)]
pub struct Records<T> {
    directory: CacheDirectory,
    kind: PhantomData<fn() -> T>,
}

/// The content of a file.
#[derive(Serialize, Deserialize)]
struct RecordFile<T> {
    version: u32,
    record: T,
}

impl<T: Serialize + DeserializeOwned> Records<T> {
    /// The records of this `kind` in the cache directory `cache`, whose lock the caller holds.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn open(cache: &Path, kind: &str) -> Result<Self> {
        let below = Path::new(STATE_DIRECTORY).join(kind);
        let directory = CacheDirectory::open(cache)?.subdirectory(&below);
        let directory =
            directory.with_context(|| format!("cannot keep records in {}", cache.join(below).display()))?;
        Ok(Self { directory, kind: PhantomData })
    }

    /// Touches the directory of the records: a disk that takes no changes fails, or waits.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn touch(&self) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        utimensat(CWD, self.directory.path(), &times, AtFlags::empty()).map_err(|e| self.fault(e.into()))
    }

    /// All records with their names, in no order. Unreadable ones are logged, and stay.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the directory can't be read.
    pub fn all(&self) -> Result<Vec<(String, T)>> {
        let readable = |(name, record): (String, io::Result<T>)| match record {
            Ok(record) => Some((name, record)),
            Err(error) => {
                tracing::warn!("the record {} cannot be read: {error}", self.path(&name).display());
                None
            }
        };
        Ok(self.read_all()?.into_iter().filter_map(readable).collect())
    }

    /// All records with their names, in no order, the unreadable ones included, which stay.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the directory can't be read.
    pub fn read_all(&self) -> Result<Vec<(String, io::Result<T>)>> {
        let read = |name: String| {
            let record = read(&self.directory, &file_name(&name));
            (name, record)
        };
        Ok(self.names()?.into_iter().map(read).collect())
    }

    /// The names of all records, in no order. None of them is read.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the directory can't be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let list = || fs::read_dir(self.directory.path())?.collect::<io::Result<Vec<_>>>();
        let mut found = Vec::new();
        for entry in list().map_err(|e| self.fault(e))? {
            let path = entry.path();
            let file_name = entry.file_name();
            let Some(name) = file_name.to_str().and_then(|name| name.strip_suffix(RECORD_SUFFIX)) else {
                // A draft that a crash left: none is being written now.
                if file_name.as_encoded_bytes().starts_with(DRAFT_PREFIX.as_bytes()) {
                    let _ = fs::remove_file(&path);
                }
                continue;
            };
            found.push(name.to_owned());
        }
        Ok(found)
    }

    /// All records of this `kind` in the cache directory `cache`, for a reader that does not hold its lock: nothing is changed
    /// there. What can't be read is left out.
    pub fn peek(cache: &Path, kind: &str) -> Vec<T> {
        let below = Path::new(STATE_DIRECTORY).join(kind);
        let Ok(root) = CacheDirectory::open(cache) else { return Vec::new() };
        let names = fs::read_dir(cache.join(&below)).into_iter().flatten().flatten();
        let names = names.map(|entry| below.join(entry.file_name()));
        let is_record = |name: &PathBuf| name.to_string_lossy().ends_with(RECORD_SUFFIX);
        names.filter(is_record).filter_map(|name| read(&root, name.as_os_str()).ok()).collect()
    }

    /// The record called `name`, if it is there.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) also when it can't be read.
    pub fn get(&self, name: &str) -> Result<Option<T>> {
        match read(&self.directory, &file_name(name)) {
            Ok(record) => Ok(Some(record)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::disk(format!("cannot read the record {}", self.path(name).display()), e)),
        }
    }

    /// Writes a record, in place of what has the same `name`, which must be fit for a file name. It is on the disk when this
    /// returns.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk), [`Kind::NoSpace`](bdnfs::error::Kind::NoSpace); then the old one stands.
    pub fn put(&self, name: &str, record: &T) -> Result<()> {
        let write = || {
            let draft = self.draft(record)?;
            draft.as_file().sync_all()?;
            draft.persist(self.path(name)).map_err(|e| e.error)?;
            self.directory.sync()
        };
        write().map_err(|e| self.fault(e))
    }

    /// As [`put`](Self::put), for what need not survive a power cut: the disk is not waited for.
    ///
    /// # Errors
    /// Those of [`put`](Self::put).
    pub fn put_until_reboot(&self, name: &str, record: &T) -> Result<()> {
        let write = || self.draft(record)?.persist(self.path(name)).map(drop).map_err(|e| e.error);
        write().map_err(|e| self.fault(e))
    }

    fn draft(&self, record: &T) -> io::Result<NamedTempFile> {
        let mut draft = NamedTempFile::with_prefix_in(DRAFT_PREFIX, self.directory.path())?;
        draft.write_all(&serde_json::to_vec_pretty(&RecordFile { version: VERSION, record })?)?;
        Ok(draft)
    }

    /// Removes a record durably, if it is there.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk).
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        // A frozen disk tells that there is none, and removes none.
        if fs::symlink_metadata(&path).is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            return Ok(());
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| self.directory.sync()).map_err(|e| self.fault(e)),
        }
    }

    /// The file of the record called `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(file_name(name))
    }

    fn fault(&self, error: io::Error) -> Error {
        Error::disk(format!("cannot keep records in {}", self.directory.path().display()), error)
    }
}

/// The name of the file of the record called `name`.
fn file_name(name: &str) -> OsString {
    format!("{name}{RECORD_SUFFIX}").into()
}

fn read<T: DeserializeOwned>(directory: &CacheDirectory, name: &OsStr) -> io::Result<T> {
    decode(&io::read_to_string(directory.file(name, OFlags::RDONLY)?)?)
}

/// The record in the `text` of its file.
pub fn decode<T: DeserializeOwned>(text: &str) -> io::Result<T> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    // The version first: another one may have another shape.
    // A job's record has the values of its environment.
    let Head { version } = serde_json::from_str(text).map_err(SecretJsonError::from)?;
    if version != VERSION {
        return Err(io::Error::other(format!("its version is {version}, this program knows {VERSION}")));
    }
    Ok(serde_json::from_str::<RecordFile<T>>(text).map_err(SecretJsonError::from)?.record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_restart_and_unreadable_ones_are_skipped() {
        let cache = tempfile::tempdir().expect("directory");
        let records = Records::<Vec<u32>>::open(cache.path(), "things").expect("records");
        records.put("1", &vec![1]).expect("written");
        records.put("1", &vec![1, 2]).expect("replaced");
        records.put("2", &vec![]).expect("written");
        records.remove("2").expect("removed");
        records.remove("2").expect("gone already");
        let directory = cache.path().join("state/things");
        fs::write(directory.join("torn.json"), "{").expect("written");
        fs::write(directory.join("later.json"), r#"{"version": 2, "record": "x"}"#).expect("written");
        fs::write(directory.join(".draft-x"), "draft").expect("written");
        let again = Records::<Vec<u32>>::open(cache.path(), "things").expect("records");
        assert_eq!(again.all().expect("read"), [("1".to_owned(), vec![1, 2])]);
        assert!(directory.join("torn.json").exists() && !directory.join(".draft-x").exists());
    }
}
