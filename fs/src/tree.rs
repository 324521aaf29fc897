//! The tree as the kernel sees it: node ids, attributes and listings, made from a manifest's entries. Pure.
//!
//! Entry `i` of the manifest has the number `i + 1`, so the root has the 1 that FUSE wants and numbers are the same after every
//! restart. A file has two node ids, its base and its *twin*, because the kernel insists that all handles of a node be of one kind:
//! those opened while the file was partial stay with one id, those opened when it is whole go to the other
//! ([`open_table`](crate::open_table)). When what its handles read was not right, the file moves on to the two ids of the next
//! *generation*. All show the same number to people.

use bdnfs::manifest::{Entry, Node};

use crate::wire::abi::{Attr, AttrOut, EntryOut};

/// The bit in which a twin's id differs from its base's. Far above every index, and not the sign bit, which some programs
/// misread.
const TWIN_BIT: u64 = 1 << 62;
/// The first generation of a file's ids: above every index, and the 1 that is added to it.
const GENERATION_SHIFT: u32 = 33;
/// The time for which the kernel may cache names and attributes, in seconds: practically for ever, since nothing changes. 136 years
/// rather than the largest number, so that no arithmetic on it can overflow.
const CACHE_TTL_SECONDS: u64 = u32::MAX as u64;
/// The size of a read that `stat` recommends, in bytes. As large as coreutils read anyhow, which makes it enough for
/// programs that obey it to copy at full speed; no larger, since those that seek about in a buffered stream
/// fill a buffer of it after each seek.
const PREFERRED_IO_BYTES: u32 = 128 << 10;

/// The base id of entry `index`.
pub(crate) fn base(index: u32) -> u64 {
    u64::from(index) + 1
}

/// The twin id of entry `index`.
pub(crate) fn twin(index: u32) -> u64 {
    base(index) | TWIN_BIT
}

/// The base and the twin id of entry `index` in a generation.
pub(crate) fn ids(index: u32, generation: u32) -> [u64; 2] {
    // A file that was damaged half a billion times shares its ids with an earlier state of it.
    let generation = u64::from(generation) << GENERATION_SHIFT & (TWIN_BIT - 1);
    [base(index) | generation, twin(index) | generation]
}

/// The generation of the id `node`.
pub(crate) fn generation(node: u64) -> u32 {
    ((node & (TWIN_BIT - 1)) >> GENERATION_SHIFT) as u32
}

/// The entry that has the id `node`.
pub(crate) fn index(node: u64) -> Option<u32> {
    let unused = node >> 63 != 0;
    u32::try_from((node & ((1 << GENERATION_SHIFT) - 1)).checked_sub(1)?).ok().filter(|_| !unused)
}

/// The owner of all files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOwner {
    /// The user.
    pub(crate) uid: u32,
    /// The group.
    pub(crate) gid: u32,
    /// Whether modes let the user write. An overlay above takes them for its own.
    pub(crate) may_write: bool,
}

impl FileOwner {
    /// The attributes of `entry`, which is the manifest's entry `index`.
    pub(crate) fn attributes(self, index: u32, entry: &Entry<'_>) -> Attr {
        let write = if self.may_write { libc::S_IWUSR } else { 0 };
        let (kind, size) = match &entry.node {
            Node::Directory(_) => (libc::S_IFDIR | 0o555 | write, 0),
            Node::File(slice) => {
                (libc::S_IFREG | if entry.executable { 0o555 } else { 0o444 } | write, slice.len)
            }
            Node::Symlink(target) => (libc::S_IFLNK | 0o777, target.len() as u64),
        };
        let (seconds, nanoseconds) = entry.mtime;
        Attr {
            ino: base(index),
            size,
            blocks: size.div_ceil(512),
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            mode: kind,
            // For directories too: 1 tells `find` that their subdirectories are not counted here.
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: PREFERRED_IO_BYTES,
            flags: 0,
        }
    }
}

/// The reply to LOOKUP: the node `node` with its attributes, both to be cached for ever.
pub(crate) fn entry_reply(node: u64, attr: Attr) -> EntryOut {
    EntryOut {
        node,
        entry_valid: CACHE_TTL_SECONDS,
        attr_valid: CACHE_TTL_SECONDS,
        attr,
        ..EntryOut::default()
    }
}

