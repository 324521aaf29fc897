//! Read-ahead: how far to fetch ahead of a sequential reader.

use std::ops::Range;

/// The first and the largest window: a small part of the budget.
const INITIAL_WINDOW_BYTES: u64 = 4 << 20;
const MAX_WINDOW_BYTES: u64 = 64 << 20;

/// How many requests may fly ahead of one reader. On a slow link, where extents are short, more of them would only take
/// bandwidth from readers that wait for a block now.
const REQUESTS_AHEAD: u64 = 8;

/// Distance from the expected offset within which a read is still sequential: the kernel reads ahead in
/// several requests, and they arrive in any order.
const REORDER_SLACK_BYTES: u64 = 8 << 20;

/// The read-ahead window of one reader.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// The offset at which the next read is expected.
    next: u64,
    size: u64,
    /// Up to where was asked for already.
    asked: u64,
}

impl ReadAhead {
    /// Records a read of `range` from a file of `len` bytes, and returns what to fetch ahead of it, in
    /// requests of `extent` bytes.
    pub fn advance(&mut self, range: &Range<u64>, len: u64, extent: u64) -> Range<u64> {
        let near = self.next > 0
            && range.start <= self.next + REORDER_SLACK_BYTES
            && range.start + REORDER_SLACK_BYTES >= self.next;
        if !near {
            *self = Self { next: range.end, size: 0, asked: range.end };
            return 0..0;
        }
        if range.end <= self.next {
            return 0..0;
        }
        self.next = range.end;
        self.size =
            (self.size * 2).clamp(INITIAL_WINDOW_BYTES, MAX_WINDOW_BYTES.min(REQUESTS_AHEAD * extent));
        let from = self.asked.max(range.end);
        let to = (range.end + self.size).min(len);
        // In steps of half the window, so that requests stay long.
        if to < from + self.size / 2 && to < len || to <= from {
            return 0..0;
        }
        self.asked = to;
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_follows_sequential_and_not_random_readers() {
        let mut read_ahead = ReadAhead::default();
        let (len, step) = (200 << 20, 1 << 20);
        let mut covered = step;
        for start in (0..len).step_by(step as usize) {
            let ahead = read_ahead.advance(&(start..start + step), len, 8 << 20);
            if !ahead.is_empty() {
                assert_eq!(ahead.start, covered.max(start + step), "nothing left out, nothing asked twice");
                covered = ahead.end;
            }
            assert!(covered <= start + step + MAX_WINDOW_BYTES);
            assert!(start < 2 * step || covered > start + step || covered == len, "ahead at {start}");
        }
        assert_eq!(covered, len);
        for start in [150, 20, 90, 60].map(|at| at << 20) {
            assert!(read_ahead.advance(&(start..start + step), len, 8 << 20).is_empty());
        }
    }

    #[test]
    fn read_ahead_of_reordered_requests_is_sequential() {
        let mut read_ahead = ReadAhead::default();
        let order = [0, 2, 1, 4, 3, 6, 5u64].map(|i| i << 20);
        let asked: u64 = order
            .map(|s| read_ahead.advance(&(s..s + (1 << 20)), 1 << 30, 8 << 20))
            .map(|r| r.end - r.start)
            .iter()
            .sum();
        assert!(asked >= 16 << 20);
    }
}
