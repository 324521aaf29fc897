//! The structures of the FUSE protocol that bdnfs uses, laid out as the kernel lays them out.
//!
//! Fields that bdnfs has no use for are named `_unused`; the kernel ignores them in replies.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The header of every request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InHeader {
    /// Length of the request, this header included.
    pub(crate) len: u32,
    /// The operation, as the kernel numbers it.
    pub(crate) opcode: u32,
    /// The request's number, never used again on this mount.
    pub(crate) unique: u64,
    /// The node it is about.
    pub(crate) node: u64,
    pub(crate) _unused: [u32; 4],
}

/// The header of every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OutHeader {
    /// Length of the reply, this header included.
    pub(crate) len: u32,
    /// 0, or a negative errno; in a notification its code.
    pub(crate) error: i32,
    /// The number of the request that is answered; 0 in a notification.
    pub(crate) unique: u64,
}

/// INIT, the kernel's side. Kernels before 7.36 send no more than `flags`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
}

/// INIT, our side.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// In bytes.
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    /// The number of background requests (readahead) that may be under way.
    pub(crate) max_background: u16,
    /// Number of background requests from which on the mount counts as congested.
    pub(crate) congestion_threshold: u16,
    /// In bytes.
    pub(crate) max_write: u32,
    /// Granularity of time stamps in nanoseconds.
    pub(crate) time_gran: u32,
    /// The longest request, in pages.
    pub(crate) max_pages: u16,
    pub(crate) _map_alignment: u16,
    pub(crate) flags2: u32,
    /// The number of file systems that may lie below this one; 1 or more for passthrough.
    pub(crate) max_stack_depth: u32,
    pub(crate) _unused: [u32; 6],
}

/// A node's attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Attr {
    /// The inode number in `stat`.
    pub(crate) ino: u64,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    /// Seconds since 1970, and so the next two; may be negative.
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) atimensec: u32,
    pub(crate) mtimensec: u32,
    pub(crate) ctimensec: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) blksize: u32,
    pub(crate) flags: u32,
}

/// Reply to LOOKUP, and a part of each READDIRPLUS entry.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct EntryOut {
    /// 0: there is no such name, and the kernel may remember that.
    pub(crate) node: u64,
    pub(crate) generation: u64,
    /// The time for which the name may be cached, in seconds.
    pub(crate) entry_valid: u64,
    /// The time for which the attributes may be cached, in seconds.
    pub(crate) attr_valid: u64,
    pub(crate) entry_valid_nsec: u32,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) attr: Attr,
}

/// Reply to GETATTR.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct AttrOut {
    /// The time for which they may be cached, in seconds.
    pub(crate) attr_valid: u64,
    pub(crate) attr_valid_nsec: u32,
    pub(crate) _unused: u32,
    pub(crate) attr: Attr,
}

/// OPEN.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OpenIn {
    /// The flags of `open(2)`.
    pub(crate) flags: u32,
    pub(crate) _unused: u32,
}

/// Reply to OPEN.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct OpenOut {
    /// A number that comes back with every request on this handle.
    pub(crate) fh: u64,
    /// Of [`flags::open`](super::flags::open).
    pub(crate) flags: u32,
    /// The registered backing file, with passthrough.
    pub(crate) backing: u32,
}

/// RELEASE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReleaseIn {
    pub(crate) fh: u64,
    pub(crate) _unused: [u32; 4],
}

/// READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReadIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) _unused: [u32; 5],
}

/// Reply to STATFS.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct StatfsOut {
    /// In units of `frsize`, and so the next two.
    pub(crate) blocks: u64,
    pub(crate) bfree: u64,
    pub(crate) bavail: u64,
    pub(crate) files: u64,
    pub(crate) ffree: u64,
    pub(crate) bsize: u32,
    pub(crate) namelen: u32,
    pub(crate) frsize: u32,
    pub(crate) _unused: [u32; 7],
}

/// GETXATTR and LISTXATTR, and what answers them when `size` is 0: then it is the size that is wanted.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct XattrSize {
    pub(crate) size: u32,
    pub(crate) _unused: u32,
}

/// INTERRUPT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InterruptIn {
    /// The number of the request that is to be given up.
    pub(crate) unique: u64,
}

/// An entry of a READDIR reply; the name follows, padded to 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Dirent {
    pub(crate) ino: u64,
    /// The offset after this entry.
    pub(crate) next: u64,
    pub(crate) namelen: u32,
    /// The file type: the upper bits of its mode, shifted down by 12.
    pub(crate) kind: u32,
}

/// Notification that a name is to be looked up anew; the name follows, with a zero byte at its end.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InvalEntryOut {
    pub(crate) parent: u64,
    /// Without the zero byte.
    pub(crate) namelen: u32,
    pub(crate) flags: u32,
}

/// Notification that pages of a file are to be read anew.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct InvalInodeOut {
    pub(crate) node: u64,
    pub(crate) offset: i64,
    /// 0: to the end.
    pub(crate) len: i64,
}

/// The argument of the ioctl that registers a backing file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct BackingMap {
    pub(crate) fd: i32,
    pub(crate) flags: u32,
    pub(crate) _unused: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abi_sizes_are_those_of_the_kernel() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<OpenOut>(), 16);
        assert_eq!(size_of::<ReleaseIn>(), 24);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<StatfsOut>(), 80);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<InvalEntryOut>(), 16);
        assert_eq!(size_of::<InvalInodeOut>(), 24);
        assert_eq!(size_of::<BackingMap>(), 16);
    }
}
