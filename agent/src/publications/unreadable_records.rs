//! Records of publications that can't be read: what such a publication has bound stays until somebody asks for it by its key.
//!
//! Which base it has, and where that is bound, is told by the mount table alone. As long as there is one, nothing in it is taken
//! for left over: a pod may read from it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::{Secret, Uri};
use bdnfs::task::blocking;
use bdnfs_fs::mounts::{self, MountEntry};
use parking_lot::Mutex;

use super::Publications;
use super::base::{Base, BaseKey};
use super::bind::BindTarget;
use super::publication::Publication;
use super::publishing::mount_request;
use super::record::PublicationRecord;
use crate::api::ApiResult;
use crate::api::publication::{PublicationRequest, is_publication_key, publication_key};
use crate::records::Records;

/// The prefix of the keys of pods' publications, which the agent sees where they are bound.
const POD_KEY_PREFIX: &str = "csi-";

/// The records that can't be read, and all bases of the run that wrote them.
#[derive(Debug, Default)]
pub struct UnreadableRecords {
    /// The reason why each can't be read, by its key.
    errors: Mutex<BTreeMap<String, String>>,
    bases: Mutex<Vec<Arc<Base>>>,
    /// Held while one is taken over, or ended: whoever comes second finds what the first has made of it.
    changing: Mutex<()>,
}

impl UnreadableRecords {
    /// The `records` that can be read, and the others. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`] when they can't be listed.
    pub fn read(records: &Records<PublicationRecord>) -> Result<(Vec<(String, PublicationRecord)>, Self)> {
        let (mut readable, unreadable) = (Vec::new(), Self::default());
        for (key, record) in records.read_all()? {
            match record {
                Ok(record) => readable.push((key, record)),
                Err(error) => {
                    let path = records.path(&key);
                    let text =
                        format!("the record {} of the publication cannot be read: {error}", path.display());
                    tracing::error!("{text}; what it has bound stays until it is unpublished");
                    unreadable.errors.lock().insert(key, text);
                }
            }
        }
        Ok((readable, unreadable))
    }

    /// Forgets the record of `key`: it was written anew, or removed.
    pub fn forget(&self, key: &str) {
        self.errors.lock().remove(key);
    }

    fn error(&self, key: &str) -> Option<String> {
        self.errors.lock().get(key).cloned()
    }
}

impl Publications {
    /// Whether a publication of the last run is unknown.
    pub(super) fn has_unreadable_record(&self) -> bool {
        !self.unreadable.errors.lock().is_empty()
    }

    /// Keeps all bases of the last run, whoever else has them, while a publication is unknown that may.
    pub(super) fn keep_bases(&self) {
        if !self.has_unreadable_record() {
            return;
        }
        let mounted = self.mounts.attached().into_iter().filter(|mount| self.bases.has(mount.mountpoint()));
        // One that only unknown publications have may have been staged, and must not be evicted.
        let kept = mounted.map(|mount| {
            let is_staged = !self.bases.is_joined(mount.mountpoint());
            self.bases.restore(mount, is_staged)
        });
        self.unreadable.bases.lock().extend(kept);
    }

    /// Gives back those kept bases that are bound nowhere any more, and so have no unknown publication.
    pub(super) async fn release_kept_bases(&self) {
        let kept = self.unreadable.bases.lock().clone();
        let may_be_unseen = |key: &String| !key.starts_with(POD_KEY_PREFIX);
        let is_any_unseen = self.unreadable.errors.lock().keys().any(may_be_unseen);
        if kept.is_empty() || (is_any_unseen && !mounts::sees_all_namespaces()) {
            return;
        }
        let unused = blocking(move || {
            let is_unused = |base: &Arc<Base>| !mounts::is_mounted_elsewhere(base.path()).unwrap_or(true);
            Ok(kept.into_iter().filter(is_unused).collect::<Vec<_>>())
        });
        for base in unused.await.unwrap_or_default() {
            let is_it = |kept: &mut Arc<Base>| Arc::ptr_eq(kept, &base);
            // Another call may have released it meanwhile.
            let taken = self.unreadable.bases.lock().extract_if(.., is_it).next();
            if let Some(base) = taken {
                self.bases.release(&base, false).await;
            }
        }
    }

    /// Takes over what an unknown publication has bound to `target`, where it is asked for again by its `key`, and returns it.
    ///
    /// # Errors
    /// [`Kind::Busy`] where that shows something else than `request` asks for; [`Kind::Disk`].
    pub(super) async fn adopt(
        self: &Arc<Self>,
        key: &str,
        request: &PublicationRequest,
        target: &BindTarget,
    ) -> ApiResult<Option<Arc<Publication>>> {
        if self.unreadable.error(key).is_none() {
            return Ok(None);
        }
        let (publications, name) = (Arc::clone(self), key.to_owned());
        let (request, target) = (request.clone(), target.clone());
        // To its end, also where who asked gives up.
        Ok(blocking(move || publications.adopt_now(name, &request, &target)).await?)
    }

