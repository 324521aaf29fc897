//! Opening the files of a snapshot.

use std::sync::Arc;

use crate::content::Content;
use crate::error::{Error, Kind, Result};
use crate::manifest::Slice;
use crate::read::Reader;
use crate::read::next_shard::NextShard;

use super::Snapshot;

impl Snapshot {
    /// Opens a file for reading. Touches the local disk, never the network.
    ///
    /// # Errors
    /// [`Corrupt`](crate::error::Kind::Corrupt) when the manifest is.
    pub fn open(&self, slice: Slice) -> Result<Reader> {
        Ok(Reader::new(self.content(slice.blob)?, slice))
    }

    /// Opens the file that is `slice` without looking for it in the cache, whose disk does not answer.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_past_cache(&self, slice: Slice) -> Result<Reader> {
        Ok(Reader::new(self.unopened_content(slice.blob)?, slice))
    }

    /// Opens file `index`, which is `slice`, like [`open`](Self::open). If it is a shard of a model, read-ahead continues in the
    /// next one.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_file(self: &Arc<Self>, index: u32, slice: Slice) -> Result<Reader> {
        // Whoever reads the next shard gets its error.
        let next = self.manifest().next_shard(index).ok().flatten().map(|(index, slice)| {
            let snapshot = self.clone();
            NextShard::new(self.runtime().clone(), move || snapshot.open_file(index, slice).ok())
        });
        Ok(self.open(slice)?.followed_by(next))
    }

    /// The content of a blob, shared by all its users.
    pub(crate) fn content(&self, number: u32) -> Result<Arc<Content>> {
        let content = self.unopened_content(number)?;
        content.open();
        Ok(content)
    }

    /// The content of a blob, for which nobody looks in the cache: what is found of it there later is used, too.
    fn unopened_content(&self, number: u32) -> Result<Arc<Content>> {
        let blob = self.manifest().blob(number)?;
        let size = blob.size;
        let content = self.contents.share(blob, &self.resources, self.ladder_of(number));
        match content.blob().size {
            shared if shared == size => Ok(content),
            other => {
                let name = self.manifest().blob(number)?.to_string();
                let text = format!("{name}: the server gave one version two sizes ({other}, {size} bytes)");
                Err(Error::new(Kind::Changed, text))
            }
        }
    }
}
