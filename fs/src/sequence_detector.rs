//! Sequences of small files: a process that reads one small file after the other is to find the next ones in memory or on the disk.
//!
//! A small file is over before any read-ahead within it helps, and the next one lies elsewhere: without this each would wait for
//! a directory, an inode and its bytes on the disk, or for an answer of the source, one after the other. What is next is told by
//! the order of names; several processes or threads may each read a part of them.

use std::ops::Range;

/// The number of files in a row that make a sequence.
const MIN_SEQUENCE_FILES: u32 = 4;
/// The most files that are prefetched ahead of a sequence. A disk answers some dozens of requests as fast as one, and so does a
/// source.
const WINDOW_FILES: u32 = 64;
/// The maximum number of prefetched files for each file that was read: a short sequence may be chance.
const WINDOW_PER_FILE_READ: u32 = 4;
/// The number of sequences that are followed at once: more than a machine's data loaders have workers. The search through all takes
/// less than a microsecond.
const MAX_SEQUENCES: usize = 128;

/// Detects sequential reads of a mount's files, and says which files to prefetch.
#[derive(Debug, Default)]
pub(crate) struct SequenceDetector {
    /// The sequences, the most recently used last.
    sequences: Vec<Sequence>,
}

/// A sequence of files.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    /// The index of the file that would continue it.
    next: u32,
    /// The number of files of it that were read.
    length: u32,
    /// The end of what was prefetched already.
    prefetched: u32,
}

impl SequenceDetector {
    /// Records a read of file `index`, and returns the indices of the files to prefetch.
    pub(crate) fn advance(&mut self, index: u32) -> Range<u32> {
        let Some(at) = self.sequences.iter().rposition(|sequence| sequence.is_near(index)) else {
            if self.sequences.len() == MAX_SEQUENCES {
                // A single read may have been chance.
                let single = self.sequences.iter().position(|sequence| sequence.length == 1);
                self.sequences.remove(single.unwrap_or(0));
            }
            self.sequences.push(Sequence { next: index + 1, length: 1, prefetched: index + 1 });
            return 0..0;
        };
        self.sequences[at..].rotate_left(1);
        self.sequences.last_mut().map_or(0..0, |sequence| sequence.advance(index))
    }
}

impl Sequence {
    /// Whether the file `index` is one of it: other entries may lie between two files, and several readers take turns.
    fn is_near(&self, index: u32) -> bool {
        index < self.next + MIN_SEQUENCE_FILES && index + MIN_SEQUENCE_FILES >= self.next
    }

    fn advance(&mut self, index: u32) -> Range<u32> {
        if index < self.next {
            return 0..0;
        }
        self.next = index + 1;
        self.length += 1;
        let window = WINDOW_FILES.min(self.length.saturating_mul(WINDOW_PER_FILE_READ));
        let (from, to) = (self.prefetched.max(self.next), self.next + window);
        // In steps of half the window, so that there is something to do at once.
        if self.length < MIN_SEQUENCE_FILES || to.saturating_sub(from) < window / 2 {
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
    fn sequence_detector_sequential_reads_stays_ahead_and_random_reads_prefetch_nothing() {
        let mut detector = SequenceDetector::default();
        let mut prefetched = 0;
        for index in 10..500 {
            let range = detector.advance(index);
            assert_eq!(detector.advance(index), 0..0, "a second read of the same file");
            if !range.is_empty() {
                assert!(range.start == prefetched.max(index + 1), "nothing left out, nothing twice");
                prefetched = range.end;
            }
            assert!(prefetched <= index + 1 + WINDOW_FILES);
            let read = index - 9;
            let window = WINDOW_FILES.min(read * WINDOW_PER_FILE_READ);
            assert!(read < MIN_SEQUENCE_FILES || prefetched > index + window / 2, "ahead at {index}");
        }
        for index in [7, 3, 90, 50, 20, 4000] {
            assert!(detector.advance(index).is_empty());
        }
    }

    #[test]
    fn sequence_detector_interleaved_readers_are_one_sequence() {
        let mut detector = SequenceDetector::default();
        let order = [0, 2, 1, 4, 3, 6, 5, 8, 10, 9];
        let prefetched: u32 = order.map(|index| detector.advance(index).len() as u32).iter().sum();
        assert!(prefetched >= 16, "{prefetched}");
    }

    #[test]
    fn sequence_detector_with_several_readers_follows_each() {
        let mut detector = SequenceDetector::default();
        let mut prefetched = [0; 8];
        for step in 0..20 {
            for (reader, prefetched) in (0..).zip(&mut prefetched) {
                *prefetched += detector.advance(reader * 1000 + step).len();
            }
        }
        assert!(prefetched.iter().all(|files| *files >= 40), "{prefetched:?}");
    }

    #[test]
    fn sequence_detector_among_random_reads_follows_every_reader() {
        let mut detector = SequenceDetector::default();
        let mut prefetched = [0; 40];
        for step in 0..20 {
            for (reader, prefetched) in (0..).zip(&mut prefetched) {
                *prefetched += detector.advance(reader * 1000 + step).len();
                // Two reads of no order for each in order.
                for random in [1, 2] {
                    let index = 1_000_000 + (reader * 20 + step) * 100 + random * 50;
                    assert!(detector.advance(index).is_empty());
                }
            }
        }
        assert!(prefetched.iter().all(|files| *files >= 40), "{prefetched:?}");
    }
}