    fn adopt_now(
        self: &Arc<Self>,
        key: String,
        request: &PublicationRequest,
        target: &BindTarget,
    ) -> Result<Option<Arc<Publication>>> {
        let _changing = self.unreadable.changing.lock();
        // Another request was faster, or its target is that of another one, which is told.
        let Some(error) = self.unreadable.error(&key) else { return Ok(None) };
        if self.targets().contains(&target.path()) {
            return Ok(None);
        }
        let Some(bound) = target.mounted()?.filter(MountEntry::ours) else { return Ok(None) };
        let is_its = is_key_at(&key, &target.path());
        let bases = self.kept_bases_of(&bound)?;
        if bases.is_empty() && is_its {
            // Its mount has ended with the earlier agent.
            return target.unbind().map(|()| None);
        }
        let Some(base) = bases.into_iter().find(|base| self.is_for(base, request, is_its)) else {
            let at = target.path();
            let text = format!("{error}, and {} shows something else; unpublish it first", at.display());
            return Err(Error::new(Kind::Busy, text));
        };
        let new = Publication::new(key.clone(), request.clone(), Some(target.clone()))?;
        let record = new.record(Some(&base), &self.boot);
        self.records.put(&key, &record)?;
        let (publication, is_bound) = self.restore_one(key.clone(), record);
        if !is_bound {
            let ended = publication.unpublished();
            let publications = Arc::clone(self);
            tokio::spawn(async move { publications.take_down(&publication).await });
            return Err(Error::new(Kind::Busy, ended.message));
        }
        self.resume_published(Arc::clone(&publication));
        self.unreadable.forget(&key);
        Ok(Some(publication))
    }

    /// The kept bases that `bound` may show: those with other owners may share a file system.
    fn kept_bases_of(&self, bound: &MountEntry) -> Result<Vec<Arc<Base>>> {
        let mut found = Vec::new();
        for base in self.unreadable.bases.lock().iter() {
            if mounts::at(base.path())?.is_some_and(|mounted| mounted.device == bound.device) {
                found.push(Arc::clone(base));
            }
        }
        Ok(found)
    }

    /// Whether `base` shows what `request` asks for, as far as that can be told without its origin. `is_its`: what is bound is
    /// known to be that of its key, for which nobody asks for anything else.
    fn is_for(&self, base: &Base, request: &PublicationRequest, is_its: bool) -> bool {
        let Ok(asked) = mount_request(request.clone(), &self.config.inline_sources) else { return false };
        let tenant = asked.tenant.clone().unwrap_or_else(|| self.tenant().to_owned());
        let is_same_owner = base.has_key(&BaseKey::new(tenant, base.snapshot(), &asked));
        let Some(mount) = base.mount().filter(|_| is_same_owner) else { return false };
        let (asked, shown) = (&asked.weights, &mount.request().weights);
        let is_same = bare(&asked.source) == bare(&shown.source)
            && asked.access.without_secrets().0 == shown.access.without_secrets().0
            && (&asked.allow, &asked.ignore, asked.layout) == (&shown.allow, &shown.ignore, shown.layout);
        is_its || is_same
    }

    /// Whether a publication is unknown that may have one of the `unclaimed` binds, or a base. Else none is from then on.
    pub(super) fn may_have_unknown(&self, unclaimed: &[(BindTarget, &MountEntry)]) -> bool {
        let is_nothing_left = unclaimed.is_empty() && self.unreadable.bases.lock().is_empty();
        let mut errors = self.unreadable.errors.lock();
        if is_nothing_left {
            errors.clear();
        }
        !errors.is_empty()
    }

    /// Waits while the unknown publication `key`, if it is one, is taken over: then it is known.
    pub(super) async fn await_adoption(self: &Arc<Self>, key: &str) -> Result<()> {
        if self.unreadable.error(key).is_none() {
            return Ok(());
        }
        let publications = Arc::clone(self);
        let taken_over = move || {
            drop(publications.unreadable.changing.lock());
            Ok(())
        };
        blocking(taken_over).await
    }

    /// Ends what an earlier run has left of the publication `key`, unless it is known. Blocks on the local disk.
    ///
    /// # Errors
    /// [`Kind::Busy`] where what it has bound can't be told; [`Kind::Disk`].
    pub(super) fn end_unknown(&self, key: &str) -> Result<()> {
        // Only then: the disk may keep one waiting.
        let _changing = self.unreadable.error(key).map(|_| self.unreadable.changing.lock());
        let is_published_again = self.table.lock().contains_key(key);
        if !is_publication_key(key) || is_published_again {
            return Ok(());
        }
        self.unbind_unknown(key)?;
        self.records.remove(key)
    }

    /// Unbinds what the unknown publication `key` has bound, if it is one.
    fn unbind_unknown(&self, key: &str) -> Result<()> {
        let Some(error) = self.unreadable.error(key) else { return Ok(()) };
        let mounted = mounts::all()?;
        let mut unclaimed = self.unclaimed_binds(&mounted, &self.targets());
        if let Some((target, _)) = unclaimed.iter().find(|(_, entry)| is_key_at(key, &entry.mountpoint)) {
            target.unbind()?;
        } else {
            let others: Vec<_> = self.unreadable.errors.lock().keys().cloned().collect();
            unclaimed.retain(|(_, entry)| {
                let is_of_other = others.iter().any(|other| is_key_at(other, &entry.mountpoint));
                !is_of_other && self.kept_bases_of(entry).is_ok_and(|bases| !bases.is_empty())
            });
            if let Some((target, _)) = unclaimed.first() {
                let at = target.path();
                let text = format!("{error}; unmount what it has bound, which may be {}", at.display());
                return Err(Error::new(Kind::Busy, text));
            }
        }
        self.unreadable.forget(key);
        Ok(())
    }
}

/// Whether `key` is that of a publication at `target`, as those of pods are.
fn is_key_at(key: &str, target: &Path) -> bool {
    key.rsplit_once('-').is_some_and(|(volume, _)| publication_key(volume, "", Some(target)) == key)
}

/// A source without a signature.
fn bare(source: &Secret) -> Option<String> {
    source.expose().parse().ok().map(|uri: Uri| uri.to_string())
}
