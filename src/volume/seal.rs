//! Seals: the units that are durable on the disk, and in which versions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::skip_reason::SkipReason;
use super::walk::{FileTime, Scan, ScannedFile, SkippedEntries, VolumeDirectory};
use super::writer_probe::{Writers, probe_writers};
use crate::cache::io;
use crate::checkpoint::LOOSE;
use crate::checkpoint::marker::is_marker;
use crate::checkpoint::units::CheckpointUnits;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The number of files of a unit that are held open from the seal to the end of their upload, the largest first: their deletion
/// can't tear what is being uploaded. Of a unit with more, the rest is given up when it is deleted.
const MAX_HELD_FILES: usize = 4096;
/// Up to how many files are flushed one by one; of more, the whole file system is.
const MAX_FLUSHED_FILES: usize = 64;
/// The most units that a directory may have.
const MAX_UNITS: usize = 10_000;

/// The files of each unit of a directory, by the names of the units.
pub type Seals = BTreeMap<String, Seal>;

/// A unit of a directory, with all that it consists of and in which versions. Paths are those below the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// The unit's name.
    pub unit: String,
    /// The regular files.
    pub files: BTreeMap<EncodedPath, ScannedFile>,
    /// The directories, and when each was changed.
    pub directories: BTreeMap<EncodedPath, FileTime>,
    /// The symbolic links, the target of each, and when it was made.
    pub links: BTreeMap<EncodedPath, (EncodedPath, FileTime)>,
}

/// A path, byte for byte; in JSON percent-encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EncodedPath(pub Vec<u8>);

/// The characters that are percent-encoded in a path.
const PATH_ENCODE_SET: AsciiSet = NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'/');

/// The characters that are percent-encoded in the name of a file.
const NAME_ENCODE_SET: AsciiSet = NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');

impl Serialize for EncodedPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&percent_encoding::percent_encode(&self.0, &PATH_ENCODE_SET))
    }
}

impl<'de> Deserialize<'de> for EncodedPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(percent_decode_str(&text).collect()))
    }
}

/// Whether a unit could be sealed.
#[derive(Debug)]
pub enum SealOutcome {
    /// The unit is sealed.
    Sealed(SealedUnit),
    /// The unit has a writer, or had one since it was looked at.
    Busy,
    /// The file system can't tell whether it has a writer.
    WritersUnknown,
    /// The disk failed to write these files of it, and why. The kernel tells that once, and takes what it still has in memory for
    /// written: the next flush of the same content says nothing.
    Unwritten(Vec<EncodedPath>, Error),
}

/// A sealed unit, ready to be read.
#[derive(Debug)]
pub struct SealedUnit {
    /// The files.
    pub seal: Seal,
    pub(super) directory: Arc<VolumeDirectory>,
    /// Files of it that are open.
    pub(super) held: HashMap<Vec<u8>, Arc<OwnedFd>>,
}

impl SealedUnit {
    /// A unit that was sealed earlier as `seal`: its files may be others by now, or gone, and only then reading them fails.
    pub fn earlier(seal: Seal, directory: Arc<VolumeDirectory>) -> Self {
        Self { seal, directory, held: HashMap::new() }
    }
}

