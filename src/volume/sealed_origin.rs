//! A sealed unit as an origin: only what was sealed, and only in the sealed versions.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::home_tree::{FormerFile, FormerFiles, QuietTree};
use super::seal::{EncodedPath, SealedUnit};
use super::walk::ScannedFile;
use crate::blob::Blob;
use crate::block::BLOCK;
use crate::error::{Error, Result};
use crate::manifest::{ListedFile, Listing};
use crate::origin::changed;
use crate::task::blocking;
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// The number of pieces of a file that are read at once: one while the consumer is busy with the other.
const PIECES_AHEAD: usize = 2;

/// A sealed unit that is published as `name`.
#[derive(Debug)]
pub struct SealedOrigin {
    name: String,
    unit: Arc<SealedUnit>,
    /// The files that are listed as an earlier snapshot has them.
    former: FormerFiles,
    /// Whether it may have no file: an earlier snapshot has some.
    may_be_empty: bool,
    pace: Option<Arc<ReadPace>>,
}

/// Spreads reads over time.
#[derive(Debug)]
struct ReadPace {
    bytes_per_second: u64,
    /// When the next read may begin.
    next: Mutex<Instant>,
}

impl ReadPace {
    /// Waits until so many bytes may be read.
    async fn wait(&self, bytes: u64) {
        let turn = {
            let mut next = self.next.lock();
            let turn = (*next).max(Instant::now());
            *next = turn + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            turn
        };
        sleep_until(turn).await;
    }
}

impl SealedOrigin {
    /// The `unit`, to be published as `name`, of which so many bytes a second are read at most.
    pub fn new(name: String, unit: Arc<SealedUnit>, bytes_per_second: Option<u64>) -> Self {
        let pace = |rate: u64| ReadPace { bytes_per_second: rate.max(1), next: Mutex::new(Instant::now()) };
        let pace = bytes_per_second.map(pace).map(Arc::new);
        Self { name, unit, former: FormerFiles::new(), may_be_empty: false, pace }
    }

    /// The tree `quiet`, to be published as `name` after the snapshot that its former files are of; so many bytes a second are read
    /// at most.
    pub fn after(name: String, quiet: QuietTree, bytes_per_second: Option<u64>) -> Self {
        Self { former: quiet.former, may_be_empty: true, ..Self::new(name, quiet.unit, bytes_per_second) }
    }
}

impl Tier for SealedOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        let (unit, path, pace) = (Arc::clone(&self.unit), blob.path.clone(), self.pace.clone());
        async move {
            let opened = blocking(move || OpenFile::open(&unit, &path)).await?;
            let opened = Arc::new(opened);
            let pieces = range.clone().step_by(BLOCK as usize).map(move |at| at..(at + BLOCK).min(range.end));
            // Blocks begin where ranges do: readers ask for whole extents.
            let pieces = stream::iter(pieces).map(move |piece| {
                let (opened, pace) = (Arc::clone(&opened), pace.clone());
                async move {
                    if let Some(pace) = pace {
                        pace.wait(piece.end - piece.start).await;
                    }
                    blocking(move || opened.read(piece)).await
                }
            });
            Ok(Some(pieces.buffered(PIECES_AHEAD).boxed()))
        }
        .boxed()
    }
}

impl Origin for SealedOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        if self.may_be_empty {
            listing.allow_empty();
        }
        let seal = &self.unit.seal;
        for (EncodedPath(path), at) in &seal.directories {
            listing.directory(seal.below(path), *at);
        }
        for (EncodedPath(path), (target, at)) in &seal.links {
            listing.symlink(seal.below(path), &target.0, *at);
        }
        for (path, FormerFile { size, mtime, executable, version }) in &self.former {
            let (size, mtime, executable) = (*size, *mtime, *executable);
            listing.file(ListedFile { path, size, mtime, executable, version, sha256: None });
        }
        for (EncodedPath(path), file) in &seal.files {
            if self.former.contains_key(path) {
                continue;
            }
            listing.file(ListedFile {
                path: seal.below(path),
                size: file.size,
                mtime: file.mtime,
                executable: file.executable,
                version: file.version.as_bytes(),
                sha256: None,
            });
        }
        async { Ok(()) }.boxed()
    }
}

/// A file of a sealed unit that is being read.
struct OpenFile {
    file: Arc<OwnedFd>,
    sealed: ScannedFile,
    /// The name in messages.
    name: String,
}

impl OpenFile {
    /// Opens the file that is called `below` in the unit, unless it is open already.
    fn open(unit: &SealedUnit, below: &[u8]) -> Result<Self> {
        let sealed = unit.seal.files.get_key_value(&unit.seal.path_of(below));
        let name = unit.directory.name(below);
        let gone = || changed(&name, "it is gone");
        let (EncodedPath(path), sealed) = sealed.ok_or_else(gone)?;
        let file = match unit.held.get(path) {
            Some(held) => Arc::clone(held),
            None => Arc::new(unit.directory.open_file(path)?.ok_or_else(gone)?),
        };
        let opened = Self { file, sealed: sealed.clone(), name: unit.directory.name(path) };
        opened.check()?;
        Ok(opened)
    }

