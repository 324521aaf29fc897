//! The agent: the parts that it consists of, and what concerns all of them.

mod config;

use std::sync::Arc;
use std::time::Duration;

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::cache::eviction::EvictionPause;
use bdnfs::engine::Engine;
use bdnfs::error::Kind;
use bdnfs::task::blocking;
use bdnfs::timeout::within;
use bdnfs_fs::RequestMetrics;
use bdnfs_fs::native_mount::Superblocks;
use tokio::time::timeout;

pub use config::AgentConfig;

use crate::api::cluster::ClusterStatus;
use crate::api::{AgentInfo, AgentStatus, ApiResult, Failure, FetchStats, socket};
use crate::cache::scrubber::Scrubber;
use crate::cluster::ClusterMembership;
use crate::container_volumes::ContainerVolumes;
use crate::deploy::{AdmissionQueue, MirrorQueue};
use crate::fdstore::{FdStore, StoredMount};
use crate::hooks::docker::DockerVolumes;
use crate::jobs::JobQueue;
use crate::lifecycle::Lifecycle;
use crate::mirror;
use crate::mounts::{Handover, MountDefaults, MountManager, Mounter, SourceHistory, restore, shutdown};
use crate::publications::Publications;
use crate::signals::Shutdown;
use crate::telemetry::scrape::Scrape;
use crate::volumes::Volumes;

/// The timeout for restoring the mounts of the last run, in an agent that is to unmount everything.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that the status waits for the disks of the volumes and of the cache: who asks for it waits for two seconds.
const STATUS_DISK_TIMEOUT: Duration = Duration::from_secs(1);

/// An agent: the engine, mounts, jobs and publications of one cache.
#[derive(Debug)]
pub struct Agent {
    engine: Engine,
    lifecycle: Arc<Lifecycle>,
    mounts: Arc<MountManager>,
    jobs: Arc<JobQueue>,
    publications: Arc<Publications>,
    volumes: Arc<ContainerVolumes>,
    docker: Option<Arc<DockerVolumes>>,
    cluster: Option<ClusterMembership>,
    scrubber: Scrubber,
    /// Counts the requests of all mounts.
    requests: Arc<RequestMetrics>,
    handover: Handover,
}

impl Agent {
    /// An agent without mounts; its jobs stand still until it is [restored](Self::restore). Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`] where the records can't be read.
    pub fn new(
        engine: Engine,
        config: AgentConfig,
        cluster: Option<ClusterMembership>,
        store: Option<Arc<FdStore>>,
    ) -> ApiResult<Self> {
        let AgentConfig { cache, persistent, mirror, secrets, via, publications, volumes, docker, .. } =
            config;
        let volumes = Arc::new(Volumes::new(volumes, engine.cache())?);
        let requests = Arc::<RequestMetrics>::default();
        let mounter = Mounter {
            history: SourceHistory::open(&cache.dir)?,
            engine: engine.clone(),
            socket: socket::of_cache(&cache.dir),
            cache: cache.dir.clone(),
            superblocks: Arc::new(Superblocks::open(&CacheDirectory::open(&cache.dir)?)?),
            defaults: MountDefaults { mirror, secrets, via },
            metrics: Arc::clone(&requests),
            invalidator: store.clone().map(|store| store as _),
        };
        let lifecycle = Arc::new(Lifecycle::new(persistent));
        let handover = Handover::new(store);
        let mounts = Arc::new(MountManager::new(mounter, handover.clone(), Arc::clone(&lifecycle))?);
        let (own, scratch) = (Arc::clone(&mounts), cache.dir.clone());
        volumes.set_own_mirror(Box::new(move |tenant| {
            let at = own.mounter().mirror(None, Some(tenant))?;
            at.map(|at| mirror::open(&at, scratch.clone())).transpose()
        }));
        let (mirrors, admission) = (Arc::<MirrorQueue>::default(), Arc::<AdmissionQueue>::default());
        let shared =
            || (Arc::clone(&mounts), Arc::clone(&lifecycle), Arc::clone(&mirrors), Arc::clone(&admission));
        let written = {
            let (mounts, lifecycle, _, admission) = shared();
            let volumes = Arc::clone(&volumes);
            Arc::new(ContainerVolumes::open(&publications, volumes, mounts, lifecycle, admission)?)
        };
        let jobs = {
            let (mounts, lifecycle, mirrors, admission) = shared();
            Arc::new(JobQueue::open(mounts, lifecycle, mirrors, admission, volumes, cache.scrub_interval)?)
        };
        let publications = {
            let (mounts, lifecycle, mirrors, admission) = shared();
            Arc::new(Publications::open(publications, mounts, lifecycle, mirrors, admission)?)
        };
        let docker = docker.map(|docker| {
            let (publications, written) = (Arc::clone(&publications), Arc::clone(&written));
            DockerVolumes::open(docker, &cache.dir, publications, written)
        });
        let docker = docker.transpose()?.map(Arc::new);
        let starting = Arc::clone(&lifecycle);
        let scrubber = Scrubber::start(&engine, move || starting.is_ready(), cache.scrub_interval)?;
        Ok(Self {
            engine,
            lifecycle,
            mounts,
            jobs,
            publications,
            volumes: written,
            docker,
            cluster,
            scrubber,
            requests,
            handover,
        })
    }

