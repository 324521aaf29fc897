//! Reasons for which an entry of a saved directory is left out.

use std::fmt;

/// The reason for which an entry is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A file, directory or link whose path is too long to be opened.
    LongPath,
    /// An entry on another file system.
    OtherFileSystem,
    /// A hard link to a file of another user.
    LinkedFile,
    /// A checkpoint whose name is not UTF-8.
    NotUtf8,
    /// A checkpoint or file that is to be renamed when it is whole.
    TemporaryName,
    /// A symbolic link of a checkpoint without files, of which there is nothing to save.
    LinkWithoutFiles,
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
        !matches!(
            self,
            Self::TemporaryName | Self::LinkWithoutFiles | Self::Socket | Self::Fifo | Self::Device
        )
    }

    /// Whether it may no longer hold when the job has ended: what has a temporary name is renamed, and files come.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::TemporaryName | Self::LinkWithoutFiles)
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
            Self::LinkWithoutFiles => "it is a symbolic link, and no file of its checkpoint lies beside it",
            Self::Socket => "it is a socket",
            Self::Fifo => "it is a fifo",
            Self::Device => "it is a device",
        })
    }
}
