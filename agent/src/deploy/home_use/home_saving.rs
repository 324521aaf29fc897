//! Saves homes while they are used and after their last user of the node, and tells other nodes that they are used.

use std::convert::Infallible;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::boot;
use bdnfs::error::{Error, Result};
use bdnfs::mirroring::MirrorProgress;
use bdnfs::task::{blocking, run_on_blocking_thread};
use tokio::time::{sleep, timeout};

use super::home_notes::{note_pulled, note_saved, torn_message};
use super::{HomeUser, LOCK_POLL_INTERVAL, locked, open_mirror};
use crate::mirror::MIRROR_CONFIG;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{CacheSync, REPORT_INTERVAL};

/// How long it may take to leave a home without saving it: the mirror may be why, and whoever waits for the job's end knows that.
pub(super) const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Saves a home in the mirror, if there is one, unless others on this node use it. What can't be saved stays here, and its user is
/// told.
pub async fn save<U: HomeUser>(user: &U, home: &CacheHome) {
    if let Err(error) = save_unused(user, home).await {
        user.warn(format!("cannot save {home}, which stays on this node: {error}"));
    }
}

/// Ends the use of a home by one that could not begin: it has written nothing. Other nodes need not wait for it, and what is here is
/// saved, unless others on this node use it.
pub async fn abandon<U: HomeUser>(user: &U, home: &CacheHome) {
    let own = home.clone();
    let has_begun = move || Ok(!own.is_shared() && own.exists() && own.sync_state()?.boot.is_some());
    let is_noted = blocking(has_begun).await;
    if is_noted.unwrap_or_default() {
        return tokio::select! {
            () = save(user, home) => {}
            never = report_regularly(user, slice::from_ref(home)) => match never {},
        };
    }
    let withdraw = async {
        let own = home.clone();
        if blocking(move || Ok(own.exists() && !own.is_in_use())).await? && user.is_first() {
            report_as(user, home, false).await?;
        }
        Ok::<_, Error>(())
    };
    if let Ok(Err(error)) = timeout(LEAVE_TIMEOUT, withdraw).await {
        tracing::warn!("cannot tell other nodes that {home} is not in use here: {error}");
    }
}

/// Ends the use of a home that is not to be saved now, unless others on this node use it. The next user saves it.
pub async fn leave_unsaved<U: HomeUser>(user: &U, home: &CacheHome) {
    let leave = async {
        let _use_lock = locked(user, home, CacheHome::try_use_lock).await?;
        let own = home.clone();
        let end = move || {
            let is_last = !own.is_in_use() && !own.sync_state()?.is_torn(&boot::id_line()?);
            if is_last {
                own.end_use()?;
            }
            Ok(is_last)
        };
        if blocking(end).await? && user.is_first() {
            report_as(user, home, false).await?;
        }
        Ok::<_, Error>(())
    };
    if let Ok(Err(error)) = timeout(LEAVE_TIMEOUT, leave).await {
        tracing::warn!("cannot end the use of {home}: {error}");
    }
}

async fn save_unused<U: HomeUser>(user: &U, home: &CacheHome) -> Result<()> {
    if home.is_shared() {
        return Ok(());
    }
    let own = home.clone();
    let _use_lock = locked(user, home, CacheHome::try_use_lock).await?;
    let (is_in_use, state) = blocking(move || Ok((own.is_in_use(), own.sync_state()?))).await?;
    let is_torn = state.is_torn(&boot::id_line()?);
    if !is_in_use && !is_torn {
        // Also without the mirror: a power cut does no harm to what waits for it.
        let own = home.clone();
        blocking(move || own.end_use()).await?;
    }
    let Some(mirror) = open_mirror(user, home).await? else { return Ok(()) };
    if is_in_use {
        user.note(format!("{home} is saved when the other jobs and containers on this node have ended"));
        return Ok(());
    }
    if is_torn {
        user.warn(format!("{home} is not saved: {}", torn_message(home)));
        return Ok(());
    }
    if !user.is_first() {
        return Ok(());
    }
    let lock = locked(user, home, CacheHome::try_sync_lock).await?;
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
    let (Some(mirror), own) = (open_mirror(user, home).await?, home.clone()) else { return Ok(interval) };
    if blocking(move || own.sync_state()).await?.is_torn(&boot::id_line()?) {
        return Ok(interval);
    }
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
            if let Err(error) = report_as(user, home, true).await {
                tracing::warn!("cannot tell other nodes that {home} is in use here: {error}");
            }
        }
    }
}

/// Tells other nodes whether this one uses the home.
async fn report_as<U: HomeUser>(user: &U, home: &CacheHome, in_use: bool) -> Result<()> {
    let Some(mirror) = open_mirror(user, home).await? else { return Ok(()) };
    let home = home.clone();
    run_on_blocking_thread(move || async move { home.report_use(&mirror, in_use).await }).await
}
