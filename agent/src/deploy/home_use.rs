//! The use of a training cache's home by a job or a container.
//!
//! ```text
//!   begin: the first user of the node pulls what other nodes saved
//!     ├─> announce_regularly: from then on
//!     ├─> save_regularly: as long as it is written
//!     │     └─> save: the last user of the node
//!     └─> abandon: one that came to nothing
//! ```

mod home_notes;
mod home_saving;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::fs::File;
use std::future::pending;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::boot;
use bdnfs::download::DownloadProgress;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::task::{blocking, run_on_blocking_thread};
use tokio::time::{sleep, timeout};

use crate::api::MirrorRequest;
use crate::mirror;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{CacheSync, PulledCache, REPORT_INTERVAL, UnsavedElsewhere};
use crate::volumes::home_users::SharedHomeUser;
use crate::volumes::{HomeEvictions, NamedMirror, Volumes};

use home_notes::{note_pulled, torn_message, unsaved_advice};
use home_saving::{LEAVE_TIMEOUT, report_use};
pub use home_saving::{abandon, leave_unsaved, report_regularly, save, save_in_background, save_regularly};

/// The interval at which a lock of a home is tried, and the least time between two saves.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The interval of checks whether other nodes have saved what is waited for.
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
/// it `needs_newest`, it waits for those of other nodes that use it. The files keep the home from being removed.
///
/// # Errors
/// [`Kind::Busy`] while it is removed; [`Kind::Disk`], [`Kind::NoSpace`]. Where the home needs the newest state and can't have it,
/// why.
pub async fn begin<U: HomeUser>(user: &U, home: &CacheHome, needs_newest: bool) -> Result<Vec<File>> {
    let mut is_noted = false;
    if home.is_shared() {
        // Other nodes do not wait for that.
        make_room(user).await;
    }
    loop {
        let use_lock = locked(user, home, CacheHome::try_use_lock).await?;
        let is_in_use = user.volumes().on_disk_of(home, |home| Ok(home.is_in_use())).await?;
        let awaited = match is_in_use {
            true if needs_newest => newer_elsewhere(user, home).await?,
            true => None,
            false => prepare(user, home, needs_newest).await?,
        };
        let Some(awaited) = awaited else {
            let create = move |home: &CacheHome| {
                let _use_lock = use_lock;
                home.create()
            };
            return user.volumes().on_disk_of(home, create).await;
        };
        // Those of this node that don't wait may use it meanwhile.
        drop(use_lock);
        if !is_noted {
            user.note(awaited);
            is_noted = true;
        }
        sleep(UNSAVED_POLL_INTERVAL).await;
    }
}

