//! The host: all mounts of one daemon, and whether it is still needed. How they are made: [`making`].

mod making;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::engine::Engine;
use bdnfs::error::Kind;
use bdnfs::source::SecretStore;
use bdnfs::task;
use bdnfs_fs::RequestMetrics;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::api::cluster::ClusterStatus;
use crate::api::socket;
use crate::api::{AgentInfo, AgentStatus, Failure, FetchStats, MirrorRequest, StageStatus};
use crate::cluster::ClusterNode;
use crate::daemon::AgentConfig;
use crate::fdstore::keeper::Keeper;
use crate::jobs::Jobs;
use crate::mounts::hosted::Hosted;
use crate::mounts::kept::Kept;
use crate::mounts::restore::Missing;
use crate::records::Records;

/// How long the answer to how far a stage is may be held back: its end is told at once, and progress as often as is
/// smooth to the eye.
const NEWS: Duration = Duration::from_millis(200);
/// An unmounted mount ends at once, but for one that somebody detached (`umount -l`) and others still use.
const FAREWELL: Duration = Duration::from_secs(5);

/// All mounts of one daemon.
#[derive(Debug)]
pub struct Host {
    pub(crate) engine: Engine,
    /// Counts what all mounts serve.
    pub(crate) served: Arc<RequestMetrics>,
    pub(crate) cache: PathBuf,
    socket: PathBuf,
    mirror: Option<MirrorRequest>,
    secrets: Vec<SecretStore>,
    cluster: Option<ClusterNode>,
    /// What is kept of mounts, where they are to come back: with an agent.
    pub(crate) records: Option<Arc<Records<Kept>>>,
    jobs: Jobs,
    /// Who holds mounts while there is no agent: with an agent.
    pub(crate) keeper: Option<Arc<Keeper>>,
    table: Mutex<Table>,
    changed: Notify,
    asked: Notify,
    /// That everything is to be taken down.
    stop: Notify,
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) closing: watch::Sender<bool>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) mounts: BTreeMap<u64, Arc<Hosted>>,
    /// What was mounted before, and could not be again.
    pub(crate) missing: BTreeMap<u64, Missing>,
    /// The highest number that was given to a mount.
    pub(crate) last: u64,
    holds: usize,
    /// Where mounts are being made.
    reserved: HashSet<PathBuf>,
}

/// Keeps the daemon from ending, and a mountpoint from being used twice.
#[derive(Debug)]
pub struct Hold {
    host: Arc<Host>,
    place: Option<PathBuf>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.host.table();
        table.holds -= 1;
        if let Some(place) = &self.place {
            table.reserved.remove(place);
        }
        drop(table);
        self.host.changed.notify_one();
    }
}

impl Host {
    /// A host without mounts. Touches the local disk.
    pub fn new(
        engine: Engine,
        setup: AgentConfig,
        cluster: Option<ClusterNode>,
        keeper: Option<Keeper>,
    ) -> Result<Self, Failure> {
        let AgentConfig { cache, stays, mirror, secrets, .. } = setup;
        let records = stays.then(|| Records::open(&cache.dir, "mounts").map(Arc::new)).transpose()?;
        Ok(Self {
            jobs: Jobs::open(&cache.dir)?,
            engine,
            served: Arc::default(),
            socket: socket::of_cache(&cache.dir),
            cache: cache.dir,
            mirror,
            secrets,
            cluster,
            records,
            keeper: keeper.map(Arc::new),
            table: Mutex::default(),
            changed: Notify::new(),
            asked: Notify::new(),
            stop: Notify::new(),
            ready: watch::Sender::new(false),
            closing: watch::Sender::new(false),
        })
    }

    /// Waits until what was mounted before the start is back.
    pub async fn ready(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Whether it is.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits until what has arrived is safe on the disk.
    pub async fn close(&self) {
        self.engine.close().await;
    }

    /// Who is in the cluster.
    pub fn cluster(&self) -> Result<ClusterStatus, Failure> {
        let none = || {
            let text = "this agent is in no cluster: its configuration has no [cluster]";
            Failure::new(Kind::NotFound, text)
        };
        self.cluster.as_ref().map(ClusterNode::told).ok_or_else(none)
    }

    /// Waits for a moment until other nodes have been heard of, if there are to be any.
    pub(crate) async fn cluster_settled(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.settled().await;
        }
    }

