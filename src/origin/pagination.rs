//! Detects listings that never end.

use crate::error::{Error, Kind, Result};

/// The number of pages in a row that may be empty. Services send some where much was deleted; one that sends nothing else would be
/// asked for ever.
const EMPTY_PAGE_LIMIT: u32 = 1000;

/// Checks that the pages of a listing come to an end.
///
/// Not every service lists its keys in order (S3's directory buckets don't), so what shows a cycle is a key that comes
/// again. One key is remembered, and after 1, 2, 4, 8 and so on pages another one: Brent's algorithm, which takes at most
/// three times the pages that differ. A listing may have no key twice, so none is refused that would be valid.
#[derive(Debug)]
pub(super) struct Pagination {
    /// The name of the service in messages.
    service: &'static str,
    remembered: Option<Vec<u8>>,
    /// The number of pages that were not empty.
    full: u64,
    /// The number of empty pages since the last that was not.
    empty: u32,
}

impl Pagination {
    /// A listing of what messages call `service`, before its first page.
    pub(super) fn of(service: &'static str) -> Self {
        Self { service, remembered: None, full: 0, empty: 0 }
    }

    /// Whether any page had a key.
    pub(super) fn has_keys(&self) -> bool {
        self.full > 0
    }

    /// Checks the keys of the next page.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when the pages repeat.
    pub(super) fn check_keys<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let mut last = None;
        for key in keys {
            if self.remembered.as_deref() == Some(key) {
                let key = String::from_utf8_lossy(key);
                return Err(self.endless(&format!("repeats key {key:?} on a later page")));
            }
            last = Some(key);
        }
        let Some(last) = last else {
            self.empty += 1;
            return match self.empty {
                EMPTY_PAGE_LIMIT => {
                    Err(self.endless(&format!("sends {EMPTY_PAGE_LIMIT} empty pages in a row")))
                }
                _ => Ok(()),
            };
        };
        (self.full, self.empty) = (self.full + 1, 0);
        if self.full.is_power_of_two() {
            self.remembered = Some(last.to_vec());
        }
        Ok(())
    }

    /// Checks that the page after the one at `current` is another one.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] where it is the same.
    pub(super) fn check_cursor(&self, current: Option<&str>, next: &str) -> Result<()> {
        match current == Some(next) {
            true => Err(self.endless("sends the same page again")),
            false => Ok(()),
        }
    }

    fn endless(&self, what: &str) -> Error {
        let text = format!("{} {what}, so its listing may never end", self.service);
        Error::new(Kind::Unsupported, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the pages that are taken until one is refused, at most `most`; `page` gives the keys of each.
    fn count_taken_pages(most: usize, page: impl Fn(usize) -> Vec<usize>) -> usize {
        let mut pages = Pagination::of("the service");
        let took = |n: &usize| {
            let keys: Vec<_> = page(*n).iter().map(|key| key.to_string().into_bytes()).collect();
            pages.check_keys(keys.iter().map(Vec::as_slice)).is_ok()
        };
        (0..most).take_while(took).count()
    }

    #[test]
    fn pages_in_a_cycle_are_refused_wherever_it_begins() {
        for (before, round) in [(0, 1), (0, 2), (1, 1), (5, 3), (0, 1000), (1000, 1), (777, 1234)] {
            let page = |n: usize| if n < before { n } else { before + (n - before) % round };
            let taken = count_taken_pages(usize::MAX, |n| (page(n) * 10..page(n) * 10 + 10).collect());
            assert!((before + round..=3 * (before + round)).contains(&taken), "{before} {round}: {taken}");
        }
    }

    #[test]
    fn pages_in_a_cycle_that_is_cut_differently_are_refused() {
        let taken = count_taken_pages(usize::MAX, |n| (n * 10..n * 10 + 10).map(|key| key % 103).collect());
        assert!(taken <= 40, "{taken}");
    }

    #[test]
    fn pages_in_any_order_are_taken_to_their_end() {
        assert_eq!(
            count_taken_pages(5000, |n| (0..10).map(|key| (n * 10 + key) * 7919 % 1_000_003).collect()),
            5000
        );
        let sparse = |n: usize| if n.is_multiple_of(1000) { vec![n] } else { Vec::new() };
        assert_eq!(count_taken_pages(5000, sparse), 5000);
        assert_eq!(count_taken_pages(5000, |_| Vec::new()), 999);
    }
}
