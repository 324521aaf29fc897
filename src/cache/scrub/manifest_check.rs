//! Manifests: those in the cache are held against their names, and those that snapshots in use have in memory as well.
//!
//! A damaged one is written again from memory where a snapshot has it there as it was. Else it goes by its name, so that the next
//! mount fetches it again. What is damaged in memory has been shown, so that its mounts have to be renewed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, OFlags, Stat};
use tempfile::NamedTempFile;

use super::{ScrubPace, ScrubTotals, cancelled};
use crate::block::BLOCK;
use crate::buffer;
use crate::cache::{Cache, verification_time};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::Manifest;

/// The number of bytes of a manifest that are read for its header, which is shorter.
const MANIFEST_START_BYTES: usize = 4096;

/// The outcome of the check of one manifest.
#[derive(Debug, Default)]
struct ManifestVerdict {
    /// The bytes that were read on the disk.
    bytes: u64,
    /// The damage on the disk, and what was done about it.
    damaged: Option<String>,
    /// The mounts that have to be renewed.
    to_renew: Option<String>,
}

/// Reads every manifest of a tenant that was not verified within `period`, in seconds since 1970, where one is given; and those in
/// use that are not on the disk.
///
/// # Errors
/// [`Kind::Disk`]; [`Kind::Interrupted`] where `pace` says so.
pub fn verify_manifests(
    cache: &Cache,
    period: Option<&RangeInclusive<i64>>,
    pace: ScrubPace<'_>,
) -> Result<ScrubTotals> {
    let directory = cache.layout().manifest_directory();
    let list = || std::fs::read_dir(directory.path())?.collect::<io::Result<Vec<_>>>();
    let entries = list().map_err(|e| Error::disk("cannot read the manifests of the cache", e))?;
    let mut ids = cache.partition.open_manifests.ids().into_iter().collect::<BTreeSet<Digest>>();
    for entry in entries {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<Digest>().ok()) else {
            continue;
        };
        if is_due(cache, &id, period) {
            ids.insert(id);
        } else {
            ids.remove(&id);
        }
    }
    verify_each(cache, ids, pace)
}

/// Reads the manifest `id`, as [`verify_manifests`] does, if it was not verified within `period`.
///
/// # Errors
/// Those of [`verify_manifests`].
pub fn verify_manifest(
    cache: &Cache,
    id: &Digest,
    period: &RangeInclusive<i64>,
    pace: ScrubPace<'_>,
) -> Result<ScrubTotals> {
    verify_each(cache, is_due(cache, id, Some(period)).then_some(*id), pace)
}

fn is_due(cache: &Cache, id: &Digest, period: Option<&RangeInclusive<i64>>) -> bool {
    let Some(period) = period else { return true };
    let directory = cache.layout().manifest_directory().descriptor();
    let stat = rustix::fs::statat(directory, id.to_string(), AtFlags::SYMLINK_NOFOLLOW);
    let verified = stat.ok().as_ref().and_then(verification_time::time_of);
    verified.is_none_or(|verified| !period.contains(&verified))
}

