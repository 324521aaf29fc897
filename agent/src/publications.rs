//! Publications: a source, staged once a node, for containers, pods and tasks.
//!
//! ```text
//!  PUT key ──> Publications ── Publication: trust ─> mirror ─> resolve ─> base ─> admission ─> stage ─> gate ─> bind
//!                   │                                                      │
//!                   │                Bases: one mount of (tenant, snapshot, owner) for all who publish it
//!                   └─ records: what is published in this boot; restore and reconcile hold them against the mount table
//! ```
//!
//! A publication is a task of the agent, and not of the request that asked for it: that may give up, come again, or die. It
//! outlives the agent as well: the next one begins a pending one again; a published one's base is resumed by the fd store,
//! and its bind is the kernel's.

mod base;
pub mod bind;
mod cdi;
mod ending;
mod publication;
mod publication_config;
mod publishing;
pub mod reconcile;
mod record;
mod renewal;
mod sources;
mod trust;
mod unreadable_records;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bdnfs::boot;
use bdnfs::cache::directory::CacheDirectory;
use bdnfs::error::{Kind, Result};
use bdnfs::source::{Patterns, Uri};
use bdnfs::task::blocking;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::api::publication::{
    PublicationRequest, PublicationState, PublicationStatus, check_publication_key,
};
use crate::api::{ApiResult, Failure};
use crate::context::Context;
use crate::deploy::{AdmissionQueue, MirrorQueue};
use crate::lifecycle::Lifecycle;
use crate::mounts::MountManager;
use crate::records::Records;
use base::Bases;
use bind::BindTarget;
use publication::Publication;
pub(crate) use record::PublicationRecord;
use unreadable_records::UnreadableRecords;

pub use cdi::is_device_name;
pub use publication_config::PublicationConfig;
pub use sources::SourceConfig;

/// The directory in the cache with the bases.
const BASES_DIRECTORY: &str = "bases";
/// The maximum time for which a request is held: any runtime's deadline is shorter, and it may come again.
const MAX_PUBLISH_WAIT: Duration = Duration::from_secs(60 * 60);

/// The state that a request for a publication waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// The source was found, and its snapshot is known.
    Resolved,
    /// The source is mounted at its path.
    Published,
}

/// All publications of an agent.
#[derive(Debug)]
pub struct Publications {
    config: PublicationConfig,
    mounts: Arc<MountManager>,
    lifecycle: Arc<Lifecycle>,
    mirrors: Arc<MirrorQueue>,
    bases: Bases,
    records: Records<PublicationRecord>,
    /// Records of this boot that are to be restored, by key.
    last_run: Mutex<BTreeMap<String, PublicationRecord>>,
    unreadable: UnreadableRecords,
    /// The bases of the previous boot.
    last_boot: HashSet<PathBuf>,
    boot: String,
    table: Mutex<BTreeMap<String, Arc<Publication>>>,
    /// Whether [`end_all`](Self::end_all) was called: nothing new is begun, which it would miss.
    ending: AtomicBool,
}

