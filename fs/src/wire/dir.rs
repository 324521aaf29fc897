//! Directory listings: entries packed the way READDIR and READDIRPLUS are answered.

use zerocopy::IntoBytes;

use super::abi::{Dirent, EntryOut};

/// Records lie at multiples of this many bytes.
const DIRENT_ALIGNMENT: usize = 8;

/// A reply to READDIR or READDIRPLUS that is being filled, never beyond the size that the kernel asked for.
#[derive(Debug)]
pub(crate) struct DirentBuffer {
    bytes: Vec<u8>,
    size: usize,
    plus: bool,
}

impl DirentBuffer {
    /// An empty reply of at most `size` bytes; with attributes, if `plus`.
    pub(crate) fn new(size: usize, plus: bool) -> Self {
        Self { bytes: Vec::with_capacity(size), size, plus }
    }

    /// Adds an entry, after which a listing continues at `next`. `false`: the reply is full.
    pub(crate) fn push(&mut self, name: &[u8], next: u64, entry: &EntryOut) -> bool {
        let head = if self.plus { size_of::<EntryOut>() } else { 0 };
        let record = (head + size_of::<Dirent>() + name.len()).next_multiple_of(DIRENT_ALIGNMENT);
        if self.bytes.len() + record > self.size {
            return false;
        }
        let end = self.bytes.len() + record;
        if self.plus {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let kind = entry.attr.mode >> 12;
        let dirent = Dirent { ino: entry.attr.ino, next, namelen: name.len() as u32, kind };
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// The reply.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    use super::*;

    /// The names of a listing as the kernel decodes them, each with the next offset.
    fn parse(mut bytes: &[u8], plus: bool) -> Vec<(Vec<u8>, u64)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let head = if plus { size_of::<EntryOut>() } else { 0 };
            let (dirent, rest) = Dirent::read_from_prefix(&bytes[head..]).expect("a whole record");
            let name = rest[..dirent.namelen as usize].to_vec();
            bytes = &bytes[(head + size_of::<Dirent>() + name.len()).next_multiple_of(DIRENT_ALIGNMENT)..];
            found.push((name, dirent.next));
        }
        found
    }

    proptest! {
        #[test]
        fn dirent_buffer_entries_read_back_as_packed(
            names in proptest::collection::vec(proptest::collection::vec(1_u8.., 1..255), 0..40),
            size in 0_usize..8192,
            plus: bool,
        ) {
            let mut listing = DirentBuffer::new(size, plus);
            let mut packed = Vec::new();
            for (next, name) in (1..).zip(&names) {
                if !listing.push(name, next, &EntryOut::default()) {
                    break;
                }
                packed.push((name.clone(), next));
            }
            let bytes = listing.finish();
            prop_assert!(bytes.len() <= size);
            prop_assert!(packed.len() == names.len() || bytes.len() + 152 + 256 > size);
            prop_assert_eq!(parse(&bytes, plus), packed);
        }
    }
}
