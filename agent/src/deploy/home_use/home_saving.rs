//! Saves homes while they are used and after their last user of the node, and tells other nodes that they are used.

use std::convert::Infallible;
use std::fs::File;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::backoff::{Backoff, entropy};
use bdnfs::boot;
use bdnfs::error::Result;
use bdnfs::mirroring::MirrorProgress;
use bdnfs::task::{blocking, run_on_blocking_thread};
use tokio::time::{sleep, timeout};

use super::home_notes::{note_pulled, note_saved, torn_message};
use super::{HomeUser, LOCK_POLL_INTERVAL, check_mirror, locked, name_mirror, open_mirror};
use crate::mirror::MIRROR_CONFIG;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{CacheSync, REPORT_INTERVAL};

/// The time that it may take to leave a home without saving it: the mirror may be why, and whoever waits for the job's end knows
/// that.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The first and the longest interval at which a failed save of a home is retried: jobs of other nodes wait for some minutes.
const FIRST_RETRY_INTERVAL: Duration = Duration::from_secs(5);
pub(super) const LONGEST_RETRY_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Saves a home in the mirror, if there is one, unless others on this node use it. What can't be saved stays here, and its user is
/// told; it is tried again, and nobody waits for that.
pub async fn save<U: HomeUser>(user: &U, home: &CacheHome) {
    if let Err(error) = save_unused(user, home).await {
        user.warn(format!("cannot save {home}, which stays on this node: {error}"));
        tokio::spawn(save_later(user.clone(), home.clone()));
    }
}

/// Saves a home as [`save`] does, for a user that does not wait for it. Other nodes are told meanwhile that it is in use.
pub fn save_in_background<U: HomeUser>(user: &U, home: &CacheHome) {
    let (user, home) = (user.clone(), home.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = save(&user, &home) => {}
            never = report_regularly(&user, slice::from_ref(&home)) => match never {},
        }
    });
}

/// Tries again to save a home until it is saved, or another uses it, who saves it then.
async fn save_later<U: HomeUser>(user: U, home: CacheHome) {
    let (own, is_first) = (home.clone(), user.is_first());
    let begin = move || {
        if is_first {
            own.mark_save_pending()?;
        }
        own.try_retry_lock()
    };
    // Jobs that end one after the other while the mirror is away need one retry.
    let Ok(Some(_lock)) = blocking(begin).await else { return };
    let mut backoff = Backoff::new(FIRST_RETRY_INTERVAL, LONGEST_RETRY_INTERVAL, entropy());
    loop {
        sleep(backoff.wait()).await;
        let own = home.clone();
        let is_left = move || Ok(own.exists() && !own.is_in_use() && !own.sync_state()?.is_saved());
        if !blocking(is_left).await.unwrap_or_default() {
            return;
        }
        match save_unused(&user, &home).await {
            Ok(()) => return,
            Err(error) => tracing::warn!("cannot save {home}, and tries again: {error}"),
        }
    }
}

/// Ends the use of a home by one that could not begin: it has written nothing. Other nodes need not wait for it, and what is here
/// is saved, unless others on this node use it.
pub async fn abandon<U: HomeUser>(user: &U, home: &CacheHome) {
    let has_begun = async {
        let own = home.clone();
        if home.is_shared() || !blocking(move || Ok(own.exists())).await? {
            return Ok(false);
        }
        // What was given up may be about to note it.
        let lock = timeout(LEAVE_TIMEOUT, locked(user, home, CacheHome::try_idle_sync_lock)).await;
        let own = home.clone();
        blocking(move || {
            let _lock = lock;
            Ok(own.sync_state()?.boot.is_some())
        })
        .await
    };
    if !has_begun.await.unwrap_or_default() {
        return leave_unsaved(user, home).await;
    }
    tokio::select! {
        () = save(user, home) => {}
        never = report_regularly(user, slice::from_ref(home)) => match never {},
    }
}

