//! A tier in memory: an origin of the files that are put into it.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::{Mutex, MutexGuard};

use super::{Body, Origin, Tier, TierKind, Urgency};
use crate::blob::{Blob, Key, MirrorLocation};
use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::manifest::{ListedFile, Listing};

/// Files in memory, by their paths.
#[derive(Debug)]
pub struct MemoryTier {
    name: String,
    files: Mutex<MemoryFiles>,
}

#[derive(Debug, Default)]
struct MemoryFiles {
    held: BTreeMap<Vec<u8>, (u64, Bytes)>,
    /// The number of times that something was put: the last version.
    puts: u64,
}

impl MemoryTier {
    /// An empty tier, which calls itself `name`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), files: Mutex::default() }
    }

    /// Puts a file at `path`, in a new version even if its content is the same.
    pub fn put(&self, path: &[u8], content: impl Into<Bytes>) {
        let mut files = self.files();
        files.puts += 1;
        let version = files.puts;
        files.held.insert(path.to_vec(), (version, content.into()));
    }

    /// Removes the file at `path`, if there is one.
    pub fn remove(&self, path: &[u8]) {
        self.files().held.remove(path);
    }

    /// The file at `path` in its version of now, as a snapshot would pin it.
    pub fn blob(&self, path: &[u8]) -> Option<Blob> {
        let files = self.files();
        let (version, content) = files.held.get(path)?;
        let version = version.to_string().into_bytes();
        Some(Blob {
            key: Key::origin(&self.name, path, &version),
            size: content.len() as u64,
            checks: None,
            path: path.to_vec().into(),
            version: version.into(),
            sha256: None,
            stored: MirrorLocation::default(),
        })
    }

    fn files(&self) -> MutexGuard<'_, MemoryFiles> {
        // Every change is a single step, so a panic elsewhere leaves nothing half done.
        self.files.lock()
    }

    fn get(&self, blob: &Blob, range: Range<u64>) -> Result<Body> {
        let files = self.files();
        let held = files.held.get(&blob.path[..]);
        let Some((_, content)) = held.filter(|(version, _)| version.to_string().as_bytes() == blob.version)
        else {
            let path = String::from_utf8_lossy(&blob.path);
            return Err(Error::new(
                Kind::Changed,
                format!("{}/{path} changed since it was listed", self.name),
            ));
        };
        let content = content.slice(range.start as usize..range.end as usize);
        let pieces = (0..content.len()).step_by(BLOCK as usize).map(move |at| {
            let end = content.len().min(at + BLOCK as usize);
            Ok(content.slice(at..end))
        });
        Ok(stream::iter(pieces).boxed())
    }
}

impl Tier for MemoryTier {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move { self.get(blob, range).map(Some) }.boxed()
    }
}

impl Origin for MemoryTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        async move {
            for (path, (version, content)) in &self.files().held {
                let (size, version) = (content.len() as u64, version.to_string());
                let version = version.as_bytes();
                listing.file(ListedFile {
                    path,
                    size,
                    mtime: (0, 0),
                    executable: false,
                    version,
                    sha256: None,
                });
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::conformance::{self, Subject};

    impl Subject for MemoryTier {
        fn tier(&self) -> &dyn Tier {
            self
        }

        fn put<'a>(&'a self, path: &'a str, content: Bytes) -> BoxFuture<'a, Blob> {
            self.put(path.as_bytes(), content);
            async move { self.blob(path.as_bytes()).expect("it was put") }.boxed()
        }

        fn remove<'a>(&'a self, path: &'a str) -> BoxFuture<'a, ()> {
            async move { self.remove(path.as_bytes()) }.boxed()
        }
    }

    #[tokio::test]
    async fn memory_tier_passes_conformance_suite() {
        conformance::suite(&MemoryTier::new("memory://x")).await;
    }
}
