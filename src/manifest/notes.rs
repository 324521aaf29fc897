//! Notes for users on a listing that is valid.

use super::name::QuotedName;

/// The number of skipped entries that are listed one by one.
const MAX_LISTED_SKIPPED: usize = 10;

/// Notes for users on a listing that is valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListingNotes {
    /// Patterns that matched nothing: most likely a slip.
    pub unmatched: Vec<String>,
    /// The number of entries that were left out since they hold no data: fifos, sockets and devices.
    pub skipped: u64,
    /// The first ten of them: their names, and what they are.
    pub first_skipped: Vec<String>,
}

impl ListingNotes {
    /// Notes that what is at `path` is left out, and why.
    pub(super) fn skip(&mut self, path: &[u8], why: &str) {
        self.skipped += 1;
        if self.first_skipped.len() < MAX_LISTED_SKIPPED {
            self.first_skipped.push(format!("{}: {why}", QuotedName(path)));
        }
    }
}
