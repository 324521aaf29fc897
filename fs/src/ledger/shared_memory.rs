//! The memory of a ledger: words in a sealed memory file, which outlives the process that made it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};

/// Words that several processes may share.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: File,
    memory: MmapRaw,
}

impl SharedMemory {
    /// Shared memory of `words` zeros. Those never written take no memory.
    pub(super) fn new(words: usize) -> std::io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("bdnfs-ledger", flags)?);
        file.set_len((words * size_of::<AtomicU64>()) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, words)
    }

    /// The `words` in `file`; `None`: it is not the memory of so many.
    pub(super) fn open(file: OwnedFd, words: usize) -> std::io::Result<Option<Self>> {
        let file = File::from(file);
        let sealed = rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed || file.metadata()?.len() != (words * size_of::<AtomicU64>()) as u64 {
            return Ok(None);
        }
        Self::map(file, words).map(Some)
    }

    fn map(file: File, words: usize) -> std::io::Result<Self> {
        let memory = MmapOptions::new().len(words * size_of::<AtomicU64>()).map_raw(&file)?;
        Ok(Self { file, memory })
    }

    /// All words.
    pub(super) fn words(&self) -> &[AtomicU64] {
        let words = self.memory.len() / size_of::<AtomicU64>();
        // SAFETY: the mapping is as long as this, begins at a page, and lives as long as `self`; the file is sealed, so that
        // none of it can go away. Other processes change it through atomics only, as this one does.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), words) }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