fn verify_each(
    cache: &Cache,
    ids: impl IntoIterator<Item = Digest>,
    pace: ScrubPace<'_>,
) -> Result<ScrubTotals> {
    let (mut totals, mut failed) = (ScrubTotals::default(), None);
    for id in ids {
        match check(cache, &id, pace) {
            Ok(verdict) => {
                totals.bytes += verdict.bytes;
                totals.damaged_manifests.extend(verdict.damaged);
                totals.mounts_to_renew.extend(verdict.to_renew);
            }
            Err(error) if error.kind() == Kind::Interrupted => return Err(error),
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    failed.map_or(Ok(totals), Err)
}

/// Checks one manifest, and repairs or removes what is damaged on the disk.
fn check(cache: &Cache, id: &Digest, pace: ScrubPace<'_>) -> Result<ManifestVerdict> {
    let started = cache.now();
    let file = match cache.layout().open_manifest(id) {
        Ok(file) => Some(file),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(%error, manifest = %id, "a manifest of the cache cannot be opened");
            }
            None
        }
    };
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for manifest in cache.partition.open_manifests.of(id) {
        let is_right = is_right(&manifest, id, pace)?;
        if is_right { &mut right } else { &mut wrong }.push(manifest);
    }
    let mut verdict = ManifestVerdict::default();
    if let Some(file) = file {
        let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size as u64);
        // A file that has grown may be terabytes long.
        let has_length = has_length_of_header(&file, size);
        verdict.bytes = if has_length { size } else { 0 };
        if has_length && is_right_on_disk(cache, &file, id, size, pace)? {
            verification_time::mark(&file, started);
        } else {
            let name = name(id, right.iter().chain(&wrong).next(), &file);
            let done = match rewrite(cache, id, &right)? {
                true => "written again from memory",
                false => {
                    remove(cache, id, &file)?;
                    "removed; the next mount of the source fetches it again"
                }
            };
            verdict.damaged = Some(format!("{name}: {done}"));
        }
    }
    if let Some(manifest) = wrong.first() {
        let source = manifest.source().escape_debug();
        verdict.to_renew = Some(format!(
            "{source}: manifest {id}: damaged in memory, where a mount uses it: unmount it and mount it again"
        ));
    }
    Ok(verdict)
}

/// The name of the manifest `id` for a person: its source, from what is `open` or else from the damaged `file`.
fn name(id: &Digest, open: Option<&Arc<Manifest>>, file: &File) -> String {
    let source = match open {
        Some(manifest) => Some(manifest.source().to_owned()),
        None => Manifest::open(file).ok().map(|manifest| manifest.source().to_owned()),
    };
    let source = source.map_or("a source that cannot be told".to_owned(), |s| s.escape_debug().to_string());
    format!("{source}: manifest {id}")
}

/// Whether `manifest` is in memory what it was, with the digest `id`.
fn is_right(manifest: &Manifest, id: &Digest, pace: ScrubPace<'_>) -> Result<bool> {
    let mut hasher = blake3::Hasher::new();
    for piece in manifest.raw().chunks(BLOCK as usize) {
        hasher.update(piece);
        if !pace(piece.len() as u64) {
            return Err(cancelled());
        }
    }
    manifest.release_pages();
    Ok(hasher.finalize().as_bytes() == &id.0)
}

/// Whether `file` of `size` bytes has the length that its header tells.
fn has_length_of_header(file: &File, size: u64) -> bool {
    let mut start = [0; MANIFEST_START_BYTES];
    let read = file.read_at(&mut start, 0).unwrap_or(0);
    usize::try_from(size).is_ok_and(|size| Manifest::check_start(&start[..read], size).is_ok())
}

/// Whether `file` of `size` bytes has the digest `id`. What the disk can't read counts as damaged.
fn is_right_on_disk(cache: &Cache, file: &File, id: &Digest, size: u64, pace: ScrubPace<'_>) -> Result<bool> {
    // Past the page cache where that can be: what lies on the disk is to be right, too.
    let direct = cache.layout().manifest_directory().file(id.to_string(), OFlags::RDONLY | OFlags::DIRECT);
    let read = match direct {
        Ok(direct) => match hash(&direct, size, pace) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => hash(file, size, pace),
            read => read,
        },
        Err(_) => hash(file, size, pace),
    };
    match read {
        Ok(Some(digest)) => Ok(digest == *id),
        Ok(None) => Err(cancelled()),
        Err(error) => {
            tracing::warn!(manifest = %id, %error, "a manifest cannot be read");
            Ok(false)
        }
    }
}

/// The digest of `file`, of up to `size` bytes; `None` when `pace` cancels. Reads whole blocks into aligned memory.
fn hash(file: &File, size: u64, pace: ScrubPace<'_>) -> io::Result<Option<Digest>> {
    let (mut hasher, mut at, mut buffer) = (blake3::Hasher::new(), 0, buffer::block());
    buffer.resize(BLOCK as usize, 0);
    while at < size {
        let len = file.read_at(&mut buffer, at)?;
        if len == 0 {
            break;
        }
        hasher.update(&buffer[..len]);
        at += len as u64;
        if !pace(len as u64) {
            return Ok(None);
        }
    }
    Ok(Some(Digest(*hasher.finalize().as_bytes())))
}

