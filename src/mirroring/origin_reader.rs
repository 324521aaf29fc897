//! Reads from the origin with long timeouts.

use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::blob::Blob;
use crate::block::Arrival;
use crate::error::{Error, Kind, Result};
use crate::extent::Extent;
use crate::fetch::{FetchScope, Ladder};
use crate::tier::Urgency;

/// The time for which the origin is asked again while nothing arrives.
const ORIGIN_STALL_LIMIT: Duration = Duration::from_secs(120);

/// The blocks of `extent`, as the origin sends them. There is nothing yet that they could be held against.
pub(super) async fn read(origin: &Ladder, blob: &Blob, extent: Extent) -> Result<Vec<Bytes>> {
    let blocks = Mutex::new(vec![None; extent.blocks as usize]);
    let accept = async |arrival: Arrival| {
        let mut blocks = blocks.lock();
        blocks[(arrival.index - extent.first) as usize] = Some(arrival.bytes);
        Ok(arrival.index)
    };
    origin
        .fetch(
            blob,
            extent.range().collect::<Vec<_>>(),
            (FetchScope::Direct, &|| Urgency::Stage),
            ORIGIN_STALL_LIMIT,
            accept,
        )
        .await?;
    let blocks = blocks.into_inner().into_iter();
    let all: Option<Vec<Bytes>> = blocks.collect();
    all.ok_or_else(|| {
        Error::new(Kind::Unavailable, format!("{blob} is incomplete: the origin sent too little of it"))
    })
}
