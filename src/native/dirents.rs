//! Directories of an EROFS image: blocks of entries sorted by name, each block with its names behind its entries.

use zerocopy::IntoBytes;

use super::erofs::DirectoryEntry;

/// The length of an entry without its name.
const ENTRY_BYTES: usize = size_of::<DirectoryEntry>();

/// The blocks of one directory, filled one after the other.
#[derive(Debug)]
pub(super) struct DirectoryBlocks {
    block: usize,
    /// The entries of the block that is being filled, without their offsets, and their names.
    entries: Vec<(u64, u8, usize)>,
    names: Vec<u8>,
    filled: Vec<u8>,
}

impl DirectoryBlocks {
    /// No entries yet, in blocks of `block` bytes.
    pub(super) fn new(block: usize) -> Self {
        Self { block, entries: Vec::new(), names: Vec::new(), filled: Vec::new() }
    }

    /// Adds the entry `name` of a `kind`, which is the inode `inode`. Names come in order.
    pub(super) fn add(&mut self, name: &[u8], inode: u64, kind: u8) {
        if self.used() + ENTRY_BYTES + name.len() > self.block {
            self.flush();
            // All but the last block are full.
            self.filled.resize(self.filled.len().next_multiple_of(self.block), 0);
        }
        self.entries.push((inode, kind, self.names.len()));
        self.names.extend_from_slice(name);
    }

    /// The directory's content: its length is the directory's size.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.filled
    }

    fn used(&self) -> usize {
        self.entries.len() * ENTRY_BYTES + self.names.len()
    }

    fn flush(&mut self) {
        let names = self.entries.len() * ENTRY_BYTES;
        for (inode, kind, name) in self.entries.drain(..) {
            // Within a block, which is at most 64 KiB.
            let entry = DirectoryEntry {
                inode: inode.into(),
                name_offset: ((names + name) as u16).into(),
                kind,
                reserved: 0,
            };
            self.filled.extend_from_slice(entry.as_bytes());
        }
        self.filled.append(&mut self.names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_larger_than_a_block_continues_in_the_next() {
        let mut blocks = DirectoryBlocks::new(64);
        blocks.add(b".", 1, 2);
        blocks.add(b"..", 2, 2);
        blocks.add(&[b'x'; 30], 3, 1);
        let content = blocks.finish();
        assert_eq!(content.len(), 64 + 12 + 30);
        // The first block has two entries, so its first name lies behind 24 bytes.
        assert_eq!((content[8], &content[24..27], content[27..64].iter().max()), (24, &b"..."[..], Some(&0)));
        assert_eq!((content[64], content[72], &content[76..]), (3, 12, &[b'x'; 30][..]));
    }
}
