//! The directory that a download writes, before it has its name.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::PartialDirectory;
use crate::blob::Blob;
use crate::block::{self, Arrival, BLOCK, Verified};
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::manifest::{Entry, Manifest, Node, Slice};

/// The number of zeros, in bytes, that are worth a hole: as many as a file system reads at once.
const HOLE_BYTES: usize = 64 << 10;

/// The files of a snapshot on their way into a directory.
#[derive(Debug)]
pub(super) struct PartialTree {
    manifest: Arc<Manifest>,
    place: PartialDirectory,
    /// The directory that all paths begin at: with its own, those that Linux just allows would be too long.
    root: OwnedFd,
    /// The entries that are wanted, the root first.
    entries: Vec<u32>,
    /// The files that are slices of each blob.
    files: HashMap<u32, Vec<(u32, Slice)>>,
}

impl PartialTree {
    /// Makes the directories of a tree that becomes `directory`, or resumes a tree left by another run. The tree is that of the
    /// snapshot `id` with this `manifest`; where `paths` are given, it has only the entries at these.
    pub(super) fn create(
        manifest: Arc<Manifest>,
        id: &Digest,
        directory: &Path,
        paths: Option<&BTreeSet<Vec<u8>>>,
    ) -> Result<Self> {
        let place = PartialDirectory::create(directory, &paths.map_or(*id, |paths| content_of(id, paths)))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, place.path(), flags, Mode::empty())
            .map_err(|e| Error::disk(format!("cannot open {}", place.path().display()), e.into()))?;
        let entries = match paths {
            None => (0..manifest.entries()).collect(),
            Some(paths) => entries_at(&manifest, paths)?,
        };
        let mut tree = Self { manifest, place, root, entries, files: HashMap::new() };
        for index in tree.entries.clone() {
            match tree.manifest.entry(index)?.node {
                Node::File(slice) => {
                    if !is_in_one_block(&slice) {
                        let (path, len) = (tree.path(index)?, slice.len);
                        let file = tree.open_to_write(&path).and_then(|file| file.set_len(len));
                        file.map_err(|e| tree.fault("create", &path, e))?;
                    }
                    tree.files.entry(slice.blob).or_default().push((index, slice));
                }
                Node::Directory(_) if index > 0 => {
                    let path = tree.path(index)?;
                    match rustix::fs::mkdirat(&tree.root, &path[..], Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(tree.fault("create", &path, error.into())),
                    }
                }
                _ => {}
            }
        }
        Ok(tree)
    }

    /// The snapshot.
    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the number of the files that are wanted, and of their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        let files = self.files.values().flatten();
        files.fold((0, 0), |(files, bytes), (_, slice)| (files + 1, bytes + slice.len))
    }

    /// Returns the number of files of blob `number`.
    pub(super) fn files(&self, number: u32) -> u64 {
        self.files.get(&number).map_or(0, |files| files.len() as u64)
    }

    /// Returns the number of bytes of files that are written when block `index` of blob `number` is.
    pub(super) fn bytes_in(&self, number: u32, blob: &Blob, index: u64) -> u64 {
        self.parts(number, blob, index).map(|part| part.range.end - part.range.start).sum()
    }

    /// The missing blocks of blob `number`. The files on the disk are looked at only where the blob is one file of several blocks.
    pub(super) fn missing(&self, number: u32, blob: &Blob) -> Result<Vec<u64>> {
        let all = 0..block::count(blob.size);
        let single = match self.files.get(&number).map(Vec::as_slice) {
            None => return Ok(Vec::new()),
            Some([(index, slice)])
                if slice.offset == 0 && slice.len == blob.size && !is_in_one_block(slice) =>
            {
                *index
            }
            Some(_) => {
                return Ok(all.filter(|index| self.parts(number, blob, *index).next().is_some()).collect());
            }
        };
        let path = self.path(single)?;
        let file = self.open_to_read(&path).map_err(|e| self.fault("open", &path, e))?;
        let is_empty = file.metadata().is_ok_and(|found| found.blocks() == 0);
        let is_right = |index: u64| {
            let mut bytes = vec![0; block::len(blob.size, index) as usize];
            let check = blob.checks.as_ref().and_then(|checks| checks.get(index as usize));
            let read = file.read_exact_at(&mut bytes, index * BLOCK).is_ok();
            let arrival = Arrival { size: blob.size, index, bytes: Bytes::from(bytes) };
            read && check.is_some() && arrival.verify(check).is_ok()
        };
        Ok(all.filter(|index| is_empty || !is_right(*index)).collect())
    }

    /// Writes a block of blob `number` to the files that it is part of.
    pub(super) fn write(&self, number: u32, blob: &Blob, block: &Verified) -> Result<()> {
        let start = block.index() * BLOCK;
        for part in self.parts(number, blob, block.index()) {
            let path = self.path(part.entry)?;
            let bytes =
                &block.bytes()[(part.range.start - start) as usize..(part.range.end - start) as usize];
            let written = if is_in_one_block(&part.slice) {
                self.write_whole(&path, bytes, &self.manifest.entry(part.entry)?)
            } else {
                let file = self.open_to_write(&path);
                file.and_then(|file| write_sparse(&file, bytes, part.range.start - part.slice.offset))
            };
            written.map_err(|e| self.fault("write", &path, e))?;
        }
        Ok(())
    }

    /// The parts of files that lie in block `index` of blob `number`.
    fn parts(&self, number: u32, blob: &Blob, index: u64) -> impl Iterator<Item = FilePart> {
        let (start, end) = (index * BLOCK, index * BLOCK + block::len(blob.size, index));
        let files = self.files.get(&number).map_or(&[][..], Vec::as_slice);
        files.iter().filter_map(move |(entry, slice)| {
            let range = start.max(slice.offset)..end.min(slice.offset + slice.len);
            (range.start < range.end).then_some(FilePart { entry: *entry, slice: *slice, range })
        })
    }

    /// Gives all files of several blocks and all directories their times and modes, makes the links, and gives the tree its name.
    /// Nothing is synced, as by other commands that copy files.
    pub(super) fn finish(&self) -> Result<()> {
        // Children come after their directory, whose time they change.
        for &index in self.entries.iter().rev() {
            let entry = self.manifest.entry(index)?;
            if matches!(&entry.node, Node::File(slice) if is_in_one_block(slice)) {
                continue;
            }
            let path = self.path(index)?;
            let failed = |e| self.fault("finish", &path, e);
            if let Node::Symlink(target) = entry.node {
                let _ = rustix::fs::unlinkat(&self.root, &path[..], AtFlags::empty());
                rustix::fs::symlinkat(target, &self.root, &path[..]).map_err(|e| failed(e.into()))?;
                continue;
            }
            let file = self.open_to_read(&path).map_err(failed)?;
            file.set_permissions(Permissions::from_mode(mode(&entry))).map_err(failed)?;
            // A time that the disk can't have is no reason to fail.
            let _ = time(entry.mtime).map(|time| file.set_modified(time));
        }
        self.place.finish()
    }

    /// The path of entry `index` below the directory. Names in a manifest hold no slash and are no dots.
    fn path(&self, index: u32) -> Result<Vec<u8>> {
        let path = self.manifest.path(index)?;
        Ok(if path.is_empty() { b".".to_vec() } else { path })
    }

    fn fault(&self, what: &str, path: &[u8], error: io::Error) -> Error {
        let path = self.place.path().join(OsStr::from_bytes(path));
        Error::disk(format!("cannot {what} {}", path.display()), error)
    }

    /// Opens what lies at `path`, and never what a link leads to.
    fn open_at(&self, path: &[u8], flags: OFlags, mode: u32) -> io::Result<File> {
        let (flags, mode) = (flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::from_raw_mode(mode));
        Ok(rustix::fs::openat(&self.root, path, flags, mode)?.into())
    }

    fn open_to_read(&self, path: &[u8]) -> io::Result<File> {
        self.open_at(path, OFlags::RDONLY, 0)
    }

    /// Opens a file for writing, and makes it if it is not there.
    fn open_to_write(&self, path: &[u8]) -> io::Result<File> {
        self.open_at(path, OFlags::WRONLY | OFlags::CREATE, 0o600)
    }

    /// Writes a file that is `entry` with its time and mode, opening it once: most of the time of a tree of small files goes there.
    /// The directory that it lies in is the owner's alone until it is whole.
    fn write_whole(&self, path: &[u8], bytes: &[u8], entry: &Entry<'_>) -> io::Result<()> {
        let mode = mode(entry);
        let file = self.open_at(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC, mode)?;
        // The umask takes some of them, and an earlier run may have made it.
        if file.metadata()?.mode() & 0o7777 != mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        // Its end may be a hole; one that is too small for any is spared the call.
        if bytes.len() >= HOLE_BYTES {
            file.set_len(bytes.len() as u64)?;
        }
        write_sparse(&file, bytes, 0)?;
        // A time that the disk can't have is no reason to fail.
        let _ = time(entry.mtime).map(|time| file.set_modified(time));
        Ok(())
    }
}

