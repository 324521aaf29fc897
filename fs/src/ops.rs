//! Operations: what each request is answered with.
//!
//! Whatever the manifest or the local disk can tell is answered at once, on the thread that took the request.
//! What may have to wait for another tier becomes a task ([`later`](crate::later)); so no device thread ever
//! waits for the network.

use std::path::PathBuf;
use std::sync::Arc;

use bdnfs::error::Error;
use bdnfs::manifest::{Entry, Manifest, Node, Slice};
use bdnfs::snapshot::Snapshot;
use bytes::Bytes;
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::errno;
use crate::files::Files;
use crate::later::{Caller, Later};
use crate::served::Served;
use crate::tidy::Stir;
use crate::tree::{self, Owner, Position};
use crate::wire::abi::StatfsOut;
use crate::wire::dir::Listing;
use crate::wire::flags::open;
use crate::wire::request::{Operation, Request};

/// The longest read and the longest listing, in bytes: what the kernel is told to ask for at most.
pub(crate) const LONGEST: usize = 1 << 20;
/// What `statfs` counts in, in bytes.
const BLOCK: u32 = 4096;
/// The longest name, in bytes: that of Linux.
const NAME: u32 = 255;

/// What a request is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A structure or other bytes.
    Body(Vec<u8>),
    /// Bytes of a file, piece by piece.
    Pieces(Vec<Bytes>),
    /// That it is done.
    Done,
    /// Nothing: it wants no answer, or gets it later.
    Nothing,
}

impl Answer {
    /// A structure.
    pub(crate) fn of(body: &(impl IntoBytes + Immutable)) -> Self {
        Self::Body(body.as_bytes().to_vec())
    }
}

/// A snapshot, as it answers the kernel.
#[derive(Debug)]
pub(crate) struct Filesystem {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Whom everything belongs to.
    pub(crate) owner: Owner,
    /// What the root's `user.bdnfs.control` shows.
    pub(crate) control: Option<PathBuf>,
    pub(crate) files: Files,
    pub(crate) later: Later,
    pub(crate) served: Arc<Served>,
    /// Says that something is asked.
    pub(crate) stir: Stir,
}

impl Filesystem {
    /// Answers `request`, which `caller` made.
    pub(crate) fn answer(&self, caller: &Caller, request: &Request<'_>) -> Result<Answer, Errno> {
        self.stir.note();
        let node = request.node;
        match request.operation.as_ref().ok_or(Errno::INVAL)? {
            Operation::Lookup { name } => self.lookup(node, name),
            Operation::Getattr => self.getattr(node),
            Operation::Readlink => self.readlink(node),
            Operation::Open { flags } => self.open(caller, node, *flags),
            Operation::Read { fh, offset, size } => self.read(caller, node, *fh, *offset, *size),
            Operation::Release { fh } => {
                self.files.close(node, *fh);
                Ok(Answer::Done)
            }
            Operation::Readdir { offset, size, plus } => self.readdir(node, *offset, *size, *plus),
            Operation::Statfs => Ok(self.statfs()),
            Operation::Getxattr { name, size } => self.getxattr(caller, index(node)?, name, *size),
            Operation::Listxattr { size } => self.listxattr(index(node)?, *size),
            Operation::Interrupt { unique } => {
                self.later.interrupt(*unique);
                Ok(Answer::Nothing)
            }
            Operation::Forget => Ok(Answer::Nothing),
            Operation::Destroy => Ok(Answer::Done),
            Operation::Change => Err(Errno::ROFS),
            // The kernel does without and for most operations doesn't ask again; INIT came before all this.
            // Among them is OPENDIR: without it, directories open ten times as fast, and listings are cached
            // just the same.
            Operation::Init { .. } | Operation::Unknown => Err(Errno::NOSYS),
        }
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        self.snapshot.manifest()
    }

