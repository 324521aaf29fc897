//! Ahead: who reads one small file after the other finds the next ones in the page cache.
//!
//! A file by itself is too small to be read ahead of its reader, and the next one lies elsewhere on the disk: without this
//! each would wait for a directory, an inode and its bytes, one after the other. Only what is on the local disk is
//! brought: what is never opened is never fetched.

use std::ops::Range;

/// So many files in a row make a sequence.
const RUN: u32 = 4;
/// How many files are brought ahead of it. A disk answers some dozens of requests as fast as one.
const WINDOW: u32 = 64;

/// Follows the reads of a mount.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// The file that would go on with the sequence, and how long it is.
    next: u32,
    run: u32,
    /// Up to where was brought already.
    brought: u32,
}

impl Ahead {
    /// Takes note of a read of file `index`, and answers with which files to bring.
    pub(crate) fn advance(&mut self, index: u32) -> Range<u32> {
        // Other entries may lie between two files, and several readers take turns.
        if index < self.next && index + RUN >= self.next {
            return 0..0;
        }
        if !(self.next..self.next + RUN).contains(&index) {
            *self = Self { next: index + 1, run: 1, brought: index + 1 };
            return 0..0;
        }
        self.next = index + 1;
        self.run += 1;
        let from = self.brought.max(self.next);
        let to = self.next + WINDOW;
        // In steps of half the window, so that there is something to do at once.
        if self.run < RUN || to - from < WINDOW / 2 {
            return 0..0;
        }
        self.brought = to;
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_is_led_and_others_are_not() {
        let mut ahead = Ahead::default();
        let mut brought = 0;
        for index in 10..500 {
            let range = ahead.advance(index);
            assert_eq!(ahead.advance(index), 0..0, "a second read of the same file");
            if !range.is_empty() {
                assert!(range.start == brought.max(index + 1), "nothing left out, nothing twice");
                brought = range.end;
            }
            assert!(brought <= index + 1 + WINDOW);
            assert!(index < 10 + RUN || brought > index + WINDOW / 2 - 1, "ahead at {index}");
        }
        for index in [7, 3, 90, 50, 20, 4000] {
            assert!(ahead.advance(index).is_empty());
        }
    }

    #[test]
    fn readers_that_take_turns_are_one_sequence() {
        let mut ahead = Ahead::default();
        let brought: u32 =
            [0, 2, 1, 4, 3, 6, 5, 8, 10, 9].map(|index| ahead.advance(index).len() as u32).iter().sum();
        assert!(brought >= WINDOW);
    }
}