/// A digest of the entries at `paths` of the snapshot `id`: what a run with others has left is not theirs.
fn content_of(id: &Digest, paths: &BTreeSet<Vec<u8>>) -> Digest {
    let mut content = id.to_string().into_bytes();
    for path in paths {
        content.push(0);
        content.extend_from_slice(path);
    }
    Digest::of(&content)
}

/// The entries at `paths`, and the directories that they lie in; those that are not there are left out.
fn entries_at(manifest: &Manifest, paths: &BTreeSet<Vec<u8>>) -> Result<Vec<u32>> {
    let mut entries = BTreeSet::from([0]);
    for path in paths {
        let mut above = vec![0];
        for name in path.split(|byte| *byte == b'/') {
            let Some(child) = manifest.lookup(above[above.len() - 1], name)? else { break };
            above.push(child);
        }
        if manifest.path(above[above.len() - 1])? == *path {
            entries.extend(above);
        }
    }
    Ok(entries.into_iter().collect())
}

/// A part of a file.
struct FilePart {
    entry: u32,
    /// The file's place in its blob.
    slice: Slice,
    /// The part's offset in the blob.
    range: std::ops::Range<u64>,
}

/// Whether a file has content, and all of it lies in one block: it is created when that arrives, and is finished then.
fn is_in_one_block(slice: &Slice) -> bool {
    let touched = block::touched(&(slice.offset..slice.offset + slice.len));
    slice.len > 0 && touched.end - touched.start == 1
}

