//! The parts of a pack: the files in it, as their origin knows them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use bytes::Bytes;

use super::decoder::Manifest;
use super::{Node, binary, corrupt};
use crate::blob::Key;
use crate::error::Result;

/// The versions that the files of a snapshot were published as, by their paths.
pub type FileVersions = HashMap<Bytes, Bytes>;

/// A file in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFile {
    /// The bytes in the pack.
    pub range: Range<u64>,
    /// The path below the source's root.
    pub path: Bytes,
    /// The version that its origin pinned.
    pub version: Bytes,
}

impl Manifest {
    /// Whether blob `index` is a pack.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) when there is no such blob.
    pub fn is_pack(&self, index: u32) -> Result<bool> {
        match self.base_of(index) {
            Some(base) => base.is_pack(index),
            None => Ok(self.blob_record(index)?.flags & binary::PACK != 0),
        }
    }

    /// The versions that files were published as, by their paths. Of a large file with the content of another it is its
    /// content, as `content_version` names it; those of small ones in packs with the same content are missing.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt).
    pub fn file_versions(&self) -> Result<FileVersions> {
        let mut versions = FileVersions::new();
        for number in 0..self.blobs() {
            if self.is_pack(number)? {
                versions.extend(self.parts(number)?.into_iter().map(|part| (part.path, part.version)));
            } else {
                let blob = self.blob(number)?;
                versions.insert(blob.path, blob.version);
            }
        }
        for index in 1..self.entries() {
            if let Node::File(slice) = self.entry(index)?.node
                && slice.len > 0
                && !self.is_pack(slice.blob)?
                && let Entry::Vacant(place) = versions.entry(self.path(index)?.into())
            {
                place.insert(content_version(&self.key(slice.blob)?));
            }
        }
        Ok(versions)
    }

    /// The parts of blob `index`, in order; none where it is no pack.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) when there is no such blob,
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt).
    pub fn parts(&self, index: u32) -> Result<Vec<PackedFile>> {
        if let Some(base) = self.base_of(index) {
            return base.parts(index);
        }
        let (record, mut parts) = (self.blob_record(index)?, Vec::new());
        if record.flags & binary::PACK == 0 {
            return Ok(parts);
        }
        let size = self.blob_size(index)?;
        let mut versions = self.range(record.version.get(), record.version_len.get().into())?;
        let (mut next, mut entry) = (0, record.entry.get());
        while next < size {
            // A file that is not in the pack may stand between two that are.
            if let Node::File(slice) = self.entry(entry).map_err(|_| broken(index))?.node
                && (slice.blob, slice.offset) == (index, next)
                && slice.len > 0
            {
                let version = self.take_version(&mut versions).ok_or_else(|| broken(index))?;
                let range = next..next + slice.len;
                next = range.end;
                parts.push(PackedFile { range, path: self.path(entry)?.into(), version });
            }
            entry = entry.checked_add(1).ok_or_else(|| broken(index))?;
        }
        Ok(parts)
    }

    /// The next of a pack's versions.
    fn take_version(&self, versions: &mut Range<usize>) -> Option<Bytes> {
        let bytes = self.raw().slice(versions.clone());
        let (len, rest) = bytes.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes(*len));
        let version = bytes.slice_ref(rest.get(..len)?);
        versions.start += 2 + len;
        Some(version)
    }
}

/// The version of a file of which only the content is known, the blob `key`.
pub(crate) fn content_version(key: &Key) -> Bytes {
    format!("content {key}").into()
}

fn broken(index: u32) -> crate::error::Error {
    corrupt(format!("the parts of blob {index} are not those of a pack"))
}
