//! The image: all metadata of a snapshot, as EROFS has it. The same snapshot and options make the same bytes.
//!
//! The superblock and the device table are followed by the inodes, in the order of the manifest's entries, and those by the
//! directories and links that have no room behind their inode.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use zerocopy::IntoBytes;

use super::data_layout::DataLayout;
use super::dirents::DirectoryBlocks;
use super::erofs::{self, DEVICE_SLOT_BYTES, DeviceSlot, INODE_SLOT_BYTES, Inode, Superblock};
use super::node::{self, Tail, Xattrs};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Entry, Node, Slice};
use crate::snapshot::Snapshot;

/// The entry of the root.
const ROOT: u32 = 0;
/// The offset of the root's inode among the inodes, in bytes: 0 is no inode number.
const FIRST_INODE: u64 = 2 * INODE_SLOT_BYTES;
/// The flag that the inodes' times are those of the last change of content.
const COMPAT_MTIME: u32 = 0x2;

/// The owner, permissions and names that an image shows beside the snapshot.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// The owner of all files.
    pub uid: u32,
    /// The group of all files.
    pub gid: u32,
    /// Whether others than the owner may read.
    pub allow_other: bool,
    /// The agent's control socket.
    pub control: Option<PathBuf>,
}

/// Writes the image of `snapshot`, all of which is local, to `out`. Blocks on the local disk.
///
/// # Errors
/// [`Kind::Unsupported`] for what an image can't hold, [`Kind::Corrupt`] when the manifest is, [`Kind::Disk`] and
/// [`Kind::NoSpace`].
pub fn write(
    snapshot: &Snapshot,
    layout: &DataLayout,
    options: &ImageOptions,
    out: impl Write,
) -> Result<()> {
    let mut image = Image {
        snapshot,
        layout,
        options,
        block: 1 << layout.block_bits,
        inodes: vec![0; snapshot.manifest().entries() as usize],
        digests: vec![None; snapshot.manifest().blobs() as usize],
    };
    let sections = image.measure()?;
    let mut out = Output { out, at: 0 };
    image.write_head(&sections, &mut out)?;
    image.write_inodes(&sections, &mut out)?;
    image.write_contents(&sections, &mut out)?;
    out.out.flush().map_err(failed)
}

struct Image<'a> {
    snapshot: &'a Snapshot,
    layout: &'a DataLayout,
    options: &'a ImageOptions,
    /// The size of a block, in bytes.
    block: u64,
    /// For each entry, the number of its inode.
    inodes: Vec<u32>,
    /// For each blob that was looked at, its digest where that is known.
    digests: Vec<Option<Option<Digest>>>,
}

/// The offsets of the image's sections and of its end, in bytes.
struct ImageSections {
    inodes: u64,
    contents: u64,
    end: u64,
}

