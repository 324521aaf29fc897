//! What a listing can't take.

use std::fmt;

use super::name::Shown;
use crate::error::{Error, Kind, Result};

/// How much of the list an error holds, in bytes: more than anybody reads, and little enough for a log.
const ROOM: usize = 64 << 10;

/// What is told each of them, as it is found: its path and why.
pub(super) type Teller = Box<dyn FnMut(&[u8], &str) + Send>;

/// What can't be an entry: the first ones, and how many there are.
#[derive(Default)]
pub(super) struct Bad {
    text: String,
    told: u64,
    count: u64,
    pub teller: Option<Teller>,
}

impl Bad {
    pub(super) fn add(&mut self, path: &[u8], why: &str) {
        self.count += 1;
        if let Some(tell) = &mut self.teller {
            tell(path, why);
        }
        if self.text.len() < ROOM {
            let separator = if self.told == 0 { "" } else { "; " };
            self.text.push_str(&format!("{separator}{}: {why}", Shown(path)));
            self.told += 1;
        }
    }

    /// # Errors
    /// [`Kind::Invalid`] if there is anything.
    pub(super) fn check(&self, origin: &str) -> Result<()> {
        let more = match self.count - self.told {
            0 if self.count == 0 => return Ok(()),
            0 => String::new(),
            more => format!("; and {more} more: `bdnfs ls` prints all of them"),
        };
        let text = format!(
            "{origin} holds what can't be mounted; rename it, or leave it out by a pattern: {}{more}",
            self.text
        );
        Err(Error::new(Kind::Invalid, text))
    }
}

impl fmt::Debug for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bad").field("count", &self.count).finish_non_exhaustive()
    }
}
