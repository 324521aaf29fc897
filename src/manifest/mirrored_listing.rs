//! The manifest of a mirrored snapshot: the entries of a listing, with the blobs that the mirror keeps their content in.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use super::encoder::{BlobEntry, BlobName, ManifestContents, encode};
use super::{Entry, Manifest, Node, Slice, corrupt};
use crate::blob::MirrorLocation;
use crate::block::Check;
use crate::digest::Digest;
use crate::error::Result;

/// A blob that a mirror keeps.
#[derive(Clone, Debug)]
pub struct MirroredBlob {
    /// The files that it holds, one after the other: their blobs in the listing, in order. Several make it a pack.
    pub files: Vec<u32>,
    /// The digest.
    pub digest: Digest,
    /// The length in bytes.
    pub size: u64,
    /// The checks of its blocks.
    pub checks: Arc<[Check]>,
    /// The form in which the mirror stores it.
    pub stored: MirrorLocation,
}

/// A listing whose content is mirrored.
#[derive(Debug)]
pub struct MirroredListing<'a> {
    listing: &'a Manifest,
    blobs: Vec<MirroredBlob>,
    /// By the blobs of the listing: where the content lies now. Empty files are a blob of their own.
    locations: Vec<Option<(u32, u64)>>,
    /// The blob of the empty files, where there are any.
    empty: Option<u32>,
}

impl<'a> MirroredListing<'a> {
    /// Puts the content of `listing` into `blobs`, which hold each of its files that isn't empty once, in the order of
    /// their first ones. Those of one digest become one.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) when the listing is, or a file is in no blob.
    pub fn new(listing: &'a Manifest, blobs: Vec<MirroredBlob>) -> Result<Self> {
        let mut this =
            Self { listing, blobs: Vec::new(), locations: vec![None; listing.blobs() as usize], empty: None };
        let mut known = HashMap::new();
        for blob in blobs {
            let number = *known.entry(blob.digest).or_insert(this.blobs.len() as u32);
            let mut offset = 0;
            for file in &blob.files {
                this.locations[*file as usize] = Some((number, offset));
                offset += listing.blob_size(*file)?;
            }
            if number as usize == this.blobs.len() {
                this.blobs.push(blob);
            }
        }
        for file in 0..listing.blobs() {
            if listing.blob_size(file)? == 0 {
                this.empty = Some(this.blobs.len() as u32);
                this.locations[file as usize] = this.empty.map(|empty| (empty, 0));
            }
        }
        Ok(this)
    }

    /// Writes the manifest to `out`, and returns its digest.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) when the listing is, or a file is in no blob;
    /// [`Kind::Disk`](crate::error::Kind::Disk) and [`Kind::NoSpace`](crate::error::Kind::NoSpace) from `out`.
    pub fn write(&self, out: &mut dyn Write) -> Result<Digest> {
        encode(self, out)
    }
}

impl ManifestContents for MirroredListing<'_> {
    fn source(&self) -> &str {
        self.listing.source()
    }

    fn entries(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        for index in 0..self.listing.entries() {
            let mut entry = self.listing.entry(index)?;
            if let Node::File(slice) = &mut entry.node {
                let location = self.locations[slice.blob as usize];
                let (blob, offset) =
                    location.ok_or_else(|| corrupt(format!("entry {index} is in no blob")))?;
                *slice = Slice { blob, offset, len: slice.len };
            }
            each(entry)?;
        }
        Ok(())
    }

    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()> {
        self.blobs.iter().try_for_each(|kept| each(self.content(kept)?))?;
        self.empty.map_or(Ok(()), |_| each(BlobEntry::empty()))
    }
}

impl MirroredListing<'_> {
    fn content<'a>(&'a self, kept: &'a MirroredBlob) -> Result<BlobEntry<'a>> {
        let first = self.listing.blob_record(kept.files[0])?;
        let (version, sha256) = match &kept.files[..] {
            [only] => {
                let version = self.listing.string(first.version.get(), first.version_len.get().into())?;
                (Cow::Borrowed(version), self.listing.blob(*only)?.sha256)
            }
            files => (Cow::Owned(versions(self.listing, files)?), None),
        };
        Ok(BlobEntry {
            name: BlobName::Content(kept.digest, Some(&kept.checks)),
            size: kept.size,
            entry: Some(first.entry.get()),
            version,
            packed: kept.files.len() > 1,
            sha256,
            stored: kept.stored.clone(),
        })
    }
}

/// The versions of the files of a pack, each with its length before it.
fn versions(listing: &Manifest, files: &[u32]) -> Result<Vec<u8>> {
    let mut versions = Vec::new();
    for file in files {
        let record = listing.blob_record(*file)?;
        let version = listing.string(record.version.get(), record.version_len.get().into())?;
        versions.extend_from_slice(&(version.len() as u16).to_le_bytes());
        versions.extend_from_slice(version);
    }
    Ok(versions)
}
