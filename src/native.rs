//! Native snapshots: an EROFS image over the cache's own files, which the kernel serves without any process of ours.
//!
//! ```text
//!   image     superblock, device table, inodes, directories: all metadata of the snapshot        (a file without a name)
//!   device 1  the pack: the content of all small files, each from a boundary of a block on      (a blob of the cache)
//!   device 2… a large file each                                                                 (the cache's own blobs)
//! ```
//!
//! `data_layout` decides which file lies where, `aligned_pack` makes the pack as a snapshot of one file, so that it is staged,
//! leased, verified and evicted as all else is, and [`image`] writes the metadata. The format is the kernel's
//! (`fs/erofs/erofs_fs.h`); chunk-based files and a device table need Linux 5.16, and images that are files 6.12.

mod aligned_pack;
mod data_layout;
mod dirents;
mod erofs;
pub mod image;
mod native_snapshot;
mod node;
mod packed_sources;

pub use data_layout::DevicePart;
pub use native_snapshot::{MAX_WORTHWHILE_FILE_BYTES, NativeSnapshot, is_worthwhile};
