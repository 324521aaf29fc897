//! The threads that touch a file system that several nodes share: a few at a time.

use std::sync::Arc;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use tokio::sync::Semaphore;

use super::Volumes;
use super::cache_home::CacheHome;

/// The number of threads that touch the file system at a time: where it hangs, they do until it is back, and others must be left.
const SHARED_IO_LIMIT: usize = 8;

/// The threads that may touch the file system.
#[derive(Clone, Debug)]
pub struct SharedIo(Arc<Semaphore>);

impl Default for SharedIo {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(SHARED_IO_LIMIT)))
    }
}

impl SharedIo {
    /// Runs `work` on a blocking thread, where it is one of a few if it `is_shared`. One that is given up counts until it ends.
    ///
    /// # Errors
    /// Those of [`blocking`].
    pub async fn run<T: Send + 'static>(
        &self,
        is_shared: bool,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // Never closed.
        let permit = if is_shared { Arc::clone(&self.0).acquire_owned().await.ok() } else { None };
        blocking(move || {
            let _permit = permit;
            work()
        })
        .await
    }
}

impl Volumes {
    /// Runs `work` on the disk of `home` on a blocking thread. Where it is a shared file system, a few do at a time.
    ///
    /// # Errors
    /// Those of `work`.
    pub async fn on_disk_of<T: Send + 'static>(
        &self,
        home: &CacheHome,
        work: impl FnOnce(&CacheHome) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let home = home.clone();
        self.shared_io.run(home.is_shared(), move || work(&home)).await
    }
}