/// Pulls what other nodes saved into a home that nobody uses, and notes that it is about to be written. Where it needs the newest
/// state, and those who use it on other nodes have that, it returns what is to be waited for.
async fn prepare<U: HomeUser>(user: &U, home: &CacheHome, needs_newest: bool) -> Result<Option<String>> {
    let (is_new, is_first_use) =
        user.volumes().on_disk_of(home, |home| Ok((home.is_new(), !home.has_sync_state()))).await?;
    // What is under way for one that was given up comes to its end before another writes to the home.
    let lock = locked(user, home, CacheHome::try_sync_lock).await?;
    // What was saved before nodes had a file system in common comes to it once.
    let mirror = match home.is_shared() && !is_first_use {
        true => Ok(None),
        false => open_mirror_of(user, home, false).await,
    };
    let sync =
        mirror.map(|mirror| mirror.map(|mirror| CacheSync::new(home.clone(), mirror, Arc::clone(&lock))));
    let unsaved = match &sync {
        Ok(Some(sync)) => unsaved_elsewhere(user, home, sync, needs_newest).await,
        _ => Ok(None),
    };
    if let Ok(Some(unsaved)) = &unsaved
        && needs_newest
        && unsaved.is_awaited
    {
        return Ok(Some(format!("waits until other nodes have saved {home}: {}", unsaved.message)));
    }
    if !home.is_shared() {
        make_room(user).await;
    }
    let is_to_be_saved = !home.is_shared() && !matches!(sync, Ok(None));
    let is_mirror_open = matches!(sync, Ok(Some(_)));
    let pull = async {
        let Some(sync) = sync? else { return Ok(None) };
        pull(user, home, &sync, unsaved?, needs_newest).await.map(Some)
    };
    let pulled = tokio::select! {
        pulled = pull => pulled,
        never = report_regularly(user, slice::from_ref(home)) => match never {},
    };
    let pulled = match pulled {
        Err(error) if needs_newest => {
            // The mirror may be why.
            let _ = timeout(LEAVE_TIMEOUT, report_use(user, home, false)).await;
            return Err(error.context(format!("cannot get the newest state of {home}")));
        }
        Err(error) => {
            user.warn(format!("{home} was not updated: {error}"));
            if home.is_shared() {
                // The next one tries again.
                return Ok(None);
            }
            None
        }
        Ok(pulled) => pulled,
    };
    if is_new && pulled.is_none_or(|pulled| pulled.latest.is_none()) {
        user.note(format!("{home} begins empty"));
    }
    // Also without a mirror: the next user may have one. Nodes that share a home save nothing of it.
    let now = (!home.is_shared()).then(boot::id_line).transpose()?;
    let held = Arc::clone(&lock);
    let begin_use = move |home: &CacheHome| {
        let _held = held;
        home.begin_use(now)
    };
    let is_whole = user.volumes().on_disk_of(home, begin_use).await?;
    if !is_whole && is_to_be_saved {
        user.warn(format!("{home} will not be saved: {}", torn_message(home)));
    }
    if is_mirror_open && let Err(error) = report_use(user, home, true).await {
        user.warn(format!("other nodes are not told that {home} may have unsaved changes here: {error}"));
    }
    Ok(None)
}

/// Describes what to wait for where others on this node use a home that has not the newest state: they began before another node
/// saved it, and it can't be updated under them.
async fn newer_elsewhere<U: HomeUser>(user: &U, home: &CacheHome) -> Result<Option<String>> {
    let failed = || format!("cannot get the newest state of {home}");
    let look = async {
        let Some(mirror) = open_mirror(user, home, false).await? else { return Ok(None) };
        let own = home.clone();
        let latest = run_on_blocking_thread(move || async move { mirror.latest(&own.key()).await }).await?;
        let Some(latest) = latest.content?.filter(|latest| !latest.removed) else { return Ok(None) };
        let state = user.volumes().on_disk_of(home, CacheHome::sync_state).await?;
        let is_newest = state.manifest == Some(latest.manifest.to_string());
        Ok((!is_newest).then(|| {
            format!(
                "waits until others on this node no longer use {home}, which another node has saved since"
            )
        }))
    };
    look.await.map_err(|error: Error| error.context(failed()))
}

