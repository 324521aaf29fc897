//! Reconciliation: records against the mount table, after a restart and every few minutes.
//!
//! A bind that was unmounted from outside (a pod's directory that was removed by hand, a container's crash) ends its
//! publication; a bind of ours that no publication has is removed. Nothing is asked of the file systems themselves.
//! A hook or an epilog that was not run, or found no agent, leaves a publication to the end of its container or job as well.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Result;
use bdnfs::task::blocking;
use bdnfs_fs::mounts::{self, MountEntry};
use rustix::process::geteuid;

use super::Publications;
use super::base::Base;
use super::bind::BindTarget;
use super::publication::Publication;
use super::record::PublicationRecord;
use crate::api::publication::{SLURM_STATE_FILE, Staging};
use crate::mounts::MountPurpose;

/// The interval at which records and mount table are compared. What is left over costs space in the cache, and nothing else.
pub const RECONCILE_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The prefixes of the keys of publications for containers of OCI runtimes, and for jobs of Slurm.
const OCI_KEY_PREFIX: &str = "oci-";
const SLURM_KEY_PREFIX: &str = "slurm-";
/// The directory in which a kubelet binds the `subPath`s of volumes for containers.
const KUBELET_SUBPATHS_DIRECTORY: &str = "volume-subpaths";

impl Publications {
    /// The purpose of the mount at `mountpoint` of an earlier run, if it is a base.
    pub fn purpose_of(&self, mountpoint: &Path) -> Option<MountPurpose> {
        if !self.bases.has(mountpoint) {
            return None;
        }
        let last_run = self.last_run.lock();
        let mut records = last_run.values().filter(|record| record.base == mountpoint).peekable();
        if records.peek().is_some() {
            let admitted = records.any(|record| record.request.staging == Staging::Wait);
            return Some(MountPurpose::Deployment { admitted });
        }
        Some(match self.last_boot.contains(mountpoint) {
            true => MountPurpose::LastBoot,
            // A pod may read from it.
            false if self.has_unreadable_record() => MountPurpose::Deployment { admitted: true },
            false => MountPurpose::Ended,
        })
    }

    /// Restores what was published in this boot, once the mounts are back: binds are left as they are where their bases were
    /// resumed, and made again where they were not. What was pending is begun again.
    pub async fn restore(self: &Arc<Self>) {
        let records = std::mem::take(&mut *self.last_run.lock());
        let mut ended = Vec::new();
        for (key, record) in records {
            if record.pending.is_some() {
                self.resume_pending(key, record).await;
                continue;
            }
            let (publications, name) = (Arc::clone(self), key.clone());
            match blocking(move || Ok(publications.restore_one(key, record))).await {
                Ok((publication, true)) => self.resume_published(publication),
                Ok((publication, false)) => ended.push(publication),
                Err(error) => tracing::error!("publication {name} cannot be restored: {error}"),
            }
        }
        self.keep_bases();
        // Now that it is known which bases others have.
        for publication in ended {
            tracing::info!("publication {} ended while there was no agent", publication.key);
            if let Err(error) = self.take_down(&publication).await {
                tracing::error!("cannot unpublish {}: {error}", publication.key);
            }
        }
    }

    /// Goes on with a publication of an earlier run that is still bound.
    pub(super) fn resume_published(self: &Arc<Self>, publication: Arc<Publication>) {
        publication.set_published("published before the agent was started again".to_owned());
        self.table.lock().insert(publication.key.clone(), Arc::clone(&publication));
        tokio::spawn(Arc::clone(self).unpublish_when_cancelled(publication));
    }

    /// Resumes a publication that was pending when the agent ended.
    async fn resume_pending(self: &Arc<Self>, key: String, record: PublicationRecord) {
        // The configured targets or sources may have changed.
        match self.check(&key, &record.request).await {
            Ok(target) => {
                tracing::info!("publication {key} was pending when the agent ended, and goes on");
                let publication = Arc::new(Publication::restore(key.clone(), record, target));
                self.table.lock().insert(key, Arc::clone(&publication));
                tokio::spawn(Arc::clone(self).run(publication));
            }
            Err(failure) => {
                tracing::warn!("cannot resume publication {key}: {failure}");
                let publications = Arc::clone(self);
                let _ = blocking(move || publications.records.remove(&key)).await;
            }
        }
    }