    /// Entry `index` of the manifest.
    pub(crate) fn entry(&self, index: u32) -> Result<Entry<'_>, Errno> {
        self.manifest().entry(index).map_err(|error| failed(&self.snapshot, index, &error))
    }

    /// The regular file with the id `node`.
    fn file(&self, node: u64) -> Result<(u32, Slice), Errno> {
        let index = index(node)?;
        match self.entry(index)?.node {
            Node::File(slice) => Ok((index, slice)),
            Node::Directory(_) => Err(Errno::ISDIR),
            Node::Symlink(_) => Err(Errno::INVAL),
        }
    }

    /// The node id that entry `index` is known by now.
    fn node(&self, index: u32, entry: &Entry<'_>) -> u64 {
        match entry.node {
            Node::File(_) => self.files.node(index),
            _ => tree::base(index),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<Answer, Errno> {
        if name.len() > NAME as usize {
            return Err(Errno::NAMETOOLONG);
        }
        let parent = index(parent)?;
        let child =
            self.manifest().lookup(parent, name).map_err(|error| failed(&self.snapshot, parent, &error))?;
        let Some(index) = child else { return Ok(Answer::of(&tree::missing())) };
        let entry = self.entry(index)?;
        let attr = self.owner.attributes(index, &entry);
        Ok(Answer::of(&tree::found(self.node(index, &entry), attr)))
    }

    fn getattr(&self, node: u64) -> Result<Answer, Errno> {
        let index = index(node)?;
        let attr = self.owner.attributes(index, &self.entry(index)?);
        Ok(Answer::of(&tree::attributes(attr)))
    }

    fn readlink(&self, node: u64) -> Result<Answer, Errno> {
        match self.entry(index(node)?)?.node {
            Node::Symlink(target) => Ok(Answer::Body(target.to_vec())),
            _ => Err(Errno::INVAL),
        }
    }

    fn open(&self, caller: &Caller, node: u64, flags: u32) -> Result<Answer, Errno> {
        let flags = flags as libc::c_int;
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return Err(Errno::ROFS);
        }
        let (index, slice) = self.file(node)?;
        let opened = self.files.open(caller.unique, node, index, slice);
        let opened = opened.map_err(|error| failed(&self.snapshot, index, &error))?;
        let out = opened.ok_or(Errno::NOSYS)?;
        self.served.opened(out.flags & open::PASSTHROUGH != 0);
        Ok(Answer::of(&out))
    }

    fn read(&self, caller: &Caller, node: u64, fh: u64, offset: u64, size: u32) -> Result<Answer, Errno> {
        let (index, slice) = self.file(node)?;
        let failed = |error| failed(&self.snapshot, index, &error);
        let reader = self.files.reader(fh, index, slice).map_err(failed)?.ok_or(Errno::BADF)?;
        let size = LONGEST.min(size as usize);
        if let Some(pieces) = reader.try_read_at(offset, size) {
            return Ok(Answer::Pieces(pieces));
        }
        let snapshot = self.snapshot.clone();
        self.later.answer(caller, async move {
            tracing::debug!(path = %path(&snapshot, index), offset, size, "not all of it is local");
            let read = reader.read_at(offset, size).await;
            read.map(Answer::Pieces).map_err(|error| self::failed(&snapshot, index, &error))
        })
    }

    /// A directory's entries, straight from the manifest: there is nothing to open and nothing is kept
    /// between calls.
    fn readdir(&self, node: u64, offset: u64, size: u32, plus: bool) -> Result<Answer, Errno> {
        let directory = index(node)?;
        let entry = self.entry(directory)?;
        let Node::Directory(children) = &entry.node else { return Err(Errno::NOTDIR) };
        let mut listing = Listing::new(LONGEST.min(size as usize), plus);
        let mut offset = offset;
        while let Some(position) = Position::at(offset) {
            offset += 1;
            let fits = match position {
                Position::Itself => listing.push(b".", offset, &tree::known(directory)),
                Position::Parent => listing.push(b"..", offset, &tree::known(entry.parent)),
                Position::Child(nth) => {
                    let Some(child) = children.start.checked_add(nth).filter(|child| *child < children.end)
                    else {
                        break;
                    };
                    let entry = self.entry(child)?;
                    let attr = self.owner.attributes(child, &entry);
                    listing.push(entry.name, offset, &tree::found(self.node(child, &entry), attr))
                }
            };
            if !fits {
                break;
            }
        }
        Ok(Answer::Body(listing.finish()))
    }

    fn statfs(&self) -> Answer {
        let manifest = self.manifest();
        Answer::of(&StatfsOut {
            blocks: manifest.bytes().div_ceil(BLOCK.into()),
            files: manifest.files(),
            bsize: BLOCK,
            frsize: BLOCK,
            namelen: NAME,
            ..StatfsOut::default()
        })
    }
}

/// The errno of `error`, which befell entry `index`, and a word in the log.
pub(crate) fn failed(snapshot: &Snapshot, index: u32, error: &Error) -> Errno {
    tracing::warn!(path = %path(snapshot, index), %error, "a request failed");
    errno::of(error.kind())
}

/// The path of entry `index`, for a person.
fn path(snapshot: &Snapshot, index: u32) -> String {
    String::from_utf8_lossy(&snapshot.manifest().path(index).unwrap_or_default()).into_owned()
}

/// The entry with the id `node`.
fn index(node: u64) -> Result<u32, Errno> {
    tree::index(node).ok_or(Errno::NOENT)
}