/// Unsaved changes of other nodes. Where there are none, or the home begins without them, those nodes know from now on that it is
/// used here.
async fn unsaved_elsewhere<U: HomeUser>(
    user: &U,
    home: &CacheHome,
    sync: &CacheSync,
    needs_newest: bool,
) -> Result<Option<UnsavedElsewhere>> {
    let (sync, is_reported) = (sync.clone(), !home.is_shared() && user.is_first());
    let name = home.to_string();
    let look = move || async move {
        // Those that wait tell nothing: they look again and again.
        let unsaved = sync.unsaved_elsewhere().await?;
        if !is_reported || needs_newest && unsaved.is_some() {
            return Ok(unsaved);
        }
        let claimed =
            if needs_newest { sync.claim().await } else { sync.report_use(true).await.map(|()| unsaved) };
        match claimed {
            // A mirror that can be read only has the newest state all the same.
            Err(error) if !needs_newest || matches!(error.kind(), Kind::Refused | Kind::NoSpace) => {
                tracing::warn!("cannot tell other nodes that {name} is in use here: {error}");
                sync.unsaved_elsewhere().await
            }
            claimed => claimed,
        }
    };
    run_on_blocking_thread(look).await
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
        let pull = move || async move { own.pull_for_use(&DownloadProgress::default()).await };
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
async fn evict<U: HomeUser>(user: &U, work: fn(&Volumes) -> HomeEvictions) -> bool {
    let own = user.clone();
    let evicted = blocking(move || Ok(work(own.volumes()))).await.unwrap_or_default();
    evicted.notes().for_each(|note| user.note(note));
    evicted.has_evicted()
}

/// Tells other nodes again and again that homes are used here, as long as it is polled.
pub async fn announce_regularly<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Infallible {
    tokio::select! {
        never = report_regularly(user, homes) => never,
        never = beat_regularly(user, homes) => never,
    }
}

/// Tells the owner of homes, as soon as it is known, that locks on them do not hold between nodes, as long as it is polled.
pub async fn warn_of_flock<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Infallible {
    if !homes.is_empty() {
        user.warn(user.volumes().await_flock_fault().await);
    }
    pending().await
}

/// Tells other nodes again and again that homes are used which they share, as long as it is polled.
async fn beat_regularly<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Infallible {
    let users: Result<Vec<_>> =
        homes.iter().filter(|home| home.is_shared()).cloned().map(SharedHomeUser::new).collect();
    let users: Vec<_> = match users {
        Ok(users) => users.into_iter().map(Arc::new).collect(),
        Err(error) => {
            user.warn(format!("other nodes are not told which caches are in use here: {error}"));
            return pending().await;
        }
    };
    if users.is_empty() {
        return pending().await;
    }
    loop {
        for one in &users {
            let own = Arc::clone(one);
            if let Err(error) = user.volumes().on_disk_of(one.home(), move |_| own.write_beat()).await {
                let home = one.home();
                tracing::warn!("other nodes are not told that {home} is in use here: {error}");
            }
        }
        sleep(REPORT_INTERVAL).await;
    }
}

/// Opens the mirror that a home is saved in, if there is one: not where nodes share it. With `create` it is created if it was
/// never seen.
async fn open_mirror<U: HomeUser>(user: &U, home: &CacheHome, create: bool) -> Result<Option<Mirror>> {
    if home.is_shared() { Ok(None) } else { open_mirror_of(user, home, create).await }
}

/// Opens the mirror of a user of a home, if there is one; with `create` as [`open_mirror`].
async fn open_mirror_of<U: HomeUser>(user: &U, home: &CacheHome, create: bool) -> Result<Option<Mirror>> {
    match name_mirror(user, home).await? {
        Some(named) => check_mirror(user, named, create).await.map(Some),
        None => Ok(None),
    }
}

/// Notes the mirror of a user of a home, if there is one. It is not asked for anything.
async fn name_mirror<U: HomeUser>(user: &U, home: &CacheHome) -> Result<Option<NamedMirror>> {
    let (user, own) = (user.clone(), home.clone());
    let open = move || {
        let Some(request) = user.mirror()? else { return Ok(None) };
        let named = NamedMirror { mirror: mirror::open(&request, own.path().to_owned())?, request };
        user.volumes().note_mirror(&own, named.clone());
        Ok(Some(named))
    };
    blocking(open).await
}

/// Makes sure that a mirror is there if it ever was; with `create` it is created if it was never seen.
async fn check_mirror<U: HomeUser>(user: &U, named: NamedMirror, create: bool) -> Result<Mirror> {
    let NamedMirror { mirror, request } = named;
    mirror::check_seen(&mirror, &request, user.volumes().directory(), create).await?;
    Ok(mirror)
}

/// Waits for the use lock or the sync lock of a home, and notes the wait.
async fn locked<U: HomeUser>(
    user: &U,
    home: &CacheHome,
    lock: fn(&CacheHome) -> Result<Option<File>>,
) -> Result<Arc<File>> {
    let mut is_noted = false;
    loop {
        if let Some(locked) = user.volumes().on_disk_of(home, lock).await? {
            return Ok(Arc::new(locked));
        }
        if !is_noted {
            user.note(format!("waits while {home} is saved, or updated for another job"));
            is_noted = true;
        }
        sleep(LOCK_POLL_INTERVAL).await;
    }
}