    /// Leaves the cluster, if it is in one.
    pub async fn leave_cluster(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.leave().await;
        }
    }

    /// Keeps the daemon from ending.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.table().holds += 1;
        Hold { host: Arc::clone(self), place: None }
    }

    /// The same, unless it is about to end.
    pub(crate) fn hold_open(self: &Arc<Self>) -> Result<Hold, Failure> {
        let mut table = self.table();
        if *self.closing.borrow() {
            return Err(Failure::closing());
        }
        table.holds += 1;
        self.asked.notify_one();
        Ok(Hold { host: Arc::clone(self), place: None })
    }

    /// Its jobs.
    pub(crate) fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Whether it stays when nothing is mounted, and comes back.
    pub(crate) fn stays(&self) -> bool {
        self.records.is_some()
    }

    /// Whether mounts that name no mirror have one.
    pub(crate) fn has_mirror(&self) -> bool {
        self.mirror.is_some()
    }

    /// Where secrets are looked for.
    pub(crate) fn secrets(&self) -> &[SecretStore] {
        &self.secrets
    }

    /// Whose mounts are that name no tenant.
    pub(crate) fn tenant(&self) -> &str {
        self.engine.tenant()
    }

    fn next(&self) -> u64 {
        let mut table = self.table();
        table.last += 1;
        table.last
    }

    /// Writes the record of a mount, where records are kept. Touches the local disk.
    fn keep(&self, hosted: &Hosted) -> Result<(), Failure> {
        let Some(records) = &self.records else { return Ok(()) };
        let kept = hosted.kept();
        Ok(records.put(&kept.name(), &kept)?)
    }

    /// Removes the record of a mount. Touches the local disk.
    pub(crate) fn drop_record(&self, id: u64) {
        if let Some(records) = &self.records
            && let Err(error) = records.remove(&id.to_string())
        {
            tracing::warn!("mount {id} will come back at the next start: {error}");
        }
    }

    async fn forget(self: &Arc<Self>, hosted: &Arc<Hosted>) {
        hosted.snapshot().release().await;
        self.no_longer_held(hosted.id()).await;
        // What ends with the agent is to come back with it.
        if !*self.closing.borrow() {
            let (host, id) = (Arc::clone(self), hosted.id());
            let _ = blocking(move || {
                host.drop_record(id);
                Ok(())
            })
            .await;
        }
        self.table().mounts.remove(&hosted.id());
        tracing::info!("unmounted {}", hosted.mountpoint().display());
        hosted.forgotten();
        self.changed.notify_one();
    }

    /// Unmounts a mount and waits until it is gone; `lazy`: takes it out of sight and doesn't wait.
    pub async fn unmount(self: &Arc<Self>, id: u64, lazy: bool) -> Result<(), Failure> {
        if self.table().missing.remove(&id).is_some() {
            let host = Arc::clone(self);
            return blocking(move || {
                host.drop_record(id);
                Ok(())
            })
            .await;
        }
        let hosted = self.find(id)?;
        let leaving = Arc::clone(&hosted);
        if lazy {
            let host = Arc::clone(self);
            return blocking(move || {
                leaving.detach()?;
                if !*host.closing.borrow() {
                    host.drop_record(id);
                }
                Ok(())
            })
            .await;
        }
        blocking(move || Ok(leaving.mount().unmount()?)).await?;
        // Too late: it ends with the last of its users.
        let _ = tokio::time::timeout(FAREWELL, hosted.gone()).await;
        Ok(())
    }

    /// Waits until a mount is gone, or the daemon about to go.
    pub async fn ended(&self, id: u64) -> Result<(), Failure> {
        let hosted = self.find(id)?;
        tokio::select! {
            () = hosted.gone() => {}
            () = self.closed() => {}
        }
        Ok(())
    }

    /// Begins to make all of a mount local.
    pub async fn stage(self: &Arc<Self>, id: u64) -> Result<StageStatus, Failure> {
        let (host, hosted) = (Arc::clone(self), self.find(id)?);
        blocking(move || {
            if hosted.to_be_staged() {
                host.keep(&hosted)?;
            }
            Ok(hosted.stage())
        })
        .await
    }

    /// How far that is.
    pub async fn staging(&self, id: u64) -> Result<StageStatus, Failure> {
        let staging = self.find(id)?.staging(NEWS).await;
        staging.ok_or_else(|| Failure::new(Kind::NotFound, format!("mount {id} is not being staged")))
    }

    /// How all is doing.
    pub async fn status(&self) -> Result<AgentStatus, Failure> {
        let (mut mounts, lost): (Vec<_>, _) = {
            let table = self.table();
            (table.mounts.values().cloned().collect(), table.missing.values().map(Missing::told).collect())
        };
        mounts.retain(|hosted| !hosted.is_detached());
        let (engine, cache) = (self.engine.clone(), self.cache.clone());
        let (agent, ready) = (self.records.is_some(), self.is_ready());
        blocking(move || {
            let (version, pid) = (env!("CARGO_PKG_VERSION").to_owned(), std::process::id());
            let (usage, work) = (engine.usage(), FetchStats::of(&engine));
            let daemon = AgentInfo { version, pid, cache, agent, ready, usage, work };
            Ok(AgentStatus { daemon, mounts: mounts.iter().map(|hosted| hosted.status()).collect(), lost })
        })
        .await
    }

    /// What is kept of all mounts, those among them that could not be made again.
    pub(crate) fn all_kept(&self) -> Vec<Kept> {
        let table = self.table();
        let mounted = table.mounts.values().map(|hosted| hosted.kept());
        mounted.chain(table.missing.values().map(|missing| missing.kept.clone())).collect()
    }

    /// Waits until nothing is mounted and nobody holds it. From then on it refuses mounts. An agent is never idle.
    pub async fn idle(&self) {
        loop {
            {
                let table = self.table();
                if table.mounts.is_empty() && table.holds == 0 && self.records.is_none() {
                    self.closing.send_replace(true);
                    return;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Asks it to take everything down and to end.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    /// Waits until that is asked. For one waiter.
    pub async fn asked_to_stop(&self) {
        self.stop.notified().await;
    }

    /// Waits until a mount has been asked for. For one waiter.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    pub(crate) async fn closed(&self) {
        // The sender lives as long as `self`, so this can't fail.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    pub(crate) fn find(&self, id: u64) -> Result<Arc<Hosted>, Failure> {
        let missing = || Failure::new(Kind::NotFound, format!("there is no mount {id} any more"));
        self.table().mounts.get(&id).cloned().ok_or_else(missing)
    }

    /// What is mounted at `place`.
    pub(crate) fn at(&self, place: &Path) -> Option<Arc<Hosted>> {
        self.table()
            .mounts
            .values()
            .rfind(|hosted| hosted.mountpoint() == place && !hosted.is_detached())
            .cloned()
    }

    /// The numbers of what is mounted at `place`, or was and could not be again.
    pub(crate) fn ids_at(&self, place: &Path) -> Vec<u64> {
        let table = self.table();
        let mounted =
            table.mounts.values().filter(|hosted| hosted.mountpoint() == place && !hosted.is_detached());
        mounted.map(|hosted| hosted.id()).chain(table.superseded(place)).collect()
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        // Every change under the lock is whole, so a panic elsewhere leaves it usable.
        self.table.lock()
    }
}

impl Table {
    /// The missing whose place has been taken.
    fn superseded<'a>(&'a self, place: &'a Path) -> impl Iterator<Item = u64> + 'a {
        self.missing
            .iter()
            .filter(move |(_, missing)| missing.kept.request.weights.mountpoint == place)
            .map(|(id, _)| *id)
    }
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    task::blocking(move || Ok(work())).await?
}
