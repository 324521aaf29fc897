//! Reads manifests in place. Nothing in them is believed: whatever is looked at is checked first.

mod blob_records;

use std::cmp::Ordering;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::FromBytes;

use super::binary::{self, BlobRecord, EntryRecord, Header, Sections};
use super::{Entry, Node, Slice, corrupt, name};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// A snapshot's manifest, read in place.
pub struct Manifest {
    bytes: Bytes,
    header: Header,
    sections: Sections,
    mapped: bool,
    /// The base of a view: another tree of the same blobs, which come before its own.
    base: Option<Arc<Manifest>>,
}

impl Manifest {
    /// Opens the manifest that lies in `file`, which must not be written to any more.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is none, [`Kind::Unsupported`] when its version is newer, [`Kind::Disk`].
    pub fn open(file: &File) -> Result<Self> {
        // SAFETY: a mapping is sound as long as no process changes or truncates the file beneath it. A
        // manifest is written under another name, then renamed to its digest and never opened for writing
        // again; it goes away by unlink only, which leaves the mapping whole.
        let map = unsafe { Mmap::map(file) }.map_err(|e| Error::disk("cannot map the manifest", e))?;
        Ok(Self { mapped: true, ..Self::parse(Bytes::from_owner(map))? })
    }

    /// The manifest that is `bytes`.
    ///
    /// # Errors
    /// As [`open`](Self::open), without the disk's.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        Self::parse(bytes.into())
    }

    /// Makes this manifest a view of `base`.
    pub(super) fn view_of(self, base: Arc<Self>) -> Self {
        Self { base: Some(base), ..self }
    }

    /// The base of this view, where blob `index` is of that.
    pub(super) fn base_of(&self, index: u32) -> Option<&Self> {
        self.base.as_deref().filter(|base| index < base.blobs())
    }

    /// Returns the number of blobs of what it is a view of.
    fn base_blobs(&self) -> u32 {
        self.base.as_ref().map_or(0, |base| base.blobs())
    }

    /// Checks the beginning of a manifest of `len` bytes, before the rest of it is fetched.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes).
    pub fn check_start(start: &[u8], len: usize) -> Result<()> {
        Self::parse_header(start, len).map(drop)
    }

    fn parse_header(start: &[u8], len: usize) -> Result<(Header, Sections)> {
        let (header, _) =
            Header::read_from_prefix(start).map_err(|_| corrupt("it is shorter than its header"))?;
        let sections = header.sections(len)?;
        Ok((header, sections))
    }

    fn parse(bytes: Bytes) -> Result<Self> {
        let (header, sections) = Self::parse_header(&bytes, bytes.len())?;
        let manifest = Self { bytes, header, sections, mapped: false, base: None };
        let source = manifest.string(0, header.source_len.get().into())?;
        str::from_utf8(source).map_err(|_| corrupt("its source's name is not UTF-8"))?;
        Ok(manifest)
    }

    /// Unmaps the memory that reading it has mapped; what is read again comes from the page cache. A walk
    /// over a million entries maps a hundred megabytes, which are not needed afterwards.
    pub fn release_pages(&self) {
        if let Some(base) = &self.base {
            base.release_pages();
        }
        if !self.mapped {
            return;
        }
        // SAFETY: the range is exactly the mapping that `bytes` owns, shared and read-only, of a file that does not
        // change: a page that is dropped comes back with the same bytes when it is next touched.
        let rested = unsafe {
            let start = self.bytes.as_ptr().cast_mut().cast();
            rustix::mm::madvise(start, self.bytes.len(), rustix::mm::Advice::LinuxDontNeed)
        };
        if let Err(error) = rested {
            tracing::debug!(%error, "cannot unmap the pages of a manifest");
        }
    }

    /// Reads from `file` from now on, which has the same bytes, with the digest `id`, as this has in memory. What is in memory
    /// stays where it is.
    ///
    /// # Errors
    /// [`Kind::Disk`]; [`Kind::Corrupt`] where `file` is of another length.
    pub(crate) fn read_from(&self, file: &File, id: &Digest) -> Result<()> {
        let fault = |e: io::Error| Error::disk(format!("cannot map the manifest {id}"), e);
        if !self.mapped {
            return Ok(());
        }
        if file.metadata().map_err(fault)?.len() != self.bytes.len() as u64 {
            return Err(corrupt("it has another length"));
        }
        // SAFETY: the range is exactly the mapping that `bytes` owns and will unmap, which begins with a page, and what replaces it
        // is mapped alike: shared and read-only. The file has the same bytes at the same places and does not change, so no
        // reference into the mapping sees a difference; a thread that touches a page meanwhile waits in the kernel.
        let mapped = unsafe {
            let start = self.bytes.as_ptr().cast_mut().cast();
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(start, self.bytes.len(), ProtFlags::READ, flags, file, 0)
        };
        mapped.map(drop).map_err(|e| fault(e.into()))
    }

    /// Returns the number of entries, the root included.
    pub fn entries(&self) -> u32 {
        self.header.entries.get()
    }

    /// Returns the number of blobs.
    pub fn blobs(&self) -> u32 {
        self.base_blobs().saturating_add(self.header.blobs.get())
    }

    /// Returns the number of regular files.
    pub fn files(&self) -> u64 {
        self.header.files.get()
    }

    /// The sum of the sizes of all regular files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.header.bytes.get()
    }

    /// The size of the largest regular file, in bytes.
    pub fn largest(&self) -> u64 {
        self.header.largest.get()
    }

    /// The source that this is a state of, as its origin names it.
    pub fn source(&self) -> &str {
        // It was UTF-8 when the manifest was opened, and a manifest never changes.
        let name = self.string(0, self.header.source_len.get().into()).unwrap_or_default();
        str::from_utf8(name).unwrap_or_default()
    }

    /// The bytes of the whole manifest.
    pub(crate) fn raw(&self) -> &Bytes {
        &self.bytes
    }

    /// The digest of the whole manifest, the snapshot's id. Reads and hashes all of it.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// Entry `index`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such entry, [`Kind::Corrupt`].
    pub fn entry(&self, index: u32) -> Result<Entry<'_>> {
        let record = self.entry_record(index)?;
        let parent = record.parent.get();
        if index > 0 {
            let directory = self.entry_record(parent).map_err(inside)?;
            let siblings = self.children_of(parent, directory)?;
            if !siblings.contains(&index) {
                return Err(corrupt(format!("entry {index} is not in its directory")));
            }
        }
        let node = match record.kind {
            binary::DIRECTORY => Node::Directory(self.children_of(index, record)?),
            binary::FILE => Node::File(self.slice(index, record)?),
            binary::SYMLINK => Node::Symlink(self.target(index, record)?),
            _ => return Err(corrupt(format!("entry {index} has an unknown kind"))),
        };
        let mtime = (record.seconds.get(), record.nanoseconds.get());
        if mtime.1 >= 1_000_000_000 || index == 0 && (parent, record.kind) != (0, binary::DIRECTORY) {
            return Err(corrupt(format!("entry {index} has an invalid time or parent")));
        }
        let executable = record.flags & binary::EXECUTABLE != 0;
        Ok(Entry { name: self.name(index, record)?, parent, mtime, executable, node })
    }

    /// The entries of directory `directory` with their numbers, sorted by name. Each entry is a child of exactly one
    /// directory, and comes after it, so a walk of the tree ends and meets each at most once.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such directory, [`Kind::Corrupt`], also for each child.
    pub fn children(&self, directory: u32) -> Result<impl Iterator<Item = Result<(u32, Entry<'_>)>>> {
        let range = self.directory(directory)?;
        let mut last: &[u8] = b"";
        Ok(range.map(move |index| {
            let entry = self.entry(index)?;
            if entry.parent != directory {
                return Err(corrupt(format!("entry {index} is in two directories")));
            }
            if std::mem::replace(&mut last, entry.name) >= entry.name {
                return Err(corrupt(format!("entry {index} is out of order")));
            }
            Ok((index, entry))
        }))
    }

    /// Checks every entry and every blob: that each has one directory, and each path is there once.
    ///
    /// # Errors
    /// [`Kind::Corrupt`], with the first that is wrong.
    pub fn check(&self) -> Result<()> {
        for index in 0..self.entries() {
            if let Node::Directory(_) = self.entry(index)?.node {
                self.children(index)?.try_for_each(|child| child.map(drop))?;
            }
        }
        (0..self.blobs()).try_for_each(|blob| self.blob(blob).map(drop))
    }

    /// The entry called `name` in directory `directory`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such directory, [`Kind::Corrupt`].
    pub fn lookup(&self, directory: u32, name: &[u8]) -> Result<Option<u32>> {
        let Range { mut start, mut end } = self.directory(directory)?;
        while start < end {
            let middle = start + (end - start) / 2;
            let record = self.entry_record(middle)?;
            match self.name(middle, record)?.cmp(name) {
                Ordering::Less => start = middle + 1,
                Ordering::Greater => end = middle,
                Ordering::Equal if record.parent.get() == directory => return Ok(Some(middle)),
                Ordering::Equal => return Err(corrupt(format!("entry {middle} is in two directories"))),
            }
        }
        Ok(None)
    }

    /// The path of entry `index` below the root, `/` between parts.
    ///
    /// # Errors
    /// [`Kind::Invalid`] when there is no such entry, [`Kind::Corrupt`].
    pub fn path(&self, index: u32) -> Result<Vec<u8>> {
        let mut parts = Vec::new();
        let (mut at, mut len) = (index, 0);
        while at > 0 {
            let record = self.entry_record(at)?;
            let name = self.name(at, record)?;
            len += name.len() + 1;
            // A parent comes before its child, so this ends; the longest path bounds what it gathers.
            if record.parent.get() >= at || len - 1 > name::MAX_PATH_BYTES {
                return Err(corrupt(format!("entry {index} has no path")));
            }
            parts.push(name);
            at = record.parent.get();
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// The origin of entry `index`: the source, and the path below it; of a view, the source.
    ///
    /// # Errors
    /// Those of [`path`](Self::path).
    pub fn origin_path(&self, index: u32) -> Result<Vec<u8>> {
        let mut path = self.source().as_bytes().to_vec();
        if index > 0 && self.base.is_none() {
            if !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend(self.path(index)?);
        }
        Ok(path)
    }

    fn entry_record(&self, index: u32) -> Result<&EntryRecord> {
        let records =
            <[EntryRecord]>::ref_from_bytes(&self.bytes[self.sections.entries.clone()]).unwrap_or_default();
        records.get(index as usize).ok_or_else(|| missing("entry", index, self.entries()))
    }

    /// The record of a blob of its own.
    pub(super) fn blob_record(&self, index: u32) -> Result<&BlobRecord> {
        let records =
            <[BlobRecord]>::ref_from_bytes(&self.bytes[self.sections.blobs.clone()]).unwrap_or_default();
        let own = index.checked_sub(self.base_blobs()).and_then(|own| records.get(own as usize));
        own.ok_or_else(|| missing("blob", index, self.blobs()))
    }

    /// The range that a directory's record tells, which is one of existing entries after the directory itself.
    fn children_of(&self, index: u32, record: &EntryRecord) -> Result<Range<u32>> {
        let (first, count) = (record.a.get(), record.b.get());
        let end = first.checked_add(count).filter(|end| *end <= u64::from(self.entries()));
        match end {
            Some(end) if record.kind == binary::DIRECTORY && first > u64::from(index) => {
                Ok(first as u32..end as u32)
            }
            _ => Err(corrupt(format!("entry {index} is not a valid directory"))),
        }
    }

    fn directory(&self, index: u32) -> Result<Range<u32>> {
        match self.entry(index)?.node {
            Node::Directory(range) => Ok(range),
            _ => Err(Error::new(Kind::Invalid, format!("entry {index} is no directory"))),
        }
    }

    fn slice(&self, index: u32, record: &EntryRecord) -> Result<Slice> {
        let slice = Slice { blob: record.blob.get(), offset: record.a.get(), len: record.b.get() };
        let size = self.blob_size(slice.blob).map_err(inside)?;
        match slice.offset.checked_add(slice.len) {
            Some(end) if end <= size => Ok(slice),
            _ => Err(corrupt(format!("entry {index} ends past its blob"))),
        }
    }

    fn name(&self, index: u32, record: &EntryRecord) -> Result<&[u8]> {
        let name = self.string(record.name.get(), record.name_len.get().into())?;
        match name::part(name) {
            Ok(()) if index > 0 => Ok(name),
            _ if index == 0 && name.is_empty() => Ok(name),
            _ => Err(corrupt(format!("entry {index} has an invalid name"))),
        }
    }

    fn target(&self, index: u32, record: &EntryRecord) -> Result<&[u8]> {
        let target = self.string(record.a.get(), record.b.get())?;
        name::target(target).map_err(|_| corrupt(format!("entry {index} has an invalid target")))?;
        Ok(target)
    }

    pub(super) fn string(&self, offset: u64, len: u64) -> Result<&[u8]> {
        Ok(&self.bytes[self.range(offset, len)?])
    }

    /// The byte range in the file of the string at `offset` of the strings.
    pub(super) fn range(&self, offset: u64, len: u64) -> Result<Range<usize>> {
        within(&self.sections.strings, offset, len, 1).ok_or_else(|| corrupt("string offset out of range"))
    }
}

/// The byte range of the `count` items from `first` on, of `size` bytes each, in a section of such items.
fn within(section: &Range<usize>, first: u64, count: u64, size: usize) -> Option<Range<usize>> {
    let start = usize::try_from(first).ok()?.checked_mul(size)?.checked_add(section.start)?;
    let end = usize::try_from(count).ok()?.checked_mul(size)?.checked_add(start)?;
    (end <= section.end).then_some(start..end)
}

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, blobs, bytes) = (self.entries(), self.blobs(), self.bytes());
        write!(f, "Manifest({}: {entries} entries, {blobs} blobs, {bytes} bytes)", self.source())
    }
}

fn missing(what: &str, index: u32, count: u32) -> Error {
    Error::new(Kind::Invalid, format!("there is no {what} {index} in a manifest of {count}"))
}

/// An error about something that the manifest itself, not the caller, has named.
fn inside(error: Error) -> Error {
    if error.kind() == Kind::Invalid { corrupt(error) } else { error }
}
