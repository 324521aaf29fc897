//! Reasons for which an entry of a saved directory is left out.

use std::fmt;

/// The reason for which an entry is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A directory whose path can't be opened.
    LongPath,
    /// An entry on another file system.
    OtherFileSystem,
    /// A hard link to a file of another user.
    LinkedFile,
    /// A checkpoint whose name is not UTF-8.
    NotUtf8,
    /// A checkpoint or file that is to be renamed when it is whole.
    TemporaryName,
    /// A socket, which has no content that outlives its process.
    Socket,
    /// A fifo, likewise.
    Fifo,
    /// A device, likewise.
    Device,
}

impl SkipReason {
    /// Whether content is left out with it that its job may have finished.
    pub fn has_content(self) -> bool {
        !matches!(self, Self::TemporaryName | Self::Socket | Self::Fifo | Self::Device)
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LongPath => "its path is too long",
            Self::OtherFileSystem => "it lies on another file system",
            Self::LinkedFile => "it is a hard link to a file of another user",
            Self::NotUtf8 => "its name is not UTF-8",
            Self::TemporaryName => "it has a temporary name",
            Self::Socket => "it is a socket",
            Self::Fifo => "it is a fifo",
            Self::Device => "it is a device",
        })
    }
}
