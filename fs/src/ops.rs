//! Operations: the reply to each request.
//!
//! What the manifest or the local disk knows is answered at once, on the thread that read the request. What may have to wait
//! for another tier becomes a task ([`replies`](crate::replies)): no device thread ever waits for the network.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bdnfs::error::Error;
use bdnfs::manifest::{Entry, Manifest, Node, Slice};
use bdnfs::read::Reader;
use bdnfs::snapshot::Snapshot;
use rustix::io::Errno;
use tokio::runtime::Handle;

use crate::activity::ActivitySignal;
use crate::errno;
use crate::files::{FileTable, OpenOutcome};
use crate::metrics::RequestMetrics;
use crate::replies::{PendingReplies, Reply, RequestContext};
use crate::stalled_requests::StalledRequests;
use crate::tree::{self, DirPosition, FileOwner};
use crate::wire::abi::StatfsOut;
use crate::wire::dir::DirentBuffer;
use crate::wire::flags::open;
use crate::wire::request::{Operation, Request};

/// The longest read and the longest listing, in bytes, as agreed with the kernel.
pub(crate) const MAX_READ_BYTES: usize = 1 << 20;
/// The unit of `statfs`, in bytes.
const STATFS_BLOCK: u32 = 4096;
/// The longest name, in bytes: that of Linux.
const NAME_MAX: u32 = 255;

/// A mounted snapshot: replies to the kernel's requests.
#[derive(Debug)]
pub(crate) struct Filesystem {
    pub(crate) itself: Weak<Filesystem>,
    pub(crate) runtime: Handle,
    pub(crate) snapshot: Arc<Snapshot>,
    /// The owner of all files.
    pub(crate) owner: FileOwner,
    /// The value of the root's `user.bdnfs.control`.
    pub(crate) control: Option<PathBuf>,
    /// Whether there are no extended attributes: the kernel then asks only once.
    pub(crate) steady: bool,
    pub(crate) files: FileTable,
    pub(crate) replies: PendingReplies,
    pub(crate) metrics: Arc<RequestMetrics>,
    pub(crate) activity: ActivitySignal,
    pub(crate) late: StalledRequests,
}

impl Filesystem {
    /// The reply to `request`; where that is [`Reply::Nothing`], a task may send one in its `context`.
    pub(crate) fn handle(&self, context: &RequestContext, request: &Request<'_>) -> Result<Reply, Errno> {
        self.activity.record();
        let node = request.node;
        match request.operation.as_ref().ok_or(Errno::INVAL)? {
            Operation::Lookup { name } => self.lookup(node, name),
            Operation::Getattr => self.getattr(node),
            Operation::Readlink => self.readlink(node),
            Operation::Open { flags } => self.open(context, node, *flags),
            Operation::Read { fh, offset, size } => self.read(context, node, *fh, *offset, *size),
            Operation::Release { fh } => {
                self.files.close(node, *fh);
                Ok(Reply::Done)
            }
            Operation::Readdir { offset, size, plus } => self.readdir(node, *offset, *size, *plus),
            Operation::Statfs => Ok(self.statfs()),
            Operation::Getxattr { .. } | Operation::Listxattr { .. } if self.steady => Err(Errno::NOSYS),
            Operation::Getxattr { name, size } => self.getxattr(context, index(node)?, name, *size),
            Operation::Listxattr { size } => self.listxattr(context, index(node)?, *size),
            Operation::Interrupt { unique } => {
                self.replies.interrupt(*unique);
                Ok(Reply::Nothing)
            }
            Operation::Forget => Ok(Reply::Nothing),
            Operation::Destroy => Ok(Reply::Done),
            Operation::Change => Err(Errno::ROFS),
            // The kernel does without them, and sends most of them only once; INIT came before all this. Among them are
            // OPENDIR (without it, directories open ten times as fast, and listings are cached just the same) and FLUSH.
            Operation::Init { .. } | Operation::Unknown => Err(Errno::NOSYS),
        }
    }

