//! A job and the homes of its caches: they are brought to the newest state before its commands run, and saved while these run and after
//! the last job of this node that uses them.

use std::convert::Infallible;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bdnfs::boot;
use bdnfs::download::DownloadProgress;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::mirroring::MirrorProgress;
use bdnfs::task::{blocking, on_own_thread};
use tokio::time::sleep;

use super::job::{Job, StopRequest};
use super::job_caches::JobCaches;
use super::job_room;
use super::run::JobRun;
use crate::api::ApiResult;
use crate::mirror::{self, MIRROR_CONFIG};
use crate::text;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{BroughtCache, CacheSync, REPORT_INTERVAL, SavedCache, UnsavedElsewhere};

/// How often the turn of a home is tried.
const TURN_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is looked whether other nodes have saved what a job waits for.
const UNSAVED_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How many names an event lists.
const SHOWN_PATHS_MAX: usize = 5;

/// Brings the homes of a job's caches to the newest state that is saved, unless another job on this node uses them; a job with
/// `require_cache_affinity` waits for those of other nodes that use them. The files that it returns keep the homes for the job.
///
/// # Errors
/// Where a job with `require_cache_affinity` can't have the newest state, why.
pub async fn begin(run: &JobRun) -> ApiResult<Vec<File>> {
    let job = &run.job;
    let Some(caches) = JobCaches::of(&run.queue, job) else { return Ok(Vec::new()) };
    let training = &job.request().training;
    if training.project.is_none() {
        let project = training.project();
        job.note(format!("the job names no project, so its cache is that of the project {project}"));
    }
    let mut held = Vec::new();
    for home in caches.homes() {
        let mut is_noted = false;
        loop {
            let turn = locked(home, CacheHome::try_turn, job).await?;
            let own = home.clone();
            let is_in_use = blocking(move || Ok(own.is_in_use())).await?;
            let awaited =
                if is_in_use { None } else { prepare(run, home, caches.needs_newest(home)).await? };
            let Some(unsaved) = awaited else {
                let own = home.clone();
                held.push(blocking(move || own.create()).await?);
                break;
            };
            // Jobs of this node that don't wait may use it meanwhile.
            drop(turn);
            if !is_noted {
                job.note(format!("waits until other nodes have saved {home}: {unsaved}"));
                is_noted = true;
            }
            sleep(UNSAVED_POLL_INTERVAL).await;
        }
    }
    Ok(held)
}

/// Brings what other nodes saved into a home that no job uses, and notes that one is about to write to it. Where the home needs the
/// newest state, and jobs of other nodes have that, it returns what is to be waited for.
async fn prepare(run: &JobRun, home: &CacheHome, needs_newest: bool) -> ApiResult<Option<String>> {
    let (job, own) = (&run.job, home.clone());
    let is_new = blocking(move || Ok(own.is_new())).await?;
    // What is under way for a job that was given up comes to its end before another writes to the home.
    let lock = locked(home, CacheHome::try_sync_lock, job).await?;
    let mirror = open_mirror(run, home).await;
    let mirror =
        mirror.map(|mirror| mirror.map(|mirror| CacheSync::new(home.clone(), mirror, Arc::clone(&lock))));
    if let (true, Ok(Some(sync))) = (needs_newest, &mirror) {
        // An error comes again when the state is brought.
        let unsaved = unsaved_elsewhere(sync).await.ok().flatten();
        if let Some(unsaved) = unsaved.filter(|unsaved| unsaved.is_awaited) {
            return Ok(Some(unsaved.message));
        }
    }
    job_room::make_room(run).await;
    let (sync, brought) = match mirror {
        Ok(Some(sync)) => {
            let brought = bring(run, home, &sync, needs_newest).await.map(Some);
            (Some(sync), brought)
        }
        none => (None, none.map(|_| None)),
    };
    let is_to_be_saved = sync.is_some() || brought.is_err();
    let brought = match brought {
        Err(error) if needs_newest => {
            return Err(error.within(format!("cannot bring the newest state of {home}")).into());
        }
        Err(error) => {
            job.note(format!("{home} is as this node has it: {error}"));
            None
        }
        Ok(brought) => brought,
    };
    if is_new && brought.is_none_or(|brought| brought.latest.is_none()) {
        job.note(format!("{home} begins empty"));
    }
    let (own, now) = (home.clone(), is_to_be_saved.then(boot_id));
    if !blocking(move || own.begin_use(now)).await? {
        job.note(format!("{home} will not be saved: {}", torn_message(home)));
    }
    // Of several nodes, only what the first one has will be saved.
    if let Some(sync) = sync.filter(|_| job.request().training.rank == 0)
        && let Err(error) = on_own_thread(move || async move { sync.report(true).await }).await
    {
        job.note(format!("other nodes are not told that {home} may have unsaved changes here: {error}"));
    }
    Ok(None)
}

async fn unsaved_elsewhere(sync: &CacheSync) -> Result<Option<UnsavedElsewhere>> {
    let sync = sync.clone();
    on_own_thread(move || async move { sync.unsaved_elsewhere().await }).await
}

