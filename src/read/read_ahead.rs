//! Read-ahead: how far to fetch ahead of a sequential reader.

use std::ops::Range;

/// The first and the largest window: a small part of the budget.
const INITIAL_WINDOW_BYTES: u64 = 4 << 20;
const MAX_WINDOW_BYTES: u64 = 64 << 20;

/// The number of requests that may fly ahead of one reader. On a slow link, where extents are short, more of them would only take
/// bandwidth from readers that wait for a block now.
const REQUESTS_AHEAD: u64 = 8;

/// The distance from the expected offset at which a read may begin and still be sequential: so many times its own length or that of
/// the one before it, and at most so many bytes. The kernel reads ahead in several requests, and they arrive in any order; single
/// pages that lie megabytes apart are no sequence.
const REORDER_SLACK_READS: u64 = 32;
const MAX_REORDER_SLACK_BYTES: u64 = 8 << 20;

/// The read-ahead window of one reader.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// The offset at which the next read is expected.
    next: u64,
    /// The length of the last read.
    length: u64,
    size: u64,
    /// Up to where was asked for already.
    asked: u64,
    has_jumped: bool,
}

impl ReadAhead {
    /// Records a read of `range`, and returns what to fetch ahead of it, in requests of `request` bytes. That may reach beyond the
    /// end of the file.
    pub fn advance(&mut self, range: &Range<u64>, request: u64) -> Range<u64> {
        let length = range.end - range.start;
        let slack = (length.max(self.length) * REORDER_SLACK_READS).min(MAX_REORDER_SLACK_BYTES);
        self.length = length;
        if self.next == 0 || range.start.abs_diff(self.next) > slack {
            // The first read says nothing of what follows, and at the beginning of a file begin sequences.
            let has_jumped = self.next > 0 && range.start > 0;
            *self = Self { next: range.end, length, size: 0, asked: range.end, has_jumped };
            return 0..0;
        }
        self.has_jumped = false;
        if range.end <= self.next {
            return 0..0;
        }
        self.next = range.end;
        self.size =
            (self.size * 2).clamp(INITIAL_WINDOW_BYTES, MAX_WINDOW_BYTES.min(REQUESTS_AHEAD * request));
        let from = self.asked.max(range.end);
        let to = range.end + self.size;
        // In steps of one request: shorter ones would cost more, and longer ones leave fewer under way.
        if to < from + request.min(self.size) {
            return 0..0;
        }
        // Up to where one ends, as nodes of a cluster cut them.
        self.asked = if self.size < request { to } else { to - to % request };
        from..self.asked
    }

    /// Whether the last read was far from the one before it, and not at the beginning of the file.
    pub fn has_jumped(&self) -> bool {
        self.has_jumped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns what to fetch ahead of a read of `length` bytes at `start`, in requests of 8 MiB.
    fn advance(read_ahead: &mut ReadAhead, start: u64, length: u64) -> Range<u64> {
        read_ahead.advance(&(start..start + length), 8 * MIB)
    }

    #[test]
    fn read_ahead_follows_sequential_and_not_random_readers() {
        let mut read_ahead = ReadAhead::default();
        let mut covered = MIB;
        for start in (0..200 * MIB).step_by(MIB as usize) {
            let ahead = advance(&mut read_ahead, start, MIB);
            if !ahead.is_empty() {
                assert_eq!(ahead.start, covered.max(start + MIB), "nothing left out, nothing asked twice");
                covered = ahead.end;
            }
            assert!(covered <= start + MIB + MAX_WINDOW_BYTES);
            assert!(start < 2 * MIB || covered > start + MIB, "ahead at {start}");
            assert!(start < 32 * MIB || covered > start + MAX_WINDOW_BYTES - 8 * MIB, "far ahead at {start}");
        }
        for start in [150, 20, 90, 60].map(|at| at * MIB) {
            assert!(advance(&mut read_ahead, start, MIB).is_empty());
        }
    }

    #[test]
    fn read_ahead_with_a_full_window_ends_where_requests_end() {
        for request in [MIB, 5 * MIB, 16 * MIB] {
            let mut read_ahead = ReadAhead::default();
            let asked = (0..200).map(|at| read_ahead.advance(&(at * MIB..(at + 1) * MIB), request));
            let asked: Vec<_> = asked.filter(|ahead| !ahead.is_empty()).skip(4).collect();
            assert!(asked.len() >= 8, "{asked:?}");
            assert!(
                asked.iter().all(|ahead| ahead.start % request == 0 && ahead.end % request == 0),
                "{asked:?}"
            );
        }
    }

    #[test]
    fn read_ahead_of_reordered_requests_is_sequential() {
        let mut read_ahead = ReadAhead::default();
        let order = [0, 2, 1, 4, 3, 6, 5].map(|i| i * MIB);
        let ahead = order.map(|start| advance(&mut read_ahead, start, MIB));
        assert_eq!(ahead.iter().map(|range| range.end).max(), Some(16 * MIB));
    }

    #[test]
    fn read_ahead_of_short_read_after_long_ones_is_sequential() {
        let mut read_ahead = ReadAhead::default();
        for at in 0..3 {
            advance(&mut read_ahead, at * MIB, MIB);
        }
        assert!(
            !advance(&mut read_ahead, 4 * MIB, 4096).is_empty(),
            "the rest of what the kernel reads ahead comes first"
        );
    }

    #[test]
    fn read_ahead_of_single_pages_megabytes_apart_fetches_nothing() {
        let mut read_ahead = ReadAhead::default();
        for start in [0, 3, 5, 4, 9, 10].map(|at| at * MIB) {
            assert!(advance(&mut read_ahead, start, 4096).is_empty(), "{start}");
        }
    }
}
