//! The pages of a listing, which have to come to an end.

use crate::error::{Error, Kind, Result};

/// How many pages in a row may be empty. Services send some where much was deleted; one that sends nothing else would be
/// asked for ever.
const EMPTY: u32 = 1000;

/// Looks at the pages that a service sends, for signs that they have no end.
///
/// Not every service lists its keys in their order (S3's directory buckets don't), so what shows that the pages go round in
/// a circle is a key that comes again. One of them is remembered, and after 1, 2, 4, 8 and so on pages another one: Brent's
/// way to find a cycle, which takes at most three times the pages that differ. No file may be there twice, so nothing is
/// refused here that would be taken in the end.
#[derive(Debug)]
pub(super) struct Pages {
    /// Who sends them, to begin a sentence with.
    service: &'static str,
    mark: Option<Vec<u8>>,
    /// How many have come that were not empty.
    full: u64,
    /// How many were empty since.
    empty: u32,
}

impl Pages {
    /// None yet, of what messages call `service`.
    pub(super) fn of(service: &'static str) -> Self {
        Self { service, mark: None, full: 0, empty: 0 }
    }

    /// Whether any was not empty.
    pub(super) fn any(&self) -> bool {
        self.full > 0
    }

    /// Takes the keys of the next one.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when there seems to be no end to them.
    pub(super) fn take<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        let mut last = None;
        for key in keys {
            if self.mark.as_deref() == Some(key) {
                let key = String::from_utf8_lossy(key);
                return Err(self.endless(&format!("lists {key:?} again, pages after it did so first")));
            }
            last = Some(key);
        }
        let Some(last) = last else {
            self.empty += 1;
            return match self.empty {
                EMPTY => Err(self.endless(&format!("sends {EMPTY} empty pages one after the other"))),
                _ => Ok(()),
            };
        };
        (self.full, self.empty) = (self.full + 1, 0);
        if self.full.is_power_of_two() {
            self.mark = Some(last.to_vec());
        }
        Ok(())
    }

    fn endless(&self, what: &str) -> Error {
        let text = format!("{} {what}, so its listing may never end; it is given up", self.service);
        Error::new(Kind::Unsupported, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many pages are taken of those whose keys `page` tells, at most `most`.
    fn taken(most: usize, page: impl Fn(usize) -> Vec<usize>) -> usize {
        let mut pages = Pages::of("the service");
        let took = |n: &usize| {
            let keys: Vec<_> = page(*n).iter().map(|key| key.to_string().into_bytes()).collect();
            pages.take(keys.iter().map(Vec::as_slice)).is_ok()
        };
        (0..most).take_while(took).count()
    }

    #[test]
    fn a_circle_is_found_wherever_it_begins() {
        for (before, round) in [(0, 1), (0, 2), (1, 1), (5, 3), (0, 1000), (1000, 1), (777, 1234)] {
            let page = |n: usize| if n < before { n } else { before + (n - before) % round };
            let taken = taken(usize::MAX, |n| (page(n) * 10..page(n) * 10 + 10).collect());
            assert!((before + round..=3 * (before + round)).contains(&taken), "{before} {round}: {taken}");
        }
    }

    #[test]
    fn a_circle_is_found_where_its_pages_begin_elsewhere_each_time() {
        let taken = taken(usize::MAX, |n| (n * 10..n * 10 + 10).map(|key| key % 103).collect());
        assert!(taken <= 40, "{taken}");
    }

    #[test]
    fn what_has_an_end_is_taken_in_any_order() {
        assert_eq!(taken(5000, |n| (0..10).map(|key| (n * 10 + key) * 7919 % 1_000_003).collect()), 5000);
        let sparse = |n: usize| if n.is_multiple_of(1000) { vec![n] } else { Vec::new() };
        assert_eq!(taken(5000, sparse), 5000);
        assert_eq!(taken(5000, |_| Vec::new()), 999);
    }
}
