//! Entries that a listing rejects, with the reasons.

use std::fmt;

use super::name::QuotedName;
use crate::error::{Error, Kind, Result};

/// The number of bytes of the list that an error holds: more than a person reads, and little enough for a log.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Callback for each rejected entry, as it is found: its path and why.
pub(super) type RejectionCallback = Box<dyn FnMut(&[u8], &str) + Send>;

/// The rejected entries: the text of the first ones, and how many there are.
#[derive(Default)]
pub(super) struct RejectedEntries {
    text: String,
    listed: u64,
    count: u64,
    pub callback: Option<RejectionCallback>,
}

impl RejectedEntries {
    pub(super) fn add(&mut self, path: &[u8], why: &str) {
        self.count += 1;
        if let Some(tell) = &mut self.callback {
            tell(path, why);
        }
        if self.text.len() < MAX_ERROR_BYTES {
            let separator = if self.listed == 0 { "" } else { "; " };
            self.text.push_str(&format!("{separator}{}: {why}", QuotedName(path)));
            self.listed += 1;
        }
    }

    /// # Errors
    /// [`Kind::Invalid`] if there is anything.
    pub(super) fn check(&self, origin: &str) -> Result<()> {
        let more = match self.count - self.listed {
            0 if self.count == 0 => return Ok(()),
            0 => String::new(),
            more => format!("; and {more} more: `bdnfs ls` prints all of them"),
        };
        let text = format!(
            "{origin} contains what cannot be mounted; rename it, or exclude it with --ignore: {}{more}",
            self.text
        );
        Err(Error::new(Kind::Invalid, text))
    }
}

impl fmt::Debug for RejectedEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bad").field("count", &self.count).finish_non_exhaustive()
    }
}
