//! The flags and numbers of the FUSE protocol that bdnfs uses.

/// The protocol's major version; the only one there has been since 2006.
pub(crate) const MAJOR: u32 = 7;
/// The minor version that the structures of [`abi`](super::abi) follow: 7.40, which brought passthrough.
pub(crate) const MINOR: u32 = 40;
/// The oldest minor version that is served: 7.28 (Linux 4.20) brought requests of more than 128 KiB and
/// cached symbolic links, and all structures used here have had their present size since.
pub(crate) const MIN_MINOR: u32 = 28;

/// INIT flags, the kernel's offer and our choice of it. The upper half travels as `flags2`.
pub(crate) mod init {
    /// Several reads of one file may be under way.
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    /// Directories are listed by READDIRPLUS.
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    /// Lookups and listings of one directory may run side by side.
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The reply's `max_pages` counts.
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Cached pages are never dropped because an attribute looks different.
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// `flags2` counts.
    pub(crate) const EXT: u64 = 1 << 30;
    /// OPEN may be answered with a backing file.
    pub(crate) const PASSTHROUGH: u64 = 1 << 37;
    /// Unanswered requests can be received again.
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
    /// The mount may be bound with other ids (Linux 6.12). The kernel takes it only beside the mount option
    /// `default_permissions`; else the handshake fails.
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
}

/// Flags of a reply to OPEN.
pub(crate) mod open {
    /// Pages that are cached stay so.
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    /// `close` sends no FLUSH, so it waits for nothing.
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    /// Reads and mappings go to the backing file. The kernel takes NOFLUSH beside it, but not KEEP_CACHE.
    pub(crate) const PASSTHROUGH: u32 = 1 << 7;
}

/// Codes of notifications, which stand in place of the error in a reply with no `unique`.
pub(crate) mod notify {
    /// Pages of a file are to be read anew.
    pub(crate) const INVAL_INODE: i32 = 2;
    /// A name is to be looked up anew.
    pub(crate) const INVAL_ENTRY: i32 = 3;
    /// The requests that were taken and not answered are to be sent again.
    pub(crate) const RESEND: i32 = 7;
}

/// Marks the number of a request that is sent again.
pub(crate) const RESENT: u64 = 1 << 63;

/// Operation codes.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
}