impl Publications {
    /// The publications of the cache, whose lock the caller holds; those of this boot are [restored](Self::restore) later.
    /// Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open(
        config: PublicationConfig,
        mounts: Arc<MountManager>,
        lifecycle: Arc<Lifecycle>,
        mirrors: Arc<MirrorQueue>,
        admission: Arc<AdmissionQueue>,
    ) -> Result<Self> {
        let cache = &mounts.mounter().cache;
        let records = Records::<PublicationRecord>::open(cache, "publications")?;
        let boot = boot::id()?;
        let (readable, unreadable) = UnreadableRecords::read(&records)?;
        let (last_run, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) =
            readable.into_iter().partition(|(_, record)| record.boot == boot);
        for key in dropped.keys() {
            records.remove(key)?;
        }
        let last_boot = dropped.into_values().map(|record| record.base).collect();
        if config.bases.is_none() {
            let made = CacheDirectory::open(cache)?.subdirectory(BASES_DIRECTORY);
            made.with_context(|| format!("cannot create {BASES_DIRECTORY} in {}", cache.display()))?;
        }
        let directory = config.bases.clone().unwrap_or_else(|| cache.join(BASES_DIRECTORY));
        let bases = Bases::open(&directory, Arc::clone(&mounts), admission)?;
        let is_empty = last_run.values().all(|record| record.pending.is_some());
        let (last_run, table, ending) = (Mutex::new(last_run), Mutex::default(), AtomicBool::new(false));
        let publications = Self {
            config,
            mounts,
            lifecycle,
            mirrors,
            bases,
            records,
            last_run,
            unreadable,
            last_boot,
            boot,
            table,
            ending,
        };
        if is_empty && !publications.has_unreadable_record() {
            publications.remove_devices();
        }
        if let Err(error) = publications.remove_orphans_of_last_run() {
            tracing::warn!("cannot remove binds without a record: {error}");
        }
        Ok(publications)
    }

    /// Asks for a publication, or joins it, and waits at most `wait` until it is at `milestone`. Dropping the future gives up the
    /// wait, and not the publication.
    ///
    /// # Errors
    /// Why it failed; then nothing of it is left. [`Failure::EXISTS`] where something else is published there, [`Kind::Busy`] where
    /// it was unpublished meanwhile.
    pub async fn publish(
        self: &Arc<Self>,
        key: &str,
        request: PublicationRequest,
        wait: Duration,
        milestone: Milestone,
    ) -> ApiResult<PublicationStatus> {
        let until = Instant::now() + wait.min(MAX_PUBLISH_WAIT);
        // Ids and mounts of restored publications go first.
        if timeout_at(until, self.lifecycle.ready()).await.is_err() {
            let why = "the agent restores what it published before it was started; then it goes on";
            return waiting(key, request, why);
        }
        let _alive = self.lifecycle.begin()?;
        if let Some(published) = self.find_published(key, &request) {
            if self.is_shown(&published).await {
                return self.republish(&published, &request).await;
            }
            // Somebody else has unmounted it: it is published anew.
            published.cancel();
        }
        let target = self.check(key, &request).await?;
        let mut adopted = match &target {
            Some(target) => self.adopt(key, &request, target).await?,
            None => None,
        };
        let publication = loop {
            if let Some(adopted) = adopted.take() {
                self.renew(&adopted, &request).await;
                break adopted;
            }
            let (found, is_new) = self.find_or_insert(key, &request, target.as_ref())?;
            if is_new {
                tokio::spawn(Arc::clone(self).run(Arc::clone(&found)));
                break found;
            }
            if let Some(failure) = found.failure() {
                // The failure is reported once, to whoever asked for it; the next request retries.
                self.forget(&found);
                if found.is_same(&request) {
                    return Err(failure);
                }
                continue;
            }
            if !found.is_cancelled() {
                self.renew(&found, &request).await;
                break found;
            }
            if timeout_at(until, found.await_removal()).await.is_err() && found.is_cancelled() {
                return waiting(key, request, "it is being unpublished; then it goes on");
            }
        };
        if publication.is_published() {
            self.rebind(&publication).await?;
            return publication.status_unless_cancelled();
        }
        let waiter = publication.wait();
        tokio::select! {
            biased;
            () = publication.await_resolution(), if milestone == Milestone::Resolved => {}
            () = publication.await_outcome() => {}
            () = self.lifecycle.await_closing() => return Err(Failure::closing()),
            () = sleep_until(until) => {}
        }
        drop(waiter);
        match publication.failure() {
            Some(failure) => {
                self.forget(&publication);
                Err(failure)
            }
            None => publication.status_unless_cancelled(),
        }
    }

    /// The tenant of publications that name none.
    pub fn tenant(&self) -> &str {
        self.mounts.mounter().engine.tenant()
    }

    /// Refuses what can never be published, before anything else is done. Touches the local disk.
    async fn check(&self, key: &str, request: &PublicationRequest) -> ApiResult<Option<BindTarget>> {
        if !self.lifecycle.is_persistent() {
            let text = "publications need the agent of the node; start `bdnfs agent`";
            return Err(Failure::new(Kind::Unsupported, text));
        }
        check_publication_key(key)?;
        let uri: Uri = request.source.expose().parse()?;
        Patterns::filter(request.allow.as_deref(), &request.ignore)?;
        let (asked, allowed) = (request.clone(), self.config.inline_sources.clone());
        let trusted = blocking(move || trust::check(&asked, &uri, &allowed)).await;
        trusted.map_err(Failure::of_rules)?;
        let Some(target) = request.target.clone() else { return Ok(None) };
        let directories = self.config.targets.clone();
        let located = blocking(move || BindTarget::locate(&target, &directories)).await;
        located.map(Some).map_err(Failure::of_rules)
    }

    /// The publication with this key, and whether it is new.
    fn find_or_insert(
        &self,
        key: &str,
        request: &PublicationRequest,
        target: Option<&BindTarget>,
    ) -> ApiResult<(Arc<Publication>, bool)> {
        let exists = |text: String| Failure { kind: Failure::EXISTS.to_owned(), message: text };
        let mut table = self.table.lock();
        if let Some(found) = table.get(key) {
            if !found.is_same(request) && !found.is_cancelled() && found.failure().is_none() {
                if !found.is_same_but_for_rules(request) {
                    return Err(exists(format!(
                        "{} is published as {key}; unpublish it first",
                        found.source
                    )));
                }
                // What the rules make of a pending one has changed: it begins anew.
                if !found.is_published() {
                    found.cancel();
                }
            }
            return Ok((Arc::clone(found), false));
        }
        let holds = |other: &&Arc<Publication>| target.is_some() && other.target.as_ref() == target;
        if let Some(other) = table.values().find(holds) {
            let at = target.map_or_else(PathBuf::new, BindTarget::path);
            return Err(exists(format!("{} is published at {} already", other.source, at.display())));
        }
        if self.ending.load(Ordering::Acquire) {
            return Err(Failure::closing());
        }
        let new = Arc::new(Publication::new(key.to_owned(), request.clone(), target.cloned())?);
        table.insert(key.to_owned(), Arc::clone(&new));
        self.unreadable.forget(key);
        Ok((new, true))
    }

    /// The status of a publication.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    pub fn status(&self, key: &str) -> ApiResult<PublicationStatus> {
        let missing = || Failure::new(Kind::NotFound, format!("no such publication: {key}"));
        self.table.lock().get(key).map(|publication| publication.status()).ok_or_else(missing)
    }

    /// The status of all publications.
    pub fn list(&self) -> Vec<PublicationStatus> {
        self.all().iter().map(|publication| publication.status()).collect()
    }

    fn all(&self) -> Vec<Arc<Publication>> {
        self.table.lock().values().cloned().collect()
    }

    /// The targets of all.
    fn targets(&self) -> Vec<PathBuf> {
        self.all().iter().filter_map(|one| Some(one.target.as_ref()?.path())).collect()
    }

    /// Counts publications by their states.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let list = self.list();
        let count = |state| list.iter().filter(|status| status.state == state).count() as u64;
        [
            ("staging", count(PublicationState::Staging)),
            ("published", count(PublicationState::Published)),
            ("failed", count(PublicationState::Failed)),
        ]
    }
}

/// The status of a publication that is not begun yet, and why.
fn waiting(key: &str, request: PublicationRequest, why: &str) -> ApiResult<PublicationStatus> {
    let waiting = Publication::new(key.to_owned(), request, None)?;
    waiting.note(why.to_owned());
    Ok(waiting.status())
}