    /// The lifecycle, which keeps the agent running.
    pub fn lifecycle(&self) -> &Arc<Lifecycle> {
        &self.lifecycle
    }

    /// The engine, which fetches.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The mounts of the agent.
    pub fn mounts(&self) -> &Arc<MountManager> {
        &self.mounts
    }

    /// The jobs of the agent.
    pub fn jobs(&self) -> &Arc<JobQueue> {
        &self.jobs
    }

    /// The publications of the agent.
    pub fn publications(&self) -> &Arc<Publications> {
        &self.publications
    }

    /// The volumes that containers write to.
    pub fn volumes(&self) -> &Arc<ContainerVolumes> {
        &self.volumes
    }

    /// The volumes of Docker and podman, if they are served.
    pub fn docker(&self) -> Option<&Arc<DockerVolumes>> {
        self.docker.as_ref()
    }

    /// Restores the mounts of the last run, of which the fd store has `stored`, and goes on with its jobs. Drops
    /// `eviction_pause` as soon as all leases are there.
    pub async fn restore(&self, eviction_pause: EvictionPause, stored: Vec<StoredMount>) {
        let purpose = |mountpoint: &_| {
            let published = self.publications.purpose_of(mountpoint);
            published.unwrap_or_else(|| self.jobs.purpose_of(mountpoint))
        };
        let to_stage = restore(&self.mounts, eviction_pause, stored, purpose).await;
        let engine = self.engine.clone();
        let repeated = blocking(move || {
            engine.cache().repeat_removals();
            Ok(())
        });
        if let Err(error) = repeated.await {
            tracing::warn!(%error, "mounts may show damaged data that was removed before");
        }
        // Existing mounts are served at once. New fetches wait until peers are known.
        if let Some(cluster) = &self.cluster {
            cluster.await_members().await;
        }
        for mount in to_stage {
            self.mounts.stage_restored(&mount);
        }
        self.publications.restore().await;
        // Before jobs, which remove what nobody holds.
        self.volumes.restore().await;
        let restored = self.publications.list();
        // Before others are admitted: they have their space, and more.
        self.jobs.resume();
        self.lifecycle.set_ready();
        if self.lifecycle.is_persistent() {
            tokio::spawn(Arc::clone(&self.publications).watch());
            tokio::spawn(Arc::clone(&self.publications).list_devices());
            tokio::spawn(Arc::clone(&self.volumes).watch());
            tokio::spawn(Arc::clone(&self.volumes).keep_room());
            if let Some(docker) = &self.docker {
                tokio::spawn(Arc::clone(docker).watch(restored));
            }
        }
    }

    /// Stores the descriptors of all mounts again whenever the fd store has ended, as soon as there is another. Never ends.
    pub async fn watch_fdstore(self: Arc<Self>) {
        self.handover.clone().watch(|| self.mounts.all()).await;
    }

