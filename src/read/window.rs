//! The sequential window: how far to fetch ahead of a reader.

use std::ops::Range;

/// Where the window opens, and how far it may: a small part of the budget.
const FIRST: u64 = 4 << 20;
const MOST: u64 = 64 << 20;

/// How many requests may fly ahead of one reader. On a slow link, where extents are short, more of them would only take
/// its bytes from whoever waits for a block now.
const REQUESTS: u64 = 8;

/// How far from the expected place a read may lie and still be taken for sequential: the kernel reads ahead in
/// several requests, and they arrive in any order.
const SLACK: u64 = 8 << 20;

/// Follows one reader.
#[derive(Debug, Default)]
pub struct Window {
    /// Where the next read is expected.
    next: u64,
    size: u64,
    /// Up to where was asked for already.
    asked: u64,
}

impl Window {
    /// Takes note of a read of `range` from a file of `len` bytes, and answers with what to fetch ahead of it, in requests
    /// of `extent` bytes.
    pub fn advance(&mut self, range: &Range<u64>, len: u64, extent: u64) -> Range<u64> {
        let near = self.next > 0 && range.start <= self.next + SLACK && range.start + SLACK >= self.next;
        if !near {
            *self = Self { next: range.end, size: 0, asked: range.end };
            return 0..0;
        }
        if range.end <= self.next {
            return 0..0;
        }
        self.next = range.end;
        self.size = (self.size * 2).clamp(FIRST, MOST.min(REQUESTS * extent));
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
    fn a_sequential_reader_is_led_and_a_random_one_is_not() {
        let mut window = Window::default();
        let (len, step) = (200 << 20, 1 << 20);
        let mut covered = step;
        for start in (0..len).step_by(step as usize) {
            let ahead = window.advance(&(start..start + step), len, 8 << 20);
            if !ahead.is_empty() {
                assert_eq!(ahead.start, covered.max(start + step), "nothing left out, nothing asked twice");
                covered = ahead.end;
            }
            assert!(covered <= start + step + MOST);
            assert!(start < 2 * step || covered > start + step || covered == len, "ahead at {start}");
        }
        assert_eq!(covered, len);
        for start in [150, 20, 90, 60].map(|at| at << 20) {
            assert!(window.advance(&(start..start + step), len, 8 << 20).is_empty());
        }
    }

    #[test]
    fn requests_out_of_order_are_still_a_sequence() {
        let mut window = Window::default();
        let order = [0, 2, 1, 4, 3, 6, 5u64].map(|i| i << 20);
        let asked: u64 = order
            .map(|s| window.advance(&(s..s + (1 << 20)), 1 << 30, 8 << 20))
            .map(|r| r.end - r.start)
            .iter()
            .sum();
        assert!(asked >= 16 << 20);
    }
}