/// Brings what other nodes saved into a home, and makes room for it where the disk is full.
///
/// # Errors
/// Those of [`CacheSync::bring`]; [`Kind::Busy`] where the home needs the newest state, and another node has changes that are not saved.
async fn bring(run: &JobRun, home: &CacheHome, sync: &CacheSync, needs_newest: bool) -> Result<BroughtCache> {
    let begin = Instant::now();
    if let Some(UnsavedElsewhere { message: unsaved, .. }) = unsaved_elsewhere(sync).await? {
        if needs_newest {
            return Err(Error::new(Kind::Busy, format!("{unsaved}; {}", unsaved_advice(home))));
        }
        run.job.note(format!("{home} begins without the newest changes: {unsaved}"));
    }
    loop {
        let own = sync.clone();
        let bring = move || async move { own.bring(&DownloadProgress::default()).await };
        match on_own_thread(bring).await {
            Err(error) if error.kind() == Kind::NoSpace && job_room::evict_home(run).await => {}
            Err(error) => return Err(error),
            Ok(brought) => {
                note_brought(&run.job, home, &brought, begin.elapsed());
                return Ok(brought);
            }
        }
    }
}

/// What to do where another node has changes that are not saved.
fn unsaved_advice(home: &CacheHome) -> String {
    let name = format!("{}{}", home.scope().option(), home.name().escape_debug());
    format!(
        "wait for its jobs, save it there with `bdnfs project save {name}`, give up a node that is gone with `bdnfs project forget \
         {name}`, or set require_cache_affinity to false"
    )
}

/// Saves the homes of a job's caches that no other job on this node uses. What can't be saved stays here, and an event says so.
pub async fn save(run: &JobRun) {
    let job = &run.job;
    let Some(caches) = JobCaches::of(&run.queue, job) else { return };
    for home in caches.homes() {
        tokio::select! {
            biased;
            () = job.stop_requested(StopRequest::Now) => {
                job.note(format!("{home} is not saved, since the job is killed"));
            }
            saved = save_home(run, home) => {
                if let Err(error) = saved {
                    job.note(format!("cannot save {home}, which stays on this node: {error}"));
                }
            }
            never = report_regularly(run) => match never {},
        }
    }
}

async fn save_home(run: &JobRun, home: &CacheHome) -> Result<()> {
    let Some(mirror) = open_mirror(run, home).await? else { return Ok(()) };
    let (job, own) = (&run.job, home.clone());
    let _turn = locked(home, CacheHome::try_turn, job).await?;
    let (is_in_use, state) = blocking(move || Ok((own.is_in_use(), own.sync_state()?))).await?;
    if is_in_use {
        job.note(format!("{home} is saved when the other jobs on this node have ended"));
        return Ok(());
    }
    if state.is_torn(&boot_id()) {
        job.note(format!("{home} is not saved: {}", torn_message(home)));
        return Ok(());
    }
    let own = home.clone();
    blocking(move || own.end_use()).await?;
    // Each rank has a home of its own; that of the first one lasts.
    if job.request().training.rank > 0 {
        return Ok(());
    }
    let lock = locked(home, CacheHome::try_sync_lock, job).await?;
    let begin = Instant::now();
    let sync = CacheSync::new(home.clone(), mirror, lock);
    let saved =
        on_own_thread(move || async move { sync.save(MIRROR_CONFIG, &MirrorProgress::default()).await });
    let saved = saved.await?;
    note_brought(job, home, &saved.brought, begin.elapsed());
    note_saved(job, home, &saved, begin.elapsed());
    Ok(())
}

/// Saves the homes of a job's caches at the interval of the configuration, as long as it is polled: its commands run meanwhile, and do
/// not wait for it.
pub async fn save_regularly(run: &JobRun) -> Infallible {
    let (job, interval) = (&run.job, run.queue.volumes.config().save_interval);
    let caches = JobCaches::of(&run.queue, job).filter(|_| job.request().training.rank == 0);
    let Some(caches) = caches else { return std::future::pending().await };
    loop {
        let mut pause = interval;
        for home in caches.homes() {
            let left = match save_when_due(run, home, interval).await {
                Ok(left) => left,
                Err(error) => {
                    job.note(format!(
                        "cannot save {home} while jobs use it, and tries again after save_interval: {error}"
                    ));
                    interval
                }
            };
            pause = pause.min(left);
        }
        sleep(pause.max(TURN_POLL_INTERVAL)).await;
    }
}

/// Tells other nodes again and again that this one lives, which uses the homes of a job's caches, as long as it is polled.
pub async fn report_regularly(run: &JobRun) -> Infallible {
    let caches = JobCaches::of(&run.queue, &run.job).filter(|_| run.job.request().training.rank == 0);
    let Some(caches) = caches else { return std::future::pending().await };
    loop {
        sleep(REPORT_INTERVAL).await;
        for home in caches.homes() {
            if let Err(error) = report(run, home).await {
                tracing::warn!("cannot tell other nodes that {home} is in use here: {error}");
            }
        }
    }
}