/// The reply to LOOKUP of a name that does not exist, to be cached for ever, too.
pub(crate) fn negative_entry() -> EntryOut {
    entry_reply(0, Attr::default())
}

/// The entry of `.` or `..` in a listing: no node id, since the kernel has these nodes already, but an inode number to show.
pub(crate) fn dot_entry(directory: u32) -> EntryOut {
    entry_reply(0, Attr { ino: base(directory), mode: libc::S_IFDIR, ..Attr::default() })
}

/// The reply to GETATTR.
pub(crate) fn attr_reply(attr: Attr) -> AttrOut {
    AttrOut { attr_valid: CACHE_TTL_SECONDS, attr, ..AttrOut::default() }
}

/// The entry at one position of a directory's listing. Positions are the values of `telldir`: stable, and a
/// listing can continue at any of them at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirPosition {
    /// `.`
    Itself,
    /// `..`
    Parent,
    /// The child with this number, counted from 0.
    Child(u32),
}

impl DirPosition {
    /// The position with the offset `offset`.
    pub(crate) fn at(offset: u64) -> Option<Self> {
        match offset {
            0 => Some(Self::Itself),
            1 => Some(Self::Parent),
            _ => u32::try_from(offset - 2).ok().map(Self::Child),
        }
    }
}

#[cfg(test)]
mod tests {
    use bdnfs::manifest::Slice;
    use proptest::prelude::*;

    use super::*;

    const OWNER: FileOwner = FileOwner { uid: 7, gid: 8, may_write: false };

    fn entry(node: Node<'_>) -> Entry<'_> {
        Entry { name: b"n", parent: 0, mtime: (-5, 9), executable: true, node }
    }

    #[test]
    fn attributes_of_an_entry_are_those_of_the_manifest() {
        let file = entry(Node::File(Slice { blob: 3, offset: 10, len: 1025 }));
        let attr = OWNER.attributes(4, &file);
        assert_eq!((attr.ino, attr.size, attr.blocks), (5, 1025, 3));
        assert_eq!((attr.mtime, attr.mtimensec, attr.uid, attr.gid), (-5, 9, 7, 8));
        assert_eq!(attr.mode, libc::S_IFREG | 0o555);
        assert_eq!(OWNER.attributes(0, &entry(Node::Directory(1..9))).mode, libc::S_IFDIR | 0o555);
        let link = OWNER.attributes(1, &entry(Node::Symlink(b"../x")));
        assert_eq!((link.mode, link.size), (libc::S_IFLNK | 0o777, 4));
        let plain = Entry { executable: false, ..file };
        assert_eq!(OWNER.attributes(4, &plain).mode, libc::S_IFREG | 0o444);
        let writer = FileOwner { may_write: true, ..OWNER };
        assert_eq!(writer.attributes(4, &plain).mode, libc::S_IFREG | 0o644);
        assert_eq!(writer.attributes(0, &entry(Node::Directory(1..9))).mode, libc::S_IFDIR | 0o755);
    }

    #[test]
    fn listing_begins_with_the_directory_and_its_parent() {
        assert_eq!(DirPosition::at(0), Some(DirPosition::Itself));
        assert_eq!(DirPosition::at(1), Some(DirPosition::Parent));
        assert_eq!(DirPosition::at(2), Some(DirPosition::Child(0)));
        assert_eq!(DirPosition::at(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn node_id_base_or_twin_leads_to_the_entry(i: u32, node: u64, at in 0u32..1 << 29) {
            for id in ids(i, at) {
                prop_assert_eq!((index(id), generation(id)), (Some(i), at));
            }
            prop_assert_eq!(ids(i, 0), [base(i), twin(i)]);
            prop_assert_eq!(index(base(i)), Some(i));
            prop_assert_eq!(index(twin(i)), Some(i));
            prop_assert_ne!(base(i), twin(i));
            if let Some(i) = index(node) {
                prop_assert!(ids(i, generation(node)).contains(&node));
            }
        }
    }
}
