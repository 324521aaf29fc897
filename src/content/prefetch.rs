//! Prefetch: what a reader will ask for soon is fetched before that.

use std::ops::Range;
use std::sync::Arc;

use crate::block;
use crate::error::Result;
use crate::tier::Urgency;

use super::Content;

impl Content {
    /// Starts to fetch `range` ahead of a sequential reader. Waits for nothing.
    pub fn prefetch(self: &Arc<Self>, range: Range<u64>) {
        if self.refutation.active_error().is_some() {
            return;
        }
        let (blocks, most) = (block::touched(&range), self.ahead_blocks());
        let mut index = blocks.start;
        while index < blocks.end {
            index = match self.join_or_start(index, most.min(blocks.end - index), Urgency::Ahead) {
                Some(flight) => flight.extent().range().end,
                None => index + 1,
            };
        }
    }

    /// Fetches what is missing of `range`, which will be read soon, and waits until it is stored.
    ///
    /// # Errors
    /// Those of the ladder and of the cache: who reads the range fetches it again.
    pub(crate) async fn prefetch_stored(self: &Arc<Self>, range: Range<u64>) -> Result<()> {
        let blocks = block::touched(&range);
        for index in blocks.clone() {
            if self.refutation.active_error().is_some() || self.is_disk_stalled() {
                break;
            }
            if let Some(flight) = self.join_or_start(index, blocks.end - index, Urgency::Ahead) {
                flight.await_stored().await?;
            }
        }
        Ok(())
    }
}
