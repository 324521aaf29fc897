//! The blobs of a manifest: their keys, sizes, hashes, and where the mirror keeps them.

use std::sync::Arc;

use bytes::Bytes;
use zerocopy::FromBytes;

use super::super::binary::{self, BlobRecord};
use super::super::{Node, corrupt};
use super::{Manifest, inside, within};
use crate::blob::{Blob, Key, MirrorLocation};
use crate::block::{self, Check};
use crate::digest::Digest;
use crate::error::Result;

impl Manifest {
    /// The size of blob `index` in bytes.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) when there is no such blob, [`Kind::Corrupt`](crate::error::Kind::Corrupt).
    pub fn blob_size(&self, index: u32) -> Result<u64> {
        if let Some(base) = self.base_of(index) {
            return base.blob_size(index);
        }
        let size = self.blob_record(index)?.size.get();
        if size > binary::MAX_BLOB_BYTES {
            Err(corrupt(format!("blob {index} has an invalid size")))
        } else {
            Ok(size)
        }
    }

    /// Blob `index`, with all that a tier needs to find it. Copies its checks.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) when there is no such blob, [`Kind::Corrupt`](crate::error::Kind::Corrupt).
    pub fn blob(&self, index: u32) -> Result<Blob> {
        if let Some(base) = self.base_of(index) {
            return base.blob(index);
        }
        let size = self.blob_size(index)?;
        let record = self.blob_record(index)?;
        let path = self.blob_path(index, record)?;
        let version = self.range(record.version.get(), record.version_len.get().into())?;
        let packed = record.flags & binary::PACK != 0;
        // A pack is no file of its origin's: what its origin knows are its parts.
        let (path, version) =
            if packed { (Vec::new(), Bytes::new()) } else { (path, self.bytes.slice(version)) };
        let mut hashes = BlobHashes { manifest: self, next: record.hashes.get() };
        let key = self.key_of(index, record, &path, &mut hashes)?;
        let sha256 = (record.flags & binary::SHA256 != 0).then(|| hashes.take(1)).transpose()?;
        let checks = (record.flags & binary::CHECKS != 0).then(|| hashes.take(block::count(size)));
        Ok(Blob {
            key,
            size,
            checks: checks.transpose()?.map(Arc::from),
            path: path.into(),
            version,
            sha256: sha256.map(|hash| hash[0].0),
            stored: self.stored(index, size, record)?,
        })
    }

    /// The key of blob `index`: of a million blobs what takes a moment, while the [blobs](Self::blob) take a second.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid) when there is no such blob, [`Kind::Corrupt`](crate::error::Kind::Corrupt).
    pub fn key(&self, index: u32) -> Result<Key> {
        if let Some(base) = self.base_of(index) {
            return base.key(index);
        }
        let record = self.blob_record(index)?;
        let by_path = record.kind == binary::ORIGIN && record.flags & binary::PACK == 0;
        let path = if by_path { self.blob_path(index, record)? } else { Vec::new() };
        self.key_of(index, record, &path, &mut BlobHashes { manifest: self, next: record.hashes.get() })
    }

    /// The key of a blob whose origin knows it by `path`. Its digest, if it has one, is taken from its `hashes`.
    fn key_of(
        &self,
        index: u32,
        record: &BlobRecord,
        path: &[u8],
        hashes: &mut BlobHashes<'_>,
    ) -> Result<Key> {
        match record.kind {
            binary::CONTENT => Ok(Key::Content(Digest(hashes.take(1)?[0].0))),
            binary::ORIGIN if !path.is_empty() => {
                let version = self.string(record.version.get(), record.version_len.get().into())?;
                let mut rest = BlobHashes { ..*hashes };
                let sha256 = (record.flags & binary::SHA256 != 0).then(|| rest.take(1)).transpose()?;
                Ok(Key::origin_file(self.source(), path, version, sha256.map(|hash| &hash[0].0)))
            }
            _ => Err(corrupt(format!("blob {index} has no name"))),
        }
    }

    /// The form in which the mirror stores a blob.
    fn stored(&self, index: u32, size: u64, record: &BlobRecord) -> Result<MirrorLocation> {
        let (start, len) = (record.object_key.get(), u64::from(record.object_key_len.get()));
        let object_key = self.bytes.slice(self.range(start, len)?);
        let ends = match record.encoding {
            binary::PLAIN_ENCODING => None,
            binary::FRAMES => {
                let ends = self.range(start.saturating_add(len), block::count(size) * 8)?;
                Some(self.bytes.slice(ends))
            }
            _ => return Err(corrupt(format!("blob {index} is stored in an unknown form"))),
        };
        Ok(MirrorLocation { object_key, ends })
    }

    /// The path that its origin knows a blob by; empty where there is none.
    fn blob_path(&self, index: u32, record: &BlobRecord) -> Result<Vec<u8>> {
        let entry = record.entry.get();
        if entry == binary::NO_ENTRY {
            return Ok(Vec::new());
        }
        match self.entry(entry).map_err(inside)?.node {
            Node::File(slice) if slice.blob == index => self.path(entry),
            _ => Err(corrupt(format!("entry {entry} does not hold blob {index}"))),
        }
    }
}

/// The hashes of one blob, taken one after the other.
struct BlobHashes<'a> {
    manifest: &'a Manifest,
    next: u64,
}

impl<'a> BlobHashes<'a> {
    /// The next `count` hashes.
    fn take(&mut self, count: u64) -> Result<&'a [Check]> {
        let bytes = within(&self.manifest.sections.hashes, self.next, count, size_of::<Check>())
            .and_then(|range| <[Check]>::ref_from_bytes(&self.manifest.bytes[range]).ok());
        self.next = self.next.saturating_add(count);
        bytes.ok_or_else(|| corrupt("a hash lies past its end"))
    }
}