impl Scan {
    /// The files of each unit, by the names of the units, and the entries that are left out.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where there are more than ten thousand units.
    pub fn into_seals(self) -> Result<(Seals, SkippedEntries)> {
        let units = CheckpointUnits::new(self.directories.keys().map(Vec::as_slice));
        let (mut seals, mut skipped) = (Seals::new(), self.skipped);
        for (path, _) in self.files.iter().filter(|(_, file)| file.size > 0) {
            if let Some(name) = units.temporary(path) {
                skipped.insert(name.to_owned(), SkipReason::TemporaryName);
            }
        }
        let mut name_of = |path: &[u8], is_directory| {
            let name = units.unit(path, is_directory)?;
            let text = str::from_utf8(name).ok();
            if text.is_none() {
                skipped.insert(name.to_owned(), SkipReason::NotUtf8);
            }
            text.map(str::to_owned)
        };
        let new = |name: &str| Seal { unit: name.to_owned(), ..Seal::default() };
        for (path, file) in self.files {
            if let Some(name) = name_of(&path, false) {
                let seal = seals.entry(name).or_insert_with_key(|name| new(name));
                seal.files.insert(EncodedPath(path), file);
            }
        }
        for (path, at) in self.directories {
            if let Some(name) = name_of(&path, true) {
                let seal = seals.entry(name).or_insert_with_key(|name| new(name));
                seal.directories.insert(EncodedPath(path), at);
            }
        }
        for (path, (target, at)) in self.links {
            if let Some(name) = name_of(&path, false) {
                let seal = seals.entry(name).or_insert_with_key(|name| new(name));
                seal.links.insert(EncodedPath(path), (EncodedPath(target), at));
            }
        }
        for seal in seals.values().filter(|seal| seal.files.is_empty()) {
            let links = seal.links.keys().map(|EncodedPath(path)| path.clone());
            skipped.extend(links.map(|path| (path, SkipReason::LinkWithoutFiles)));
        }
        if seals.len() > MAX_UNITS {
            return Err(Error::new(Kind::Invalid, format!("there are more than {MAX_UNITS} checkpoints")));
        }
        Ok((seals, skipped))
    }
}

impl Seal {
    /// The state, as a digest of all paths, versions and links. After a boot it is the same.
    pub fn fingerprint(&self) -> Digest {
        self.digest(ScannedFile::version_on_device)
    }

    /// Whether a saver has recorded this state as `fingerprint`: earlier builds hashed the number of the device, too.
    pub fn is_recorded_as(&self, fingerprint: &Digest) -> bool {
        self.fingerprint() == *fingerprint || self.digest(|file| &file.version) == *fingerprint
    }