    /// A publication of an earlier run, and whether it is still bound, or may be. Blocks on the local disk.
    pub(super) fn restore_one(&self, key: String, record: PublicationRecord) -> (Arc<Publication>, bool) {
        let target = record.request.target.as_deref().map(|path| self.target_of_last_run(path));
        let is_staged = record.request.staging == Staging::Wait;
        let base = self.mounts.at(&record.base).map(|mount| self.bases.restore(mount, is_staged));
        let path = record.base.clone();
        let publication = Arc::new(Publication::restore(key, record, target));
        match &base {
            Some(base) => {
                publication.set_base(Some(Arc::clone(base)));
                self.note_lost_mount(&publication, base);
            }
            None => publication.set_lost_base(path),
        }
        let Some(target) = &publication.target else { return (Arc::clone(&publication), base.is_some()) };
        let is_bound = restore_bind(target, base.as_deref()).unwrap_or_else(|error| {
            tracing::error!("publication {}: {error}", publication.key);
            true
        });
        if is_bound {
            publication.set_bound();
        }
        (publication, is_bound)
    }

    /// The target of a publication of an earlier run. The configured targets may have changed, and what is bound is to be unbound
    /// all the same. Touches the local disk.
    fn target_of_last_run(&self, path: &Path) -> BindTarget {
        BindTarget::locate(path, &self.config.targets).unwrap_or_else(|_| BindTarget::at(path))
    }

    /// Notes that the base of a publication of an earlier run was mounted anew, for this agent and the next.
    fn note_lost_mount(&self, publication: &Publication, base: &Base) {
        if base.mount().is_none_or(|mount| mount.is_resumed()) || publication.has_lost_mount() {
            return;
        }
        // Without a target nobody tells when its containers were started again.
        if publication.target.is_none() {
            return;
        }
        publication.set_lost_mount();
        if let Err(error) = self.records.put(&publication.key, &publication.record(Some(base), &self.boot)) {
            tracing::warn!("publication {}: {error}", publication.key);
        }
    }

    /// Publishes the named sources, and reconciles, every few minutes. Never ends.
    pub async fn watch(self: Arc<Self>) {
        let mut unused = HashSet::new();
        loop {
            self.publish_sources().await;
            self.bases.retry_refills();
            match self.reconcile(&unused).await {
                Ok(found) => unused = found,
                Err(error) => tracing::warn!("cannot compare publications with the mount table: {error}"),
            }
            tokio::time::sleep(RECONCILE_INTERVAL).await;
        }
    }

    /// Ends publications that nobody needs any more, and removes binds that belong to none. Ended are those whose target is not
    /// mounted any more, whose job has ended, or which no container uses, now and when `unused` was found. Returns the keys of
    /// those that no container uses.
    async fn reconcile(self: &Arc<Self>, unused: &HashSet<String>) -> Result<HashSet<String>> {
        // A publication that was published before the table is read is in it.
        let published: Vec<_> = self.all().into_iter().filter(|one| one.is_published()).collect();
        let publications = Arc::clone(self);
        let compared = blocking(move || {
            // Before the table: what is taken over meanwhile has no publication yet.
            let is_known = !publications.has_unreadable_record();
            let mounted = mounts::all()?;
            let is_there = |path: &Path| mounted.iter().any(|entry| entry.mountpoint == path);
            let lost = published.into_iter().filter(|one| {
                one.target.as_ref().is_some_and(|at| !is_there(&at.path()) || at.is_unwanted())
            });
            let lost: Vec<_> = lost.collect();
            publications.remove_orphans(&mounted, &publications.targets(), is_known);
            let ended: Vec<_> = publications.all().into_iter().filter(|one| has_ended_job(one)).collect();
            Ok((lost, ended, publications.find_unused()?))
        });
        let (lost, ended, found) = compared.await?;
        self.release_kept_bases().await;
        let is_unused = |one: &Arc<Publication>| unused.contains(&one.key) && found.contains(&one.key);
        let unused = self.all().into_iter().filter(is_unused).collect();
        let reasons = [
            (lost, "its target was unmounted or is not wanted any more"),
            (ended, "its job has ended"),
            (unused, "no container has it"),
        ];
        for (publications, reason) in reasons {
            for publication in publications {
                tracing::info!("publication {}: {reason}", publication.key);
                publication.cancel();
            }
        }
        Ok(found)
    }

    /// The publications of containers which no container has mounted, by their keys: its hook may be about to. Not those of a
    /// container for which others are staged: its hook waits for them. Blocks on the local disk.
    fn find_unused(&self) -> Result<HashSet<String>> {
        let container =
            |one: &Publication| one.key.rsplit_once('-').map(|(container, _)| container.to_owned());
        let mut all = self.all();
        all.retain(|one| one.key.starts_with(OCI_KEY_PREFIX) && one.target.is_none());
        if all.is_empty() || !mounts::sees_all_namespaces() {
            return Ok(HashSet::new());
        }
        let waiting: HashSet<_> =
            all.iter().filter(|one| !one.is_published()).filter_map(|one| container(one)).collect();
        all.retain(|one| container(one).is_some_and(|container| !waiting.contains(&container)));
        let mut unused = HashSet::new();
        for (publication, base) in all.iter().filter_map(|one| Some((one, one.base()?))) {
            if !mounts::is_mounted_elsewhere(base.path())? {
                unused.insert(publication.key.clone());
            }
        }
        Ok(unused)
    }

