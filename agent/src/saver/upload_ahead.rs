//! Uploads ahead: large files of a checkpoint that is still being written are uploaded as soon as nobody writes them.
//!
//! Only their content gets into the mirror, where nothing of it is seen. When the whole checkpoint is saved, it is found there by
//! the versions of the files: one that was written to meanwhile has another, and is uploaded anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::task::join_error;
use bdnfs::volume::{EncodedPath, SEAL_QUIET_PERIOD, Seal, Seals};
use tokio::task::JoinHandle;

use super::save_context::SaveContext;

/// The least size of a file that is uploaded ahead, in bytes: the requests around it then cost little beside it.
const MIN_AHEAD_BYTES: u64 = 16 << 20;

/// The large files of units that are not saved.
#[derive(Debug, Default)]
pub struct AheadFiles {
    files: HashMap<EncodedPath, SeenFile>,
}

/// A file as the last scans found it.
#[derive(Debug)]
struct SeenFile {
    version: String,
    /// When a scan first found it so.
    since: Duration,
    /// Whether it was uploaded, or could not be.
    is_done: bool,
}

/// The upload of one file. Dropped, it is given up.
pub struct AheadTask {
    unit: String,
    path: EncodedPath,
    work: JoinHandle<Result<bool>>,
}

impl Drop for AheadTask {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl AheadFiles {
    /// Records what a scan found of the units `names`, and returns a file to upload that nobody has written for a while. It is the
    /// largest due file of the unit that was written last. `now` is the time of the scan, counted from any moment.
    pub fn next(&mut self, found: &Seals, names: &[String], now: Duration) -> Option<Seal> {
        let units = || names.iter().filter_map(|name| found.get(name));
        let large = |seal: &'_ Seal| {
            let files = seal.files.iter().filter(|(_, file)| file.size >= MIN_AHEAD_BYTES);
            files.map(|(path, file)| (path.clone(), file.clone())).collect::<Vec<_>>()
        };
        let mut before = std::mem::take(&mut self.files);
        for (path, file) in units().flat_map(large) {
            let same = before.remove(&path).filter(|seen| seen.version == file.version);
            let seen = same.unwrap_or(SeenFile { version: file.version, since: now, is_done: false });
            self.files.insert(path, seen);
        }
        let is_due = |path: &EncodedPath| {
            let seen = self.files.get(path);
            seen.is_some_and(|seen| !seen.is_done && now.saturating_sub(seen.since) >= SEAL_QUIET_PERIOD)
        };
        let newest =
            units().filter(|seal| seal.files.keys().any(is_due)).max_by_key(|seal| seal.written())?;
        let due = newest.files.iter().filter(|(path, _)| is_due(path));
        let (path, file) = due.max_by_key(|(_, file)| file.size)?;
        let files = [(path.clone(), file.clone())].into();
        Some(Seal { unit: newest.unit.clone(), files, ..Seal::default() })
    }

    /// Records the outcome of the upload of the file `path`: false where it has a writer.
    pub fn finish(&mut self, path: &EncodedPath, outcome: Result<bool>, now: Duration) {
        let Some(seen) = self.files.get_mut(path) else { return };
        match outcome {
            Ok(false) => seen.since = now,
            Ok(true) => seen.is_done = true,
            Err(error) => {
                tracing::info!(%error, "a file is not uploaded ahead of its checkpoint");
                seen.is_done = true;
            }
        }
    }
}

impl AheadTask {
    /// Begins to upload the only file of `part`.
    pub fn begin(context: &Arc<SaveContext>, part: Seal) -> Option<Self> {
        let (unit, path) = (part.unit.clone(), part.files.keys().next()?.clone());
        let work = tokio::task::spawn_local(Arc::clone(context).upload_ahead(part));
        Some(Self { unit, path, work })
    }

    /// The unit of the file.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The path of the file.
    pub fn path(&self) -> &EncodedPath {
        &self.path
    }

    /// Waits for its outcome: false where the file has a writer.
    pub async fn outcome(&mut self) -> Result<bool> {
        (&mut self.work).await.map_err(join_error)?
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use bdnfs::volume::{Scan, VolumeDirectory};

    use super::*;

    #[test]
    fn ahead_file_is_next_when_it_was_not_written_for_a_while() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("unit")).unwrap();
        let file = |name: &str, size: u64| {
            let file = std::fs::File::create(home.path().join("unit").join(name)).unwrap();
            file.set_len(size).unwrap();
            file
        };
        let (large, _larger) = (file("large", MIN_AHEAD_BYTES), file("larger", MIN_AHEAD_BYTES + 1));
        let _small = file("small", MIN_AHEAD_BYTES - 1);
        let seals =
            || VolumeDirectory::open(home.path()).unwrap().walk().and_then(Scan::into_seals).unwrap().0;
        let (mut ahead, names) = (AheadFiles::default(), ["unit".to_owned()]);
        let next = |ahead: &mut AheadFiles, second| {
            let part = ahead.next(&seals(), &names, Duration::from_secs(second));
            part.map(|part| part.files.into_keys().next().unwrap())
        };
        let path = |name: &str| EncodedPath(format!("unit/{name}").into_bytes());
        assert_eq!(next(&mut ahead, 0), None);
        assert_eq!(next(&mut ahead, 1), None);
        assert_eq!(next(&mut ahead, 2), Some(path("larger")));
        ahead.finish(&path("larger"), Ok(true), Duration::from_secs(2));
        assert_eq!(next(&mut ahead, 3), Some(path("large")));
        ahead.finish(&path("large"), Ok(false), Duration::from_secs(3));
        assert_eq!(next(&mut ahead, 4), None, "it has a writer");
        assert_eq!(next(&mut ahead, 5), Some(path("large")));
        large.write_all_at(b"more", 0).unwrap();
        assert_eq!(next(&mut ahead, 6), None, "it was written to");
        assert_eq!(next(&mut ahead, 8), Some(path("large")));
        assert_eq!(ahead.next(&seals(), &[], Duration::from_secs(9)), None, "it is saved");
    }
}