    fn digest(&self, version: impl Fn(&ScannedFile) -> &str) -> Digest {
        let files = self.files.iter().map(|(path, file)| (path, version(file).as_bytes()));
        // The time of a directory says nothing that its entries don't.
        let directories = self.directories.keys().map(|path| (path, &b"directory"[..]));
        let links = self.links.iter().map(|(path, (target, _))| (path, &target.0[..]));
        let mut hasher = blake3::Hasher::new();
        for (path, content) in files.chain(directories).chain(links) {
            for part in [&path.0[..], content] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            }
        }
        Digest(hasher.finalize().into())
    }

    /// When one of its files was last written: seconds and nanoseconds since 1970.
    pub fn written(&self) -> FileTime {
        self.files.values().map(|file| file.mtime).max().unwrap_or_default()
    }

    /// Whether a file in it says that it is complete, and no other was written after that.
    pub fn is_marked(&self) -> bool {
        let written = self.written();
        self.files.iter().any(|(path, file)| is_marker(&path.0) && file.mtime >= written)
    }

    /// Its markers that were written after all its other files.
    pub fn last_markers(&self) -> impl Iterator<Item = &EncodedPath> {
        let others = self.files.iter().filter(|(path, _)| !is_marker(&path.0));
        let others = others.map(|(_, file)| file.mtime).max();
        let markers = self.files.iter().filter(|(path, _)| is_marker(&path.0));
        markers.filter(move |(_, file)| Some(file.mtime) > others).map(|(path, _)| path)
    }

    /// Whether it is what is left of `whole`: fewer files, each with the content that it has there. Who removes files may give
    /// others new permissions, and one of several hard links.
    pub fn is_remainder_of(&self, whole: &Self) -> bool {
        let is_there = |(path, file): (&EncodedPath, &ScannedFile)| {
            whole.files.get(path).is_some_and(|one| one.content_version() == file.content_version())
        };
        self.files.len() < whole.files.len() && self.files.iter().all(is_there)
    }

    /// Whether it has one of `files`, each a device and an inode.
    pub fn has_file_of(&self, files: &BTreeSet<(u64, u64)>) -> bool {
        let id = |file: &ScannedFile| {
            let mut parts = file.version.split('-').map(|part| part.parse::<u64>().ok());
            Some((parts.next()??, parts.next()??))
        };
        !files.is_empty() && self.files.values().filter_map(id).any(|id| files.contains(&id))
    }

    /// The name in the unit of `path`, one of its files.
    pub(super) fn below<'a>(&self, path: &'a [u8]) -> &'a [u8] {
        if self.unit == LOOSE { path } else { path.get(self.unit.len() + 1..).unwrap_or_default() }
    }

    /// The path of what is called `below` in it.
    pub(super) fn path_of(&self, below: &[u8]) -> EncodedPath {
        let path =
            if self.unit == LOOSE { below.to_vec() } else { [self.unit.as_bytes(), b"/", below].concat() };
        EncodedPath(path)
    }

    /// Makes the unit durable if it has no writer and is as it was found. What comes back holds its files
    /// open. `without_leases`: nothing came to it for so long that it counts as having no writer where the file system can't tell.
    /// Touches the local disk; the process must ignore SIGIO.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn apply(self, directory: &Arc<VolumeDirectory>, without_leases: bool) -> Result<SealOutcome> {
        self.apply_with(directory, |file| without_writers(probe_writers(file), without_leases))
    }

    /// Opens what has no writer and is as it was found, without waiting until it is durable. Nobody is told here of what the disk
    /// fails to write: that is left to [`apply`](Self::apply). Touches the local disk; the process must ignore SIGIO.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn open(self, directory: &Arc<VolumeDirectory>) -> Result<SealOutcome> {
        let mut held = HashMap::new();
        for (EncodedPath(path), file) in &self.files {
            match open_without_writers(directory, path, file, probe_writers)? {
                Ok(opened) => {
                    io::begin_writeback(&opened, 0, file.size);
                    if held.len() < MAX_HELD_FILES {
                        held.insert(path.clone(), Arc::new(opened));
                    }
                }
                Err(outcome) => return Ok(outcome),
            }
        }
        Ok(SealOutcome::Sealed(SealedUnit { seal: self, directory: Arc::clone(directory), held }))
    }

    /// [`apply`](Self::apply), with the answers of `probe` for those of the kernel.
    fn apply_with(
        self,
        directory: &Arc<VolumeDirectory>,
        probe: impl Fn(&OwnedFd) -> Writers,
    ) -> Result<SealOutcome> {
        let fault = |path: &[u8], e: std::io::Error| {
            Error::disk(format!("cannot make {} durable", directory.name(path)), e)
        };
        let mut largest: Vec<_> = self.files.iter().collect();
        largest.sort_by_key(|(_, file)| std::cmp::Reverse(file.size));
        let few = largest.len() <= MAX_FLUSHED_FILES;
        // All are probed before any is flushed: what is always being written must not have the disk flushed again and again.
        for (EncodedPath(path), file) in &largest {
            if let Err(outcome) = open_without_writers(directory, path, file, &probe)? {
                return Ok(outcome);
            }
        }
        let flushed = if few { Ok(()) } else { rustix::fs::syncfs(directory.descriptor()) };
        let (mut held, mut unwritten, mut cause) = (HashMap::new(), Vec::new(), None);
        let mut flush = |path: &Vec<u8>, file: &ScannedFile| -> Result<Option<SealOutcome>> {
            let opened = match open_without_writers(directory, path, file, &probe)? {
                Ok(opened) => opened,
                Err(outcome) => return Ok(Some(outcome)),
            };
            // Of all files of the disk, the file itself tells whether it was the one that could not be written.
            let written = if few {
                rustix::io::retry_on_intr(|| rustix::fs::fsync(&opened)).map_err(Into::into)
            } else {
                io::await_writeback(&opened)
            };
            if let Err(error) = written {
                unwritten.push(EncodedPath(path.clone()));
                cause.get_or_insert(fault(path, error));
            } else if !file.is_that_of(&opened) {
                return Ok(Some(SealOutcome::Busy));
            } else if held.len() < MAX_HELD_FILES {
                held.insert(path.clone(), Arc::new(opened));
            }
            Ok(None)
        };
        let obstacle = largest.iter().find_map(|(EncodedPath(path), file)| flush(path, file).transpose());
        // First: the kernel tells it no second time.
        if let Some(cause) = cause {
            return Ok(SealOutcome::Unwritten(unwritten, cause));
        }
        if let Some(obstacle) = obstacle {
            return obstacle;
        }
        flushed.map_err(|e| fault(b"", e.into()))?;
        // Those above the unit, too, to the one that was walked.
        let above = Path::new(&self.unit).ancestors().skip(1).map(|path| path.as_os_str().as_bytes());
        let directories = self.directories.keys().map(|path| &path.0[..]).chain(above);
        for path in directories.filter(|_| few) {
            match directory.at(path, rustix::fs::OFlags::DIRECTORY) {
                Ok(opened) => rustix::fs::fsync(&opened).map_err(|e| fault(path, e.into()))?,
                Err(_) => return Ok(SealOutcome::Busy),
            }
        }
        Ok(SealOutcome::Sealed(SealedUnit { seal: self, directory: Arc::clone(directory), held }))
    }

    /// The files of the unit that are as they were sealed, by `found`, a walk after a power cut; and the
    /// paths of its other files, which may be torn.
    pub fn survivors(&self, mut found: Self) -> (Self, Vec<Vec<u8>>) {
        let is_sealed = |path: &EncodedPath, file: &ScannedFile| {
            self.files.get(path).is_some_and(|one| one.version_on_device() == file.version_on_device())
        };
        let torn = found.files.iter().filter(|(path, file)| !is_sealed(path, file));
        let torn: Vec<_> = torn.map(|(path, _)| path.0.clone()).collect();
        found.files.retain(|path, file| is_sealed(path, file));
        (found, torn)
    }

    /// The bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.size).sum()
    }
}