    /// Unbinds what an earlier run has bound, and has no record of. To be called while its bases are mounted, by which it is known.
    /// Blocks on the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](bdnfs::error::Kind::Disk) when the mount table can't be read.
    pub(super) fn remove_orphans_of_last_run(&self) -> Result<()> {
        if self.has_unreadable_record() {
            return Ok(());
        }
        let last_run = self.last_run.lock();
        let targets = last_run.values().filter_map(|record| record.request.target.as_deref());
        let located = targets.map(|path| self.target_of_last_run(path).path()).collect::<Vec<_>>();
        self.remove_orphans(&mounts::all()?, &located, true);
        Ok(())
    }

    /// Unbinds those binds of our bases that are not at `known` targets, unless they may belong to a record that can't be read: not
    /// where there was one before `known` was read, either. Blocks on the local disk.
    fn remove_orphans(&self, mounted: &[MountEntry], known: &[PathBuf], was_readable: bool) {
        let unclaimed = self.unclaimed_binds(mounted, known);
        if self.may_have_unknown(&unclaimed) || !was_readable {
            return;
        }
        let bases = mounted.iter().filter(|entry| self.bases.has(&entry.mountpoint));
        let devices: Vec<_> = bases.map(|entry| entry.device).collect();
        for (orphan, entry) in unclaimed.into_iter().filter(|(_, entry)| devices.contains(&entry.device)) {
            tracing::warn!("removing {}, which belongs to no publication", entry.mountpoint.display());
            if let Err(error) = orphan.unbind() {
                tracing::warn!("{error}");
            }
        }
    }

    /// The binds below the target directories that may be ours and are not at `known` targets. Touches the local disk.
    pub(super) fn unclaimed_binds<'a>(
        &self,
        mounted: &'a [MountEntry],
        known: &[PathBuf],
    ) -> Vec<(BindTarget, &'a MountEntry)> {
        let directories: Vec<_> =
            self.config.targets.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let unclaimed = mounted.iter().filter(|entry| {
            may_be_bound_by_us(entry)
                && !self.bases.has(&entry.mountpoint)
                && !known.contains(&entry.mountpoint)
        });
        let locate =
            |entry: &'a MountEntry| Some((BindTarget::locate(&entry.mountpoint, &directories).ok()?, entry));
        unclaimed.filter_map(locate).collect()
    }
}

/// Whether a bind of the agent can look like that: all of a base, and not at a place where a kubelet binds parts of volumes itself.
fn may_be_bound_by_us(entry: &MountEntry) -> bool {
    let is_subpath =
        |path: &Path| path.components().any(|part| part.as_os_str() == KUBELET_SUBPATHS_DIRECTORY);
    entry.ours() && entry.root == Path::new("/") && !is_subpath(&entry.mountpoint)
}

/// Whether something of ours is bound to `target` of an earlier run, covered or not: `base`, where that is there.
fn restore_bind(target: &BindTarget, base: Option<&Base>) -> Result<bool> {
    let stack = mounts::stack_at(&target.path())?;
    let is_on_top = stack.last().is_some_and(MountEntry::ours);
    let Some(bound) = stack.into_iter().rfind(MountEntry::ours) else { return Ok(false) };
    if let Some(base) = base
        && mounts::at(base.path())?.is_some_and(|mounted| mounted.device != bound.device)
    {
        // Its base was lost with the fd store, and is another mount now.
        target.unbind()?;
        target.bind(base.path())?;
    } else if is_on_top {
        target.adopt();
    }
    Ok(true)
}

/// Whether the Slurm job has ended for which it was published: its epilog, which removes the state, may have found no agent.
/// Touches the local disk.
fn has_ended_job(publication: &Publication) -> bool {
    let target = publication.target.as_ref().filter(|_| publication.key.starts_with(SLURM_KEY_PREFIX));
    let state = target.and_then(|target| Some(target.path().parent()?.join(SLURM_STATE_FILE)));
    // The directory is the user's: what they put in its place is no state.
    state.is_some_and(|state| match state.symlink_metadata() {
        Ok(found) => !found.is_file() || found.uid() != geteuid().as_raw(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    })
}