impl Image<'_> {
    /// Numbers the inodes and lays out the sections.
    fn measure(&mut self) -> Result<ImageSections> {
        let table = (self.layout.device_blobs().len() as u64 + 1) * DEVICE_SLOT_BYTES;
        let inodes = (device_table() + table).next_multiple_of(self.block);
        let (mut at, mut outside) = (FIRST_INODE, 0);
        for index in 0..self.snapshot.manifest().entries() {
            let entry = self.snapshot.manifest().entry(index)?;
            let content = self.content(index, &entry)?;
            let inline =
                content.as_ref().is_none_or(|content| self.fits_inline(index, &entry, content.len()));
            let content = content.map_or(0, |content| content.len() as u64);
            let len = size_of::<Inode>() as u64 + self.xattrs(index, &entry)?.bytes().len() as u64;
            let behind = match entry.node {
                Node::File(slice) => {
                    let chunks = self.layout.chunks(index, slice);
                    chunks.map_or(0, |chunks| node::chunk_bytes(len, chunks.addresses.len()))
                }
                _ if inline => content,
                _ => 0,
            };
            if !inline {
                outside += content.next_multiple_of(self.block);
            }
            if inline && content > 0 {
                at = self.inline_start(at, len + content);
            }
            let number = u32::try_from(at / INODE_SLOT_BYTES);
            self.inodes[index as usize] = number.map_err(|_| too_large())?;
            at = (at + len + behind).next_multiple_of(INODE_SLOT_BYTES);
        }
        let contents = (inodes + at).next_multiple_of(self.block);
        let end = contents + outside;
        if end / self.block > u64::from(u32::MAX) {
            return Err(too_large());
        }
        Ok(ImageSections { inodes, contents, end })
    }

    /// The offset of an inode that may begin at `at` and has `len` bytes with the content behind it: they do
    /// not cross two blocks, since the kernel reads such content from the inode's block only.
    fn inline_start(&self, at: u64, len: u64) -> u64 {
        if at % self.block + len > self.block { at.next_multiple_of(self.block) } else { at }
    }

    /// Whether `content` bytes have room behind the inode of an entry.
    fn fits_inline(&mut self, index: u32, entry: &Entry<'_>, content: usize) -> bool {
        let xattrs = self.xattrs(index, entry).map_or(0, |xattrs| xattrs.bytes().len());
        ((size_of::<Inode>() + xattrs + content) as u64) <= self.block
    }

    fn write_head(&self, sections: &ImageSections, out: &mut Output<impl Write>) -> Result<()> {
        let devices = self.layout.device_blobs();
        let device_count = devices.len() + usize::from(self.layout.has_pack());
        let features = erofs::CHUNKED_FILE | if device_count > 0 { erofs::DEVICE_TABLE } else { 0 };
        let mut superblock = Superblock {
            magic: erofs::MAGIC.into(),
            feature_compat: COMPAT_MTIME.into(),
            block_bits: self.layout.block_bits,
            // The root is one of the first inodes: it begins with the second block at the latest.
            root: (self.inodes[ROOT as usize] as u16).into(),
            inodes: u64::from(self.snapshot.manifest().entries()).into(),
            blocks: ((sections.end / self.block) as u32).into(),
            metadata_block: ((sections.inodes / self.block) as u32).into(),
            feature_incompat: features.into(),
            // The layout has no more than fit.
            devices: (device_count as u16).into(),
            device_table: ((device_table() / DEVICE_SLOT_BYTES) as u16).into(),
            ..Superblock::default()
        };
        superblock.uuid.copy_from_slice(&self.snapshot.tree_id().0[..16]);
        superblock.volume_name[..5].copy_from_slice(b"bdnfs");
        out.pad_to(erofs::SUPERBLOCK_OFFSET)?;
        out.write(superblock.as_bytes())?;
        let pack = self.layout.has_pack().then(|| self.layout.pack_bytes());
        let sizes = devices.iter().map(|blob| self.snapshot.manifest().blob_size(*blob));
        for size in pack.map(Ok).into_iter().chain(sizes) {
            let blocks = (size?.div_ceil(self.block) as u32).into();
            let slot = DeviceSlot {
                tag: Default::default(),
                blocks,
                mapped_block: 0.into(),
                reserved: Default::default(),
            };
            out.write(slot.as_bytes())?;
        }
        Ok(())
    }

    fn write_inodes(&mut self, sections: &ImageSections, out: &mut Output<impl Write>) -> Result<()> {
        let mut contents = sections.contents;
        let (uid, gid) = (self.options.uid, self.options.gid);
        for index in 0..self.snapshot.manifest().entries() {
            let entry = self.snapshot.manifest().entry(index)?;
            let tail = match (&entry.node, self.content(index, &entry)?) {
                (_, Some(content)) if self.fits_inline(index, &entry, content.len()) => Tail::Inline(content),
                (_, Some(content)) => {
                    let len = content.len() as u64;
                    let first = (contents / self.block) as u32;
                    contents += len.next_multiple_of(self.block);
                    Tail::Blocks { len, first }
                }
                (Node::File(slice), None) => match self.layout.chunks(index, *slice) {
                    Some(chunks) => {
                        Tail::Chunks { len: slice.len, chunks, block_bits: self.layout.block_bits }
                    }
                    None => Tail::Blocks { len: 0, first: 0 },
                },
                (_, None) => Tail::Blocks { len: 0, first: 0 },
            };
            let owner = (node::mode(&entry, self.options.allow_other), uid, gid);
            let xattrs = self.xattrs(index, &entry)?;
            out.pad_to(sections.inodes + u64::from(self.inodes[index as usize]) * INODE_SLOT_BYTES)?;
            // The number that FUSE mounts show, where a program sees numbers of 32 bits.
            out.write(&node::encode(&entry, index.wrapping_add(1), owner, &xattrs, &tail))?;
        }
        out.pad_to(sections.contents)
    }

    fn write_contents(&mut self, sections: &ImageSections, out: &mut Output<impl Write>) -> Result<()> {
        for index in 0..self.snapshot.manifest().entries() {
            let entry = self.snapshot.manifest().entry(index)?;
            let Some(content) = self.content(index, &entry)? else { continue };
            if !self.fits_inline(index, &entry, content.len()) {
                out.write(&content)?;
                out.pad_to(out.at.next_multiple_of(self.block))?;
            }
        }
        out.pad_to(sections.end)
    }

    /// The content of a directory or link; until the inodes are numbered, only its length is right.
    fn content(&self, index: u32, entry: &Entry<'_>) -> Result<Option<Vec<u8>>> {
        match entry.node {
            Node::File(_) => Ok(None),
            Node::Symlink(target) => Ok(Some(target.to_vec())),
            Node::Directory(_) => self.directory(index, entry.parent).map(Some),
        }
    }

    fn directory(&self, index: u32, parent: u32) -> Result<Vec<u8>> {
        let mut blocks = DirectoryBlocks::new(self.block as usize);
        let number = |entry: u32| u64::from(self.inodes[entry as usize]);
        let mut dots = [(&b"."[..], number(index)), (b"..", number(parent))].into_iter().peekable();
        for child in self.snapshot.manifest().children(index)? {
            let (child, entry) = child?;
            while let Some((name, inode)) = dots.next_if(|(name, _)| *name < entry.name) {
                blocks.add(name, inode, erofs::DIRECTORY);
            }
            let kind = match entry.node {
                Node::Directory(_) => erofs::DIRECTORY,
                Node::File(_) => erofs::REGULAR,
                Node::Symlink(_) => erofs::SYMLINK,
            };
            blocks.add(entry.name, number(child), kind);
        }
        for (name, inode) in dots {
            blocks.add(name, inode, erofs::DIRECTORY);
        }
        Ok(blocks.finish())
    }

    /// The attributes that a FUSE mount returns for a local entry.
    fn xattrs(&mut self, index: u32, entry: &Entry<'_>) -> Result<Xattrs> {
        let (mut xattrs, manifest) = (Xattrs::default(), self.snapshot.manifest());
        let local = match entry.node {
            Node::Symlink(_) => return Ok(xattrs),
            Node::File(slice) => {
                if let Some(digest) = self.digest(slice)? {
                    xattrs.add("bdnfs.digest", digest.to_string().as_bytes());
                }
                Some(slice.len)
            }
            Node::Directory(_) if index == ROOT => {
                xattrs.add("bdnfs.digest", self.snapshot.id().to_string().as_bytes());
                Some(manifest.bytes())
            }
            Node::Directory(_) => None,
        };
        xattrs.add("bdnfs.source", &manifest.origin_path(index)?);
        if let Some(bytes) = local {
            xattrs.add("bdnfs.local", format!("{bytes}/{bytes}").as_bytes());
        }
        if let (ROOT, Some(control)) = (index, &self.options.control) {
            xattrs.add("bdnfs.control", control.as_os_str().as_bytes());
        }
        Ok(xattrs)
    }

    /// The digest of a file, if it is known. Asked again it is the same, whatever became of the blob meanwhile: inodes are measured
    /// before they are written.
    fn digest(&mut self, slice: Slice) -> Result<Option<Digest>> {
        if slice.len != self.snapshot.manifest().blob_size(slice.blob)? {
            return Ok(None);
        }
        match self.digests[slice.blob as usize] {
            Some(known) => Ok(known),
            None => {
                let digest = self.snapshot.digest(slice)?;
                self.digests[slice.blob as usize] = Some(digest);
                Ok(digest)
            }
        }
    }
}

/// The offset of the device table: behind the superblock.
fn device_table() -> u64 {
    erofs::SUPERBLOCK_OFFSET + size_of::<Superblock>() as u64
}

/// The image as it is written, from its beginning to its end.
struct Output<W> {
    out: W,
    at: u64,
}

impl<W: Write> Output<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(failed)
    }

    /// Writes zeros up to byte `end` of the image, which is not behind that yet.
    fn pad_to(&mut self, end: u64) -> Result<()> {
        let Some(zeros) = end.checked_sub(self.at) else {
            return Err(failed(io::Error::other("a part of it is longer than it was measured")));
        };
        io::copy(&mut io::Read::take(io::repeat(0), zeros), &mut self.out).map_err(failed)?;
        self.at += zeros;
        Ok(())
    }
}

fn failed(error: io::Error) -> Error {
    Error::disk("cannot write the EROFS image of a snapshot", error)
}

fn too_large() -> Error {
    Error::new(Kind::Unsupported, "the snapshot is too large for an EROFS image")
}