impl ScannedFile {
    /// Whether the open file is as it was found.
    pub(super) fn is_that_of(&self, opened: &OwnedFd) -> bool {
        Self::of(opened).is_ok_and(|now| now == *self)
    }

    /// Its version on its device without the time of its last change, which is the last part: the same for all names and
    /// permissions.
    pub fn content_version(&self) -> &str {
        let version = self.version_on_device();
        version.rsplit_once('-').map_or(version, |(content, _)| content)
    }

    /// Its version without the number of the device, which may be another after a boot; no walk leaves its device.
    fn version_on_device(&self) -> &str {
        self.version.split_once('-').map_or(&self.version, |(_, rest)| rest)
    }
}

/// The file at `path`, if it is as it was `found` and has no writer, as `probe` says; else why not.
fn open_without_writers(
    directory: &VolumeDirectory,
    path: &[u8],
    found: &ScannedFile,
    probe: impl Fn(&OwnedFd) -> Writers,
) -> Result<std::result::Result<OwnedFd, SealOutcome>> {
    let opened = directory.open_file(path)?.filter(|opened| found.is_that_of(opened));
    let Some(opened) = opened else { return Ok(Err(SealOutcome::Busy)) };
    Ok(match probe(&opened) {
        Writers::None => Ok(opened),
        Writers::Some => Err(SealOutcome::Busy),
        Writers::Unknown => Err(SealOutcome::WritersUnknown),
    })
}

/// The answer of a probe, where `without_leases` says that a file counts as having no writer if the file system can't tell.
fn without_writers(probed: Writers, without_leases: bool) -> Writers {
    if without_leases && probed == Writers::Unknown { Writers::None } else { probed }
}

/// The name of a file for the seal of a unit, whatever that is called.
pub fn seal_file_name(unit: &str) -> String {
    format!("{}.json", utf8_percent_encode(unit, &NAME_ENCODE_SET))
}

#[cfg(test)]
mod tests;
