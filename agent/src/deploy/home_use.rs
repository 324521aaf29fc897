//! The use of a training cache's home by a job or a container.
//!
//! ```text
//!   begin: the first user of the node pulls what other nodes saved
//!     └─> save_regularly, report_regularly: as long as it is used
//!           └─> save: the last user of the node
//! ```

mod home_notes;
mod home_saving;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::boot;
use bdnfs::download::DownloadProgress;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::task::{blocking, run_on_blocking_thread};
use tokio::time::sleep;

use crate::api::MirrorRequest;
use crate::mirror;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{CacheSync, PulledCache, UnsavedElsewhere};
use crate::volumes::{EvictedHome, Volumes};

use home_notes::{note_pulled, torn_message, unsaved_advice};
use home_saving::report;
pub use home_saving::{report_regularly, save, save_regularly};

/// How often a lock of a home is tried, and the least time between two saves.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is looked whether other nodes have saved what is waited for.
const UNSAVED_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// A job or a container that uses a home.
pub trait HomeUser: Clone + Send + Sync + 'static {
    /// The volumes of the node.
    fn volumes(&self) -> &Volumes;

    /// Whether it is the only one of its kind, or on the first of several nodes: each has a home of its own, and that of the first
    /// lasts.
    fn is_first(&self) -> bool;

    /// The mirror that the home is saved in; `None` where it is not to be saved. Reads secrets.
    ///
    /// # Errors
    /// [`Kind::Invalid`], [`Kind::Refused`] for a secret that is nowhere.
    fn mirror(&self) -> Result<Option<MirrorRequest>>;

    /// Tells its owner what becomes of the home.
    fn note(&self, text: String);

    /// Tells its owner what can't be done for the home.
    fn warn(&self, text: String) {
        self.note(text);
    }
}

/// Creates the home, unless it exists, and updates it to the newest state that is saved, unless others on this node use it. Where
/// it `needs_newest`, it waits for those of other nodes that use it. The file keeps the home from being removed.
///
/// # Errors
/// [`Kind::Busy`] while it is removed; [`Kind::Disk`], [`Kind::NoSpace`]. Where the home needs the newest state and can't have it,
/// why.
pub async fn begin<U: HomeUser>(user: &U, home: &CacheHome, needs_newest: bool) -> Result<File> {
    let mut is_noted = false;
    loop {
        let use_lock = locked(user, home, CacheHome::try_use_lock).await?;
        let own = home.clone();
        let is_in_use = blocking(move || Ok(own.is_in_use())).await?;
        let awaited = if is_in_use { None } else { prepare(user, home, needs_newest).await? };
        let Some(unsaved) = awaited else {
            let own = home.clone();
            let create = move || {
                let _use_lock = use_lock;
                own.create()
            };
            return blocking(create).await;
        };
        // Those of this node that don't wait may use it meanwhile.
        drop(use_lock);
        if !is_noted {
            user.note(format!("waits until other nodes have saved {home}: {unsaved}"));
            is_noted = true;
        }
        sleep(UNSAVED_POLL_INTERVAL).await;
    }
}

/// Pulls what other nodes saved into a home that nobody uses, and notes that it is about to be written. Where it needs the newest
/// state, and those who use it on other nodes have that, it returns what is to be waited for.
async fn prepare<U: HomeUser>(user: &U, home: &CacheHome, needs_newest: bool) -> Result<Option<String>> {
    let own = home.clone();
    let is_new = blocking(move || Ok(own.is_new())).await?;
    // What is under way for one that was given up comes to its end before another writes to the home.
    let lock = locked(user, home, CacheHome::try_sync_lock).await?;
    let mirror = open_mirror(user, home).await;
    let sync =
        mirror.map(|mirror| mirror.map(|mirror| CacheSync::new(home.clone(), mirror, Arc::clone(&lock))));
    let unsaved = match &sync {
        Ok(Some(sync)) => unsaved_elsewhere(sync).await,
        _ => Ok(None),
    };
    if let Ok(Some(unsaved)) = &unsaved
        && needs_newest
        && unsaved.is_awaited
    {
        return Ok(Some(unsaved.message.clone()));
    }
    make_room(user).await;
    let (is_to_be_saved, is_mirror_open) = (!matches!(sync, Ok(None)), matches!(sync, Ok(Some(_))));
    let pull = async {
        let Some(sync) = sync? else { return Ok(None) };
        pull(user, home, &sync, unsaved?, needs_newest).await.map(Some)
    };
    let pulled = match pull.await {
        Err(error) if needs_newest => {
            return Err(error.context(format!("cannot get the newest state of {home}")));
        }
        Err(error) => {
            user.warn(format!("{home} is as this node has it: {error}"));
            None
        }
        Ok(pulled) => pulled,
    };
    if is_new && pulled.is_none_or(|pulled| pulled.latest.is_none()) {
        user.note(format!("{home} begins empty"));
    }
    let (own, now) = (home.clone(), is_to_be_saved.then(boot::id_line).transpose()?);
    if !blocking(move || own.begin_use(now)).await? {
        user.warn(format!("{home} will not be saved: {}", torn_message(home)));
    }
    // Of several nodes, only what the first one has will be saved.
    if is_mirror_open
        && user.is_first()
        && let Err(error) = report(user, home).await
    {
        user.warn(format!("other nodes are not told that {home} may have unsaved changes here: {error}"));
    }
    Ok(None)
}