/// Writes the manifest `id` again, durably, from the first that is `open`, and lets all of these read the new file. False where
/// none is open, or its memory turns out to be wrong by now.
fn rewrite(cache: &Cache, id: &Digest, open: &[Arc<Manifest>]) -> Result<bool> {
    let Some(manifest) = open.first() else { return Ok(false) };
    let directory = cache.layout().manifest_directory();
    let write = || {
        let mut draft = NamedTempFile::new_in(directory.path())?;
        let mut hasher = blake3::Hasher::new();
        for piece in manifest.raw().chunks(BLOCK as usize) {
            // A copy, so that what is written is what was hashed: the kernel may read a page of the mapping anew in between.
            let piece = piece.to_vec();
            hasher.update(&piece);
            draft.write_all(&piece)?;
        }
        if hasher.finalize().as_bytes() != &id.0 {
            return Ok(None);
        }
        draft.as_file().sync_all()?;
        let file = draft.persist(directory.path().join(id.to_string())).map_err(|e| e.error)?;
        directory.sync()?;
        Ok(Some(file))
    };
    let written = write().map_err(|e| Error::disk(format!("cannot write the manifest {id} again"), e))?;
    let Some(file) = written else { return Ok(false) };
    open.iter().try_for_each(|manifest| manifest.read_from(&file, id))?;
    Ok(true)
}