async fn report(run: &JobRun, home: &CacheHome) -> Result<()> {
    let Some(mirror) = open_mirror(run, home).await? else { return Ok(()) };
    let home = home.clone();
    on_own_thread(move || async move { home.report_use(&mirror).await }).await
}

/// Saves a home that is in use, where that was not done within the `interval`, for this job or another. Returns when it is to be done
/// next.
async fn save_when_due(run: &JobRun, home: &CacheHome, interval: Duration) -> Result<Duration> {
    let (job, own) = (&run.job, home.clone());
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
    let (Some(mirror), own) = (open_mirror(run, home).await?, home.clone()) else { return Ok(interval) };
    if blocking(move || own.sync_state()).await?.is_torn(&boot_id()) {
        return Ok(interval);
    }
    let (begin, rate) = (Instant::now(), run.queue.volumes.config().upload_rate);
    let sync = CacheSync::new(home.clone(), mirror, Arc::new(lock));
    let saved = on_own_thread(move || async move {
        sync.save_in_use(rate, MIRROR_CONFIG, &MirrorProgress::default()).await
    });
    match saved.await? {
        Some(saved) => note_saved(job, home, &saved, begin.elapsed()),
        None => job.note(format!("{home} was saved by another node, and is saved here when no job uses it")),
    }
    Ok(interval)
}

/// The mirror that a job's caches are saved in. This machine's own one is none: it would keep them twice on one disk.
async fn open_mirror(run: &JobRun, home: &CacheHome) -> Result<Option<Mirror>> {
    let (run, scratch) = (run.clone(), home.path().to_owned());
    blocking(move || {
        let (request, mounter) = (run.job.request(), run.queue.mounts.mounter());
        if request.direct {
            return Ok(None);
        }
        let at = mounter.mirror(request.mirror.clone(), request.tenant.as_deref())?;
        at.map(|at| mirror::open(&at, scratch)).transpose()
    })
    .await
}

/// Waits for a lock of a home, its turn or its sync lock, and notes the wait in an event.
async fn locked(
    home: &CacheHome,
    lock: fn(&CacheHome) -> Result<Option<File>>,
    job: &Job,
) -> Result<Arc<File>> {
    let mut is_noted = false;
    loop {
        let own = home.clone();
        if let Some(locked) = blocking(move || lock(&own)).await? {
            return Ok(Arc::new(locked));
        }
        if !is_noted {
            job.note(format!("waits while {home} is saved, or brought here for another job"));
            is_noted = true;
        }
        sleep(TURN_POLL_INTERVAL).await;
    }
}

fn note_brought(job: &Job, home: &CacheHome, brought: &BroughtCache, took: Duration) {
    if brought.is_emptied {
        job.note(format!("{home} was removed elsewhere, and is emptied here"));
    }
    if brought.taken + brought.removed > 0 {
        let (taken, bytes) = (text::count(brought.taken as u64, "entry"), text::size(brought.bytes));
        job.note(format!(
            "brought {home} to the state that is saved: {taken} new or changed, {} removed, {bytes} in {:.1} s",
            brought.removed,
            took.as_secs_f64()
        ));
    }
    if !brought.conflicts.is_empty() {
        let names = names(&brought.conflicts);
        job.note(format!(
            "{home} was changed here and on another node, and the later change is kept, at {names}"
        ));
    }
}

fn note_saved(job: &Job, home: &CacheHome, saved: &SavedCache, took: Duration) {
    if let Some(published) = &saved.published {
        let (files, bytes) =
            (text::files(published.latest_ref.files), text::size(published.latest_ref.bytes));
        let (written, took) = (text::size(published.written), took.as_secs_f64());
        job.note(format!("saved {home}: {files}, {bytes}, of which {written} were new, in {took:.1} s"));
    }
    if !saved.busy.is_empty() {
        job.note(format!("{home} is saved without what is being written: {}", names(&saved.busy)));
    }
    if saved.skipped > 0 {
        let skipped = text::count(saved.skipped as u64, "entry");
        job.note(format!("{home} is saved without {skipped} other than files, directories and links"));
    }
}

/// Paths for an event, the first ones.
fn names(paths: &[Vec<u8>]) -> String {
    let shown: Vec<_> =
        paths.iter().take(SHOWN_PATHS_MAX).map(|path| path.escape_ascii().to_string()).collect();
    let more = paths.len().saturating_sub(SHOWN_PATHS_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}

fn torn_message(home: &CacheHome) -> String {
    let (name, team) = (home.name().escape_debug(), home.scope().option());
    format!(
        "the node restarted while a job wrote to it, so some of it may be torn; save it as it is with `bdnfs project save {team}{name}`, \
         or remove it with `bdnfs project rm {team}{name}`"
    )
}

/// The id of this boot; empty where there is no /proc.
fn boot_id() -> String {
    boot::id().unwrap_or_default()
}