/// The permissions of an entry.
fn mode(entry: &Entry<'_>) -> u32 {
    if matches!(entry.node, Node::Directory(_)) || entry.executable { 0o755 } else { 0o644 }
}

/// Writes `bytes` at `offset` of a file that is as long already, zeros as holes where there are many: they occupied nothing where a
/// sparse file was mirrored, either.
fn write_sparse(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let (mut begin, mut end) = (0, 0);
    for piece in bytes.chunks(HOLE_BYTES) {
        if piece.len() == HOLE_BYTES && piece.iter().all(|byte| *byte == 0) {
            file.write_all_at(&bytes[begin..end], offset + begin as u64)?;
            make_hole(file, piece, offset + end as u64)?;
            begin = end + piece.len();
        }
        end += piece.len();
    }
    file.write_all_at(&bytes[begin..], offset + begin as u64)
}

/// Makes a hole of the `zeros` at `offset`. An interrupted run may have left something else there.
fn make_hole(file: &File, zeros: &[u8], offset: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, flags, offset, zeros.len() as u64) {
        // The file system has no holes.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(zeros, offset),
        made => Ok(made?),
    }
}

/// A time of a manifest.
fn time((seconds, nanoseconds): (i64, u32)) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = SystemTime::UNIX_EPOCH;
    let base = if seconds < 0 { base.checked_sub(whole) } else { base.checked_add(whole) };
    base?.checked_add(Duration::from_nanos(nanoseconds.into()))
}