    /// Does `work`, which touches the local disk, for the request of `context` on this thread.
    ///
    /// # Errors
    /// What `work` has come to, where that took too long: the request is answered with what `late` says.
    pub(crate) fn in_time<T>(
        &self,
        context: &RequestContext,
        work: impl FnOnce() -> T,
        late: impl FnOnce(&Self, &RequestContext) -> Result<Reply, Errno> + Send + 'static,
    ) -> Result<T, T> {
        let (filesystem, context) = (self.itself.clone(), context.clone());
        self.late.watch(&self.runtime, work, move || {
            // It is there as long as one of its threads is. What is not answered by now is answered by the next process.
            let Some(filesystem) = filesystem.upgrade().filter(|it| !it.replies.is_handed_over()) else {
                return;
            };
            // The manifest may have to be read, too.
            let runtime = filesystem.runtime.clone();
            runtime.spawn_blocking(move || context.reply_with(|| late(&filesystem, &context)));
        })
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

    /// The node id that a lookup of entry `index` returns now.
    fn node(&self, index: u32, entry: &Entry<'_>) -> u64 {
        match entry.node {
            Node::File(_) => self.files.lookup_node(index),
            _ => tree::base(index),
        }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<Reply, Errno> {
        if name.len() > NAME_MAX as usize {
            return Err(Errno::NAMETOOLONG);
        }
        let parent = index(parent)?;
        let child =
            self.manifest().lookup(parent, name).map_err(|error| failed(&self.snapshot, parent, &error))?;
        let Some(index) = child else { return Ok(Reply::of(&tree::negative_entry())) };
        let entry = self.entry(index)?;
        let attr = self.owner.attributes(index, &entry);
        Ok(Reply::of(&tree::entry_reply(self.node(index, &entry), attr)))
    }

    fn getattr(&self, node: u64) -> Result<Reply, Errno> {
        let index = index(node)?;
        let attr = self.owner.attributes(index, &self.entry(index)?);
        Ok(Reply::of(&tree::attr_reply(attr)))
    }

    fn readlink(&self, node: u64) -> Result<Reply, Errno> {
        match self.entry(index(node)?)?.node {
            Node::Symlink(target) => Ok(Reply::Body(target.to_vec())),
            _ => Err(Errno::INVAL),
        }
    }

    fn open(&self, context: &RequestContext, node: u64, flags: u32) -> Result<Reply, Errno> {
        let flags = flags as libc::c_int;
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
            return Err(Errno::ROFS);
        }
        let (index, slice) = self.file(node)?;
        let open = || self.files.open(context.unique, node, index, slice);
        let opened = self.in_time(context, open, move |filesystem, context| {
            filesystem.opened(index, filesystem.files.open_past_cache(context.unique, node, index, slice))
        });
        match opened {
            Ok(opened) => self.opened(index, opened),
            Err(late) => {
                if let Ok(OpenOutcome::Opened(out)) = late {
                    self.files.close(node, out.fh);
                }
                Ok(Reply::Nothing)
            }
        }
    }

    /// The reply to an OPEN of the file `index`.
    fn opened(&self, index: u32, opened: Result<OpenOutcome, Error>) -> Result<Reply, Errno> {
        let out = match opened.map_err(|error| failed(&self.snapshot, index, &error))? {
            OpenOutcome::Opened(out) => out,
            // The kernel looks the name up again, and opens what that leads to. Only who opens the damaged file itself anew, by
            // /proc/self/fd or a bind of this one file, sees it.
            OpenOutcome::Moved => return Err(Errno::STALE),
            OpenOutcome::Stateless => return Err(Errno::NOSYS),
        };
        self.metrics.record_open(out.flags & open::PASSTHROUGH != 0);
        Ok(Reply::of(&out))
    }

    fn read(
        &self,
        context: &RequestContext,
        node: u64,
        fh: u64,
        offset: u64,
        size: u32,
    ) -> Result<Reply, Errno> {
        let (index, slice) = self.file(node)?;
        let size = MAX_READ_BYTES.min(size as usize);
        let read = || {
            let reader = self.files.reader(fh, index, slice)?;
            let pieces = reader.as_ref().and_then(|reader| reader.try_read_at(offset, size));
            Ok((reader, pieces))
        };
        let read = self.in_time(context, read, move |filesystem, context| {
            let reader = filesystem.files.reader_past_cache(fh, index, slice);
            filesystem.read_later(context, index, reader, offset, size)
        });
        match read {
            Ok(Ok((_, Some(pieces)))) => Ok(Reply::Pieces(pieces)),
            Ok(read) => self.read_later(context, index, read.map(|(reader, _)| reader), offset, size),
            Err(_) => Ok(Reply::Nothing),
        }
    }

    /// Reads from the file `index` by `reader` in a task, which may wait for other tiers.
    fn read_later(
        &self,
        context: &RequestContext,
        index: u32,
        reader: Result<Option<Arc<Reader>>, Error>,
        offset: u64,
        size: usize,
    ) -> Result<Reply, Errno> {
        let reader = reader.map_err(|error| failed(&self.snapshot, index, &error))?.ok_or(Errno::BADF)?;
        let snapshot = self.snapshot.clone();
        self.replies.spawn(context, async move {
            tracing::debug!(path = %path(&snapshot, index), offset, size, "not all of it is local");
            let read = reader.read_at(offset, size).await;
            read.map(Reply::Pieces).map_err(|error| self::failed(&snapshot, index, &error))
        })
    }

    /// A directory's entries, straight from the manifest: there is nothing to open and nothing is kept
    /// between calls.
    fn readdir(&self, node: u64, offset: u64, size: u32, plus: bool) -> Result<Reply, Errno> {
        let directory = index(node)?;
        let entry = self.entry(directory)?;
        let Node::Directory(children) = &entry.node else { return Err(Errno::NOTDIR) };
        let mut buffer = DirentBuffer::new(MAX_READ_BYTES.min(size as usize), plus);
        let mut offset = offset;
        while let Some(position) = DirPosition::at(offset) {
            offset += 1;
            let fits = match position {
                DirPosition::Itself => buffer.push(b".", offset, &tree::dot_entry(directory)),
                DirPosition::Parent => buffer.push(b"..", offset, &tree::dot_entry(entry.parent)),
                DirPosition::Child(nth) => {
                    let Some(child) = children.start.checked_add(nth).filter(|child| *child < children.end)
                    else {
                        break;
                    };
                    let entry = self.entry(child)?;
                    let attr = self.owner.attributes(child, &entry);
                    buffer.push(entry.name, offset, &tree::entry_reply(self.node(child, &entry), attr))
                }
            };
            if !fits {
                break;
            }
        }
        Ok(Reply::Body(buffer.finish()))
    }

    fn statfs(&self) -> Reply {
        let manifest = self.manifest();
        Reply::of(&StatfsOut {
            blocks: manifest.bytes().div_ceil(STATFS_BLOCK.into()),
            files: manifest.files(),
            bsize: STATFS_BLOCK,
            frsize: STATFS_BLOCK,
            namelen: NAME_MAX,
            ..StatfsOut::default()
        })
    }
}

/// The errno of `error`, which concerns entry `index`; logs it.
pub(crate) fn failed(snapshot: &Snapshot, index: u32, error: &Error) -> Errno {
    tracing::warn!(path = %path(snapshot, index), %error, "a request failed");
    errno::from_kind(error.kind())
}

/// The path of entry `index`, for a person.
fn path(snapshot: &Snapshot, index: u32) -> String {
    String::from_utf8_lossy(&snapshot.manifest().path(index).unwrap_or_default()).into_owned()
}

/// The entry with the id `node`.
fn index(node: u64) -> Result<u32, Errno> {
    tree::index(node).ok_or(Errno::NOENT)
}