async fn unsaved_elsewhere(sync: &CacheSync) -> Result<Option<UnsavedElsewhere>> {
    let sync = sync.clone();
    run_on_blocking_thread(move || async move { sync.unsaved_elsewhere().await }).await
}

/// Pulls what other nodes saved into a home, and makes room for it where the disk is full. What they have not saved is `unsaved`.
///
/// # Errors
/// Those of [`CacheSync::pull`]; [`Kind::Busy`] where the home needs the newest state, and another node has changes that are not
/// saved.
async fn pull<U: HomeUser>(
    user: &U,
    home: &CacheHome,
    sync: &CacheSync,
    unsaved: Option<UnsavedElsewhere>,
    needs_newest: bool,
) -> Result<PulledCache> {
    let begin = Instant::now();
    if let Some(UnsavedElsewhere { message: unsaved, .. }) = unsaved {
        if needs_newest {
            return Err(Error::new(Kind::Busy, format!("{unsaved}; {}", unsaved_advice(home))));
        }
        user.note(format!("{home} begins without the newest changes: {unsaved}"));
    }
    loop {
        let own = sync.clone();
        let pull = move || async move { own.pull(&DownloadProgress::default()).await };
        match run_on_blocking_thread(pull).await {
            Err(error) if error.kind() == Kind::NoSpace && evict_one(user).await => {}
            Err(error) => return Err(error),
            Ok(pulled) => {
                note_pulled(user, home, &pulled, begin.elapsed());
                return Ok(pulled);
            }
        }
    }
}

/// Makes room where too little is free on the disk of volumes: what is not in use leaves the cache, and then homes go that are
/// saved and not in use, each with a note.
pub async fn make_room<U: HomeUser>(user: &U) {
    evict(user, Volumes::make_room).await;
}

/// Evicts one home, if there is one that may go; false where there is none.
async fn evict_one<U: HomeUser>(user: &U) -> bool {
    evict(user, |volumes| volumes.evict_homes(|freed| freed == 0)).await
}

/// Notes what `work` evicts; false where that is nothing.
async fn evict<U: HomeUser>(user: &U, work: fn(&Volumes) -> Vec<EvictedHome>) -> bool {
    let own = user.clone();
    let evicted = blocking(move || Ok(work(own.volumes()))).await.unwrap_or_default();
    evicted.iter().for_each(|home| user.note(home.to_string()));
    !evicted.is_empty()
}

/// Tells the owner of homes, as soon as it is known, that locks on them do not hold between nodes, as long as it is polled.
pub async fn warn_of_flock<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Infallible {
    if !homes.is_empty() {
        user.warn(user.volumes().await_flock_fault().await);
    }
    pending().await
}

/// Opens the mirror that a home is saved in, if there is one: not where nodes share it.
async fn open_mirror<U: HomeUser>(user: &U, home: &CacheHome) -> Result<Option<Mirror>> {
    if user.volumes().shared_directory().is_some() {
        return Ok(None);
    }
    let (user, scratch) = (user.clone(), home.path().to_owned());
    blocking(move || user.mirror()?.map(|at| mirror::open(&at, scratch)).transpose()).await
}

/// Waits for the use lock or the sync lock of a home, and notes the wait.
async fn locked<U: HomeUser>(
    user: &U,
    home: &CacheHome,
    lock: fn(&CacheHome) -> Result<Option<File>>,
) -> Result<Arc<File>> {
    let mut is_noted = false;
    loop {
        let own = home.clone();
        if let Some(locked) = blocking(move || lock(&own)).await? {
            return Ok(Arc::new(locked));
        }
        if !is_noted {
            user.note(format!("waits while {home} is saved, or updated for another job"));
            is_noted = true;
        }
        sleep(LOCK_POLL_INTERVAL).await;
    }
}