/// Ends the use of a home that is not to be saved now, unless others on this node use it. The next user saves it. Where its disk or
/// its mirror takes long, that goes on when this returns.
pub async fn leave_unsaved<U: HomeUser>(user: &U, home: &CacheHome) {
    let (user, home) = (user.clone(), home.clone());
    let leave = async move {
        if let Err(error) = end_unsaved(&user, &home).await {
            tracing::warn!("cannot end the use of {home}: {error}");
        }
    };
    let _ = timeout(LEAVE_TIMEOUT, tokio::spawn(leave)).await;
}

async fn end_unsaved<U: HomeUser>(user: &U, home: &CacheHome) -> Result<()> {
    let own = home.clone();
    if home.is_shared() || !blocking(move || Ok(own.exists())).await? {
        return Ok(());
    }
    let (_use_lock, end) = end_use(user, home).await?;
    if !matches!(end, UseEnd::Ended(_)) {
        return Ok(());
    }
    // The next user waits for the locks.
    timeout(LEAVE_TIMEOUT, report_use(user, home, false)).await.unwrap_or(Ok(()))
}

/// The outcome of ending the use of a home.
#[derive(Debug)]
enum UseEnd {
    /// Nobody uses it, and a power cut does no harm to it. The sync lock is held.
    Ended(Arc<File>),
    /// Others on this node use it.
    InUse,
    /// A power cut may have torn some of it.
    Torn,
}

/// Ends the use of a home, unless others on this node use it. The lock keeps others from beginning. What is under way for one that
/// was given up, such as a pull, comes to its end first: it would go on in a tree, or write a state, that are others by then.
async fn end_use<U: HomeUser>(user: &U, home: &CacheHome) -> Result<(Arc<File>, UseEnd)> {
    let use_lock = locked(user, home, CacheHome::try_use_lock).await?;
    let own = home.clone();
    if blocking(move || Ok(own.is_in_use())).await? {
        return Ok((use_lock, UseEnd::InUse));
    }
    let sync_lock = locked(user, home, CacheHome::try_sync_lock).await?;
    let (own, locks) = (home.clone(), (Arc::clone(&use_lock), sync_lock));
    let end = move || {
        let (_use_lock, sync_lock) = locks;
        if own.sync_state()?.is_torn(&boot::id_line()?) {
            return Ok(UseEnd::Torn);
        }
        own.end_use().map(|()| UseEnd::Ended(sync_lock))
    };
    Ok((use_lock, blocking(end).await?))
}

async fn save_unused<U: HomeUser>(user: &U, home: &CacheHome) -> Result<()> {
    if home.is_shared() {
        return Ok(());
    }
    // Also without the mirror: a power cut does no harm to what waits for it.
    let (_use_lock, end) = end_use(user, home).await?;
    let lock = match end {
        UseEnd::InUse => {
            // The last one may name no mirror.
            if user.is_first() && !matches!(name_mirror(user, home).await, Ok(None)) {
                let own = home.clone();
                blocking(move || own.mark_save_pending()).await?;
            }
            user.note(format!("{home} is saved when the other jobs and containers on this node have ended"));
            return Ok(());
        }
        UseEnd::Torn => {
            user.warn(format!("{home} is not saved: {}", torn_message(home)));
            return Ok(());
        }
        UseEnd::Ended(lock) => lock,
    };
    let own = home.clone();
    let is_owed = blocking(move || Ok(own.is_save_pending())).await?;
    if !user.is_first() && !is_owed {
        return Ok(());
    }
    let mirror = match open_mirror(user, home, true).await? {
        // Whoever left it to this user has one.
        None if is_owed => match user.volumes().mirror_named_for(home) {
            Some(named) => Some(check_mirror(user, named, true).await?),
            None => None,
        },
        opened => opened,
    };
    let Some(mirror) = mirror else {
        if is_owed {
            user.warn(format!(
                "{home} is not saved: its mirror is not known since the agent was started again; save it with `bdnfs project save`"
            ));
        }
        return Ok(());
    };
    let begin = Instant::now();
    let sync = CacheSync::new(home.clone(), mirror, lock);
    let saved =
        run_on_blocking_thread(
            move || async move { sync.save(MIRROR_CONFIG, &MirrorProgress::default()).await },
        );
    let saved = saved.await?;
    note_pulled(user, home, &saved.pulled, begin.elapsed());
    note_saved(user, home, &saved, begin.elapsed());
    Ok(())
}