/// Removes the manifest `id`, unless the name leads to another file than the damaged `file` by now.
fn remove(cache: &Cache, id: &Digest, file: &File) -> Result<()> {
    let directory = cache.layout().manifest_directory().descriptor();
    let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
    let removed = rustix::fs::fstat(file).and_then(|damaged| {
        match rustix::fs::statat(directory, id.to_string(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if identity(named) == identity(damaged) => {
                rustix::fs::unlinkat(directory, id.to_string(), AtFlags::empty())
            }
            _ => Ok(()),
        }
    });
    removed.map_err(|e| Error::disk("cannot remove a manifest from the cache", e.into()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::SystemTime;

    use super::*;
    use crate::cache::Limits;
    use crate::manifest::{ListedFile, Listing};
    use crate::source::Patterns;

    /// A cache with one manifest, and its bytes.
    struct Fixture {
        home: tempfile::TempDir,
        cache: Cache,
        id: Digest,
        bytes: Vec<u8>,
    }

    impl Fixture {
        fn new() -> Self {
            let home = tempfile::tempdir().expect("a directory");
            let limits = Limits { capacity: None, reserve: 0 };
            let cache = Cache::open(home.path(), "default", limits, SystemTime::now).expect("a cache");
            let mut listing = Listing::new("test://source", Patterns::default(), home.path());
            // More than a page: the mapping is replaced as a whole.
            for number in 0..200 {
                let path = format!("file-{number:04}");
                let (path, size, mtime, executable, sha256) = (path.as_bytes(), 9, (0, 0), false, None);
                listing.file(ListedFile { path, size, mtime, executable, version: b"1", sha256 });
            }
            let mut bytes = Vec::new();
            let id = listing.finish(&mut bytes).expect("a manifest");
            std::fs::write(cache.layout().manifests().join(id.to_string()), &bytes).expect("kept");
            Self { home, cache, id, bytes }
        }

        fn path(&self) -> PathBuf {
            self.cache.layout().manifests().join(self.id.to_string())
        }

        /// The manifest, as a snapshot in use has it.
        fn open(&self) -> Arc<Manifest> {
            let file = File::open(self.path()).expect("here");
            let manifest = Arc::new(Manifest::open(&file).expect("a manifest"));
            self.cache.partition.open_manifests.add(self.id, &manifest);
            manifest
        }

        /// Returns what a verification finds: damaged manifests, and mounts to renew.
        fn verify(&self) -> (Vec<String>, Vec<String>) {
            let totals = verify_manifests(&self.cache, None, &|_| true).expect("a verification");
            (totals.damaged_manifests, totals.mounts_to_renew)
        }

        fn rotten(&self) -> Vec<u8> {
            let mut bytes = self.bytes.clone();
            *bytes.last_mut().expect("a byte") ^= 1;
            bytes
        }
    }

    #[test]
    fn manifest_rotten_on_the_disk_is_written_again_from_memory() {
        let fixture = Fixture::new();
        assert_eq!(fixture.verify(), Default::default());
        let manifest = fixture.open();
        let before = File::options().write(true).open(fixture.path()).expect("here");
        // Another file stands for a disk that has rotted below pages that are still in memory.
        let rotten = fixture.home.path().join("rotten");
        std::fs::write(&rotten, fixture.rotten()).expect("written");
        std::fs::rename(rotten, fixture.path()).expect("renamed");
        let (damaged, mounts) = fixture.verify();
        assert_eq!((damaged.len(), mounts.len()), (1, 0));
        assert!(damaged[0].starts_with("test://source: manifest"), "{damaged:?}");
        assert!(damaged[0].ends_with("written again from memory"), "{damaged:?}");
        assert_eq!(std::fs::read(fixture.path()).expect("here"), fixture.bytes);
        before.write_all_at(&fixture.rotten(), 0).expect("the old file rots");
        assert_eq!(manifest.digest(), fixture.id, "it is read from the new file");
        assert_eq!(fixture.verify(), Default::default());
        let names = std::fs::read_dir(fixture.cache.layout().manifests()).expect("a directory").count();
        assert_eq!(names, 1, "no draft is left");
    }

    #[test]
    fn manifest_rotten_without_a_right_copy_is_removed_and_its_mounts_are_named() {
        let fixture = Fixture::new();
        std::fs::write(fixture.path(), fixture.rotten()).expect("written");
        let (damaged, mounts) = fixture.verify();
        assert_eq!((damaged.len(), mounts.len()), (1, 0));
        assert!(damaged[0].contains("test://source") && damaged[0].contains("removed"), "{damaged:?}");
        assert!(!fixture.path().exists());
        assert_eq!(fixture.verify(), Default::default());

        std::fs::write(fixture.path(), &fixture.bytes).expect("written");
        let manifest = fixture.open();
        std::fs::write(fixture.path(), fixture.rotten()).expect("rotten, also in memory");
        let (damaged, mounts) = fixture.verify();
        assert_eq!((damaged.len(), mounts.len()), (1, 1));
        assert!(mounts[0].contains("test://source") && mounts[0].contains("mount it again"), "{mounts:?}");
        assert!(!fixture.path().exists());
        let again = fixture.verify();
        assert_eq!((again.0.len(), again.1), (0, mounts), "as long as it is in use");
        std::fs::write(fixture.path(), &fixture.bytes).expect("another mount fetches it");
        assert_eq!(fixture.verify().1.len(), 1);
        drop(manifest);
        assert_eq!(fixture.verify(), Default::default());
    }

    #[test]
    fn manifest_that_has_grown_to_a_terabyte_is_not_read() {
        let fixture = Fixture::new();
        let file = File::options().write(true).open(fixture.path()).expect("here");
        file.set_len(1 << 40).expect("sparse");
        let totals = verify_manifests(&fixture.cache, None, &|_| true).expect("verified");
        assert_eq!((totals.bytes, totals.damaged_manifests.len()), (0, 1));
    }

    #[test]
    fn manifest_verified_recently_is_not_due() {
        let fixture = Fixture::new();
        let verify = |period: RangeInclusive<i64>| {
            let totals = verify_manifest(&fixture.cache, &fixture.id, &period, &|_| true);
            totals.expect("a verification").bytes
        };
        let len = fixture.bytes.len() as u64;
        assert_eq!(verify(0..=i64::MAX), len, "it was written");
        assert_eq!(verify(0..=i64::MAX), 0);
        assert_eq!(verify(0..=1), len);
        let cancelled = verify_manifests(&fixture.cache, None, &|_| false).expect_err("given up");
        assert_eq!(cancelled.kind(), Kind::Interrupted);
    }
}
