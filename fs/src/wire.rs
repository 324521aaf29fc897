//! The FUSE wire: what the kernel and a file system say to each other over `/dev/fuse`.
//!
//! Everything here is pure: bytes in, values out, and back. The numbers are those of the kernel's
//! `include/uapi/linux/fuse.h`.

pub(crate) mod abi;
pub(crate) mod dir;
pub(crate) mod flags;
pub(crate) mod request;