/// Saves homes at the interval of the configuration, as long as it is polled: who uses them goes on, and does not wait for it.
pub async fn save_regularly<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Infallible {
    if !user.is_first() {
        std::future::pending::<()>().await;
    }
    loop {
        sleep(save_due(user, homes).await).await;
    }
}

/// Saves those of the homes that are due. Returns the pause until the next one is.
pub(super) async fn save_due<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Duration {
    let interval = user.volumes().config().save_interval;
    let mut pause = interval;
    for home in homes {
        let left = match save_when_due(user, home, interval).await {
            Ok(left) => left,
            Err(error) => {
                user.warn(format!(
                    "cannot save {home} while it is used, and tries again after save_interval: {error}"
                ));
                interval
            }
        };
        pause = pause.min(left);
    }
    pause.max(LOCK_POLL_INTERVAL)
}

/// Saves a home that is in use, where that was not done within the `interval`, for this user or another. Returns when it is to be
/// done next.
async fn save_when_due<U: HomeUser>(user: &U, home: &CacheHome, interval: Duration) -> Result<Duration> {
    if home.is_shared() {
        return Ok(interval);
    }
    let own = home.clone();
    let lock = blocking(move || {
        let left = interval.saturating_sub(own.synced_ago().unwrap_or_default());
        if left > Duration::ZERO {
            return Ok(Err(left));
        }
        // Where another saves it, that is due again after the interval.
        Ok(own.try_sync_lock()?.ok_or(interval))
    });
    let lock = match lock.await? {
        Ok(lock) => lock,
        Err(left) => return Ok(left),
    };
    let own = home.clone();
    if blocking(move || own.sync_state()).await?.is_torn(&boot::id_line()?) {
        return Ok(interval);
    }
    let Some(mirror) = open_mirror(user, home, true).await? else { return Ok(interval) };
    let (begin, rate) = (Instant::now(), user.volumes().config().upload_rate);
    let sync = CacheSync::new(home.clone(), mirror, Arc::new(lock));
    let saved = run_on_blocking_thread(move || async move {
        sync.save_in_use(rate, MIRROR_CONFIG, &MirrorProgress::default()).await
    });
    match saved.await? {
        Some(saved) => note_saved(user, home, &saved, begin.elapsed()),
        None => {
            user.note(format!("{home} was saved by another node, and is saved here when nobody uses it"));
        }
    }
    Ok(interval)
}

/// Tells other nodes again and again that this one lives, which uses the homes, as long as it is polled.
pub async fn report_regularly<U: HomeUser>(user: &U, homes: &[CacheHome]) -> Infallible {
    if !user.is_first() {
        std::future::pending::<()>().await;
    }
    loop {
        sleep(REPORT_INTERVAL).await;
        for home in homes {
            if let Err(error) = report_use(user, home, true).await {
                tracing::warn!("cannot tell other nodes that {home} is in use here: {error}");
            }
        }
    }
}

/// Tells other nodes whether this one uses the home. Of several nodes, only what the first one has will be saved: others tell
/// nothing.
pub(super) async fn report_use<U: HomeUser>(user: &U, home: &CacheHome, in_use: bool) -> Result<()> {
    if !user.is_first() {
        return Ok(());
    }
    let Some(mirror) = open_mirror(user, home, false).await? else { return Ok(()) };
    let home = home.clone();
    run_on_blocking_thread(move || async move { home.report_use(&mirror, in_use).await }).await
}