    /// Ends its jobs and publications, leaves the cluster, and unmounts all mounts or hands them over.
    pub async fn shut_down(&self, how: Shutdown) {
        // What is not restored yet is in nobody's list, and would stay.
        let is_restored = match how {
            Shutdown::Stop => timeout(RESTORE_TIMEOUT, self.lifecycle.ready()).await.is_ok(),
            Shutdown::HandOver => self.lifecycle.is_ready(),
        };
        self.jobs.end_all(how, is_restored).await;
        self.publications.end_all(how == Shutdown::Stop).await;
        let mounts = async {
            match how {
                Shutdown::HandOver => shutdown::hand_over_all(&self.mounts).await,
                Shutdown::Stop => shutdown::unmount_all(&self.mounts).await,
            }
        };
        let leave = async {
            if let Some(cluster) = &self.cluster {
                cluster.leave().await;
            }
        };
        tokio::join!(leave, mounts);
    }

    /// Waits until what has arrived is safe on the disk.
    pub async fn close(&self) {
        self.scrubber.stop();
        self.engine.close().await;
    }

    /// Whether a mount is handed over to the next agent, or may be.
    pub fn is_handed_over(&self) -> bool {
        shutdown::is_handed_over(&self.mounts)
    }

    /// The agent, its mounts, and how they are doing.
    pub async fn status(&self) -> ApiResult<AgentStatus> {
        let (mounts, lost) = (self.mounts.attached(), self.mounts.lost());
        let (publications, volumes) = (self.publications.list(), self.volumes.list());
        let (engine, cache) = (self.engine.clone(), self.mounts.mounter().cache.clone());
        let (persistent, ready) = (self.lifecycle.is_persistent(), self.lifecycle.is_ready());
        let jobs = Arc::clone(&self.jobs);
        let listed = volumes.clone();
        // Volumes may lie on a disk that does not answer, and until the agent is ready their jobs are not known.
        let unsaved = blocking(move || Ok(jobs.unsaved_directories(&listed)));
        let unsaved = async {
            let listed = timeout(STATUS_DISK_TIMEOUT, unsaved);
            if ready { listed.await.unwrap_or_else(|_| Ok(Vec::new())) } else { Ok(Vec::new()) }
        };
        let locals = Arc::new(parking_lot::Mutex::new(vec![None; mounts.len()]));
        let (counted, counts) = (mounts.clone(), locals.clone());
        let count = blocking(move || {
            for (number, mount) in counted.iter().enumerate() {
                let local = mount.local();
                counts.lock()[number] = local;
            }
            Ok(())
        });
        let answer = move |locals: Vec<Option<u64>>| {
            let (version, pid) = (env!("CARGO_PKG_VERSION").to_owned(), std::process::id());
            let (usage, work) = (engine.usage(), FetchStats::of(&engine));
            let agent = AgentInfo { version, pid, cache, persistent, ready, usage, work };
            let mounts = mounts.iter().zip(locals).map(|(mount, local)| mount.status(local)).collect();
            AgentStatus { agent, mounts, lost, publications, volumes, unsaved: Vec::new() }
        };
        let status = async {
            // A disk that does not answer is no reason to say nothing.
            within(STATUS_DISK_TIMEOUT, count).await.unwrap_or(Ok(()))?;
            let locals = locals.lock().clone();
            blocking(move || Ok(answer(locals))).await
        };
        let (status, unsaved) = tokio::try_join!(status, unsaved)?;
        Ok(AgentStatus { unsaved, ..status })
    }

    /// The members of the cluster.
    pub fn cluster(&self) -> ApiResult<ClusterStatus> {
        let none = || {
            let text = "this agent is in no cluster: its configuration has no [cluster]";
            Failure::new(Kind::NotFound, text)
        };
        self.cluster.as_ref().map(ClusterMembership::status).ok_or_else(none)
    }

    /// The values of all metrics.
    pub async fn scrape(&self) -> ApiResult<Scrape> {
        let (engine, requests) = (self.engine.clone(), self.requests.totals());
        let (ready, lost) = (self.lifecycle.is_ready(), self.mounts.lost().len() as u64);
        let mounts = self.mounts.attached().iter().map(|mount| mount.scrape()).collect();
        let (scrubbed, publications) = (self.scrubber.counts(), self.publications.counts());
        let savings = self.jobs.savings().into_iter().chain(self.volumes.savings()).collect();
        let scrape = blocking(move || {
            let scrape = Scrape::gather(&engine, requests, ready, mounts, lost, scrubbed, publications);
            Ok(Scrape { savings, ..scrape })
        });
        Ok(scrape.await?)
    }
}
