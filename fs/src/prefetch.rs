//! Prefetch of small files: a process that reads one small file after the other finds the next ones in the page cache.
//!
//! A small file is over before the kernel's readahead helps, and the next one lies elsewhere on the disk: without this each
//! would wait for a directory, an inode and its bytes, one after the other. Only what is on the local disk is prefetched: a
//! file that is never opened is never fetched.

use std::ops::Range;

/// How many files in a row make a sequence.
const SEQUENCE_MIN: u32 = 4;
/// How many files are prefetched ahead of a sequence. A disk answers some dozens of requests as fast as one.
const WINDOW_FILES: u32 = 64;

/// Detects sequential reads of a mount's files, and says which files to prefetch.
#[derive(Debug, Default)]
pub(crate) struct Prefetcher {
    /// The index of the file that would continue the sequence.
    next: u32,
    /// How many files of the sequence were read.
    length: u32,
    /// The end of what was prefetched already.
    prefetched: u32,
}

impl Prefetcher {
    /// Records a read of file `index`, and returns the indices of the files to prefetch.
    pub(crate) fn advance(&mut self, index: u32) -> Range<u32> {
        // Other entries may lie between two files, and several readers take turns.
        if index < self.next && index + SEQUENCE_MIN >= self.next {
            return 0..0;
        }
        if !(self.next..self.next + SEQUENCE_MIN).contains(&index) {
            *self = Self { next: index + 1, length: 1, prefetched: index + 1 };
            return 0..0;
        }
        self.next = index + 1;
        self.length += 1;
        let from = self.prefetched.max(self.next);
        let to = self.next + WINDOW_FILES;
        // In steps of half the window, so that there is something to do at once.
        if self.length < SEQUENCE_MIN || to - from < WINDOW_FILES / 2 {
            return 0..0;
        }
        self.prefetched = to;
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetcher_sequential_reads_stays_ahead_and_random_reads_prefetch_nothing() {
        let mut prefetcher = Prefetcher::default();
        let mut prefetched = 0;
        for index in 10..500 {
            let range = prefetcher.advance(index);
            assert_eq!(prefetcher.advance(index), 0..0, "a second read of the same file");
            if !range.is_empty() {
                assert!(range.start == prefetched.max(index + 1), "nothing left out, nothing twice");
                prefetched = range.end;
            }
            assert!(prefetched <= index + 1 + WINDOW_FILES);
            assert!(
                index < 10 + SEQUENCE_MIN || prefetched > index + WINDOW_FILES / 2 - 1,
                "ahead at {index}"
            );
        }
        for index in [7, 3, 90, 50, 20, 4000] {
            assert!(prefetcher.advance(index).is_empty());
        }
    }

    #[test]
    fn prefetcher_interleaved_readers_are_one_sequence() {
        let mut prefetcher = Prefetcher::default();
        let prefetched: u32 =
            [0, 2, 1, 4, 3, 6, 5, 8, 10, 9].map(|index| prefetcher.advance(index).len() as u32).iter().sum();
        assert!(prefetched >= WINDOW_FILES);
    }
}