    /// Reads one piece. The version is checked before and after, so what was read in between is of it.
    fn read(&self, piece: Range<u64>) -> Result<Bytes> {
        self.check()?;
        let len = (piece.end - piece.start) as usize;
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let at = piece.start + bytes.len() as u64;
            match rustix::io::pread(&*self.file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(changed(&self.name, "it is shorter now")),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(self.fault(error)),
            }
        }
        self.check()?;
        // The allocator may have given more room than was asked for.
        bytes.truncate(len);
        Ok(bytes.into())
    }

    fn check(&self) -> Result<()> {
        let stat = rustix::fs::fstat(&*self.file).map_err(|e| self.fault(e))?;
        let now = ScannedFile::new(&stat);
        // The deletion of a file changes its ctime, and nothing else.
        let is_deleted = stat.st_nlink == 0;
        let same_content = (now.size, now.mtime) == (self.sealed.size, self.sealed.mtime);
        if now.version == self.sealed.version || (is_deleted && same_content) {
            return Ok(());
        }
        Err(changed(&self.name, "it was written to or replaced"))
    }

    fn fault(&self, error: Errno) -> Error {
        Error::disk(format!("cannot read {}", self.name), error.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::volume::{Scan, Seal, SealOutcome, VolumeDirectory, ignore_lease_signal};

    /// A sealed unit of one file, and the directory around it.
    fn sealed() -> (tempfile::TempDir, Arc<SealedUnit>) {
        ignore_lease_signal();
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir(home.path().join("unit")).expect("a directory");
        fs::write(home.path().join("unit/file"), vec![7; 3 * BLOCK as usize / 2]).expect("a file");
        let directory = Arc::new(VolumeDirectory::open(home.path()).expect("a directory"));
        let SealOutcome::Sealed(unit) = found(&directory).apply(&directory, false).expect("no fault") else {
            panic!("nobody writes")
        };
        (home, Arc::new(unit))
    }

    /// The unit as a walk finds it.
    fn found(directory: &VolumeDirectory) -> Seal {
        let (mut units, _) = directory.walk().and_then(Scan::into_seals).expect("a walk");
        units.remove("unit").expect("it is there")
    }

    fn read(unit: &Arc<SealedUnit>) -> Result<Vec<u8>> {
        let opened = OpenFile::open(unit, b"file")?;
        Ok([opened.read(0..BLOCK)?, opened.read(BLOCK..3 * BLOCK / 2)?].concat())
    }

    #[test]
    fn sealed_unit_that_is_deleted_is_read_to_its_end() {
        let (home, unit) = sealed();
        fs::remove_dir_all(home.path().join("unit")).expect("deleted");
        assert_eq!(read(&unit).expect("held open"), vec![7; 3 * BLOCK as usize / 2]);
    }

    #[test]
    fn sealed_unit_that_is_written_is_read_no_more() {
        let (home, unit) = sealed();
        let path = home.path().join("unit/file");
        fs::File::options().write(true).open(&path).and_then(|file| file.set_len(5)).expect("written");
        assert!(read(&unit).is_err());
        let (home, unit) = sealed();
        // The same size and the same bytes, at another time.
        fs::write(home.path().join("unit/file"), vec![7; 3 * BLOCK as usize / 2]).expect("written");
        fs::remove_file(home.path().join("unit/file")).expect("deleted");
        assert!(read(&unit).is_err());
    }

    #[test]
    fn seal_with_a_writer_or_of_another_version_is_refused() {
        let (home, unit) = sealed();
        let path = home.path().join("unit/file");
        let writer = fs::File::options().append(true).open(&path).expect("a file");
        let again = |unit: &SealedUnit| unit.seal.clone().apply(&unit.directory, false).expect("no fault");
        assert!(matches!(again(&unit), SealOutcome::Busy));
        drop(writer);
        assert!(matches!(again(&unit), SealOutcome::Sealed(_)));
        fs::write(&path, "other").expect("written");
        assert!(matches!(again(&unit), SealOutcome::Busy));
        let (survivors, torn) = unit.seal.survivors(found(&unit.directory));
        assert_eq!((survivors.files.len(), torn), (0, vec![b"unit/file".to_vec()]));
        let text = serde_json::to_string(&unit.seal).expect("JSON");
        assert_eq!(serde_json::from_str::<Seal>(&text).expect("a seal"), unit.seal);
    }

    #[tokio::test(start_paused = true)]
    async fn sealed_origin_with_a_rate_spreads_its_reads() {
        let (_home, unit) = sealed();
        let origin = SealedOrigin::new("bt://p@j/unit".into(), unit, Some(BLOCK));
        let (begin, pace) = (Instant::now(), origin.pace.clone().expect("a rate"));
        for _ in 0..3 {
            pace.wait(BLOCK).await;
        }
        assert_eq!(begin.elapsed().as_secs(), 2);
    }
}
